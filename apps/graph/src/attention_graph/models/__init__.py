"""Graphormer, the network of this app."""

from attention_graph.models.graphormer import Graphormer, GraphormerConfig, Version
from attention_graph.models.paths import AttentionBias

__all__ = ["AttentionBias", "Graphormer", "GraphormerConfig", "Version"]
