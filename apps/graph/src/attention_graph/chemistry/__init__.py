"""Molecules by RDKit: their features, ZINC's target, and synthetic molecules."""

from attention_graph.chemistry.features import UnusableMolecule, featurize_ogb, featurize_zinc
from attention_graph.chemistry.penalized_logp import compute_penalized_logp
from attention_graph.chemistry.synthetic import generate_molecules

__all__ = [
    "UnusableMolecule",
    "compute_penalized_logp",
    "featurize_ogb",
    "featurize_zinc",
    "generate_molecules",
]
