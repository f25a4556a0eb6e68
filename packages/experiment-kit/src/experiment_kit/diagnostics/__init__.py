"""Measurements of a model: spectra during training, efficiency, eigenvalues."""
