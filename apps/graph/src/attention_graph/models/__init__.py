"""The network of this app: Graphormer."""

from attention_graph.models.bias import AttentionBias, Fidelity
from attention_graph.models.graphormer import Graphormer, Size

__all__ = ["AttentionBias", "Fidelity", "Graphormer", "Size"]
