"""Experiments: runs, training, data, diagnostics, launching, and the tables of papers."""
