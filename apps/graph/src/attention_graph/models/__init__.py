"""Graphormer, the network of this app."""

from attention_graph.models.bias import AttentionBias
from attention_graph.models.graphormer import Graphormer, GraphormerConfig, Version

__all__ = ["AttentionBias", "Graphormer", "GraphormerConfig", "Version"]
