"""Attention maps as linear operators: `A @ v` in each representation of A, and polynomials."""

from attention_core.operators.base import (
    LinearMap,
    Operator,
    ValueFreeOutput,
    allowed_pairs,
    apply_operator,
    average,
    identity_like,
    is_traced,
    masked_mean,
    propagate,
)
from attention_core.operators.formed import FormedSoftmax
from attention_core.operators.polynomial import Step, apply_polynomial, evaluate_polynomial
from attention_core.operators.softmax import Softmax
from attention_core.operators.structured import Diagonal, Host, LowRank
