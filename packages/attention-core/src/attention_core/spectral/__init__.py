"""Spectral measures of maps and tokens: pure functions of tensors."""

from attention_core.spectral.heads import attention_entropy, head_cosine
from attention_core.spectral.maps import (
    dft_response,
    dominating_eigenvalue_shares,
    map_cosine,
    matrix,
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
