"""Adapters and hook points, one module per library: only these modules know the libraries."""
