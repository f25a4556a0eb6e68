"""Spectral measures of maps and tokens: pure functions of tensors."""

from attention_core.spectral.heads import attention_entropy, head_cosine
from attention_core.spectral.maps import (
    dft_response,
    dominating_eigenvalue_shares,
    filter_singular_values,
    map_cosine,
    matrix,
    power_singular_values,
    response,
    restrict_map,
    singular_response,
    singular_values,
)
from attention_core.spectral.rates import (
    condition_number,
    logit_range,
    map_smoothing_rate,
    smoothing_rate,
    value_output_eigenvalues,
)
from attention_core.spectral.tokens import (
    effective_rank,
    hfc_lfc,
    hfc_share,
    high_frequency_norm,
    token_cosine,
)

__all__ = [
    "attention_entropy",
    "condition_number",
    "dft_response",
    "dominating_eigenvalue_shares",
    "effective_rank",
    "filter_singular_values",
    "head_cosine",
    "hfc_lfc",
    "hfc_share",
    "high_frequency_norm",
    "logit_range",
    "map_cosine",
    "map_smoothing_rate",
    "matrix",
    "power_singular_values",
    "response",
    "restrict_map",
    "singular_response",
    "singular_values",
    "smoothing_rate",
    "token_cosine",
    "value_output_eigenvalues",
]
