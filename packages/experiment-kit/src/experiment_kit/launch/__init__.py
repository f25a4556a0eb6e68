"""Experiments by name: overlays found, cells planned, processes run."""
