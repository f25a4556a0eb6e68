"""The networks of this app: encoders of time series, and of long sequences of tokens."""

from attention_sequence.models.blocks import Attention, Size
from attention_sequence.models.series import Classifier
from attention_sequence.models.tokens import PairClassifier, TokenClassifier

__all__ = ["Attention", "Classifier", "PairClassifier", "Size", "TokenClassifier"]
