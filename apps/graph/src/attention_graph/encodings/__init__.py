"""Positional encodings of graphs, as pre-transforms, and the dense batches that contain them."""

from attention_graph.encodings.batch import ID_OFFSET, Batch, collate_graphs
from attention_graph.encodings.paths import UNREACHABLE, UPSTREAM_FAR, ShortestPaths, Variant

__all__ = [
    "ID_OFFSET",
    "UNREACHABLE",
    "UPSTREAM_FAR",
    "Batch",
    "ShortestPaths",
    "Variant",
    "collate_graphs",
]
