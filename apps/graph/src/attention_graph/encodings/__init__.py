"""Positional encodings of graphs, as pre-transforms, and the dense batches that contain them."""
