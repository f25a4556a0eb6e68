"""Models of timm, and checkpoints for them."""
