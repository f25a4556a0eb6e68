"""Networks: the encoder of UEA's time series, and that of the Long Range Arena's tokens."""

from attention_sequence.models.blocks import BuildAttention, Encoder, NetworkSize
from attention_sequence.models.lra import PairClassifier, TokenClassifier
from attention_sequence.models.uea import SeriesClassifier

__all__ = [
    "BuildAttention",
    "Encoder",
    "NetworkSize",
    "PairClassifier",
    "SeriesClassifier",
    "TokenClassifier",
]
