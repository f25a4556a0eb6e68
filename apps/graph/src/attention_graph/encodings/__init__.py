"""Positional encodings of graphs, as pre-transforms, and the dense batches that carry them."""

from attention_graph.encodings.batch import Batch, collate
from attention_graph.encodings.paths import UNREACHABLE
from attention_graph.encodings.transform import ShortestPaths, distances

__all__ = ["UNREACHABLE", "Batch", "ShortestPaths", "collate", "distances"]
