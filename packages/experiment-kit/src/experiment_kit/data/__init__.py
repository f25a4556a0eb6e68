"""Data: downloads, local paths, splits, samplers, loaders and the base data module."""
