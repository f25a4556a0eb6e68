"""Molecules by RDKit: their features, ZINC's target, and synthetic molecules."""
