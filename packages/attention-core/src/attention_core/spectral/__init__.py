"""Spectral measures of maps and tokens: pure functions of tensors."""

from attention_core.spectral.maps import (
    dft_response,
    dominating_eigenvalue_shares,
    filter_singular_values,
    map_cosine,
    matrix,
    power_singular_values,
    response,
    singular_response,
    singular_values,
)
from attention_core.spectral.tokens import (
    effective_rank,
    hfc_lfc,
    hfc_share,
    high_frequency_norm,
    token_cosine,
)

__all__ = [
    "dft_response",
    "dominating_eigenvalue_shares",
    "effective_rank",
    "filter_singular_values",
    "hfc_lfc",
    "hfc_share",
    "high_frequency_norm",
    "map_cosine",
    "matrix",
    "power_singular_values",
    "response",
    "singular_response",
    "singular_values",
    "token_cosine",
]
