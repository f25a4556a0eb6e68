"""The theorems of the papers as functions of your tensors: a measured side beside its bound."""

from attention_core.theory.bound import Bound
from attention_core.theory.smoothing_rate import (
    DecayCondition,
    bound_attention_smoothing,
    bound_block_smoothing,
    bound_distance_logits,
    bound_logistic_logits,
    bound_logits,
    bound_multi_head_smoothing,
    bound_residual_smoothing,
    check_decay,
    compute_smoothing_factor,
    measure_alpha,
    measure_contraction,
)

__all__ = [
    "Bound",
    "DecayCondition",
    "bound_attention_smoothing",
    "bound_block_smoothing",
    "bound_distance_logits",
    "bound_logistic_logits",
    "bound_logits",
    "bound_multi_head_smoothing",
    "bound_residual_smoothing",
    "check_decay",
    "compute_smoothing_factor",
    "measure_alpha",
    "measure_contraction",
]
