"""Positional encodings of graphs, as pre-transforms, and the dense batches that carry them."""

from attention_graph.encodings.batch import SHIFT, Batch, collate
from attention_graph.encodings.paths import UNREACHABLE
from attention_graph.encodings.released import FAR
from attention_graph.encodings.transform import Fidelity, ShortestPaths, distances

__all__ = [
    "FAR",
    "SHIFT",
    "UNREACHABLE",
    "Batch",
    "Fidelity",
    "ShortestPaths",
    "collate",
    "distances",
]
