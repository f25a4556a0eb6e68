"""Graphormer, the network of this app."""
