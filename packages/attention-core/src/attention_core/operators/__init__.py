"""What `A @ v` means for each way of holding an attention map A, and what is made of it."""

from attention_core.operators.expansion import polynomial
from attention_core.operators.maps import Diagonal, Host, LowRank
from attention_core.operators.protocol import (
    FORBIDDEN,
    Fixed,
    Operator,
    apply,
    average,
    identity,
    masked_mean,
    propagate,
    support,
)
from attention_core.operators.recurrence import Step, expand
from attention_core.operators.softmax import Softmax

__all__ = [
    "FORBIDDEN",
    "Diagonal",
    "Fixed",
    "Host",
    "LowRank",
    "Operator",
    "Softmax",
    "Step",
    "apply",
    "average",
    "expand",
    "identity",
    "masked_mean",
    "polynomial",
    "propagate",
    "support",
]
