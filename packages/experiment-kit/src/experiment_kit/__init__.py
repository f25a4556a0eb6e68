"""Experiments: runs, training, data, launching, and the tables of papers."""

__version__ = "0.1.0"
