"""Experiments by name: overlays, runs and processes, and methods compared."""
