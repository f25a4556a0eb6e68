"""Image classification with every attention mechanism."""
