"""The theorems of the papers as functions of your tensors; docs/theory.md says which hold."""

from attention_core.theory.bound import Bound
from attention_core.theory.dominating_eigenvalue import (
    AttentionSpectrum,
    choose_dominating_pair,
    find_dominating_pairs,
    measure_attention_spectrum,
    predict_effect,
)
from attention_core.theory.feature_limit import (
    classify_update,
    measure_feature_rank,
    predict_features,
)
from attention_core.theory.low_pass import (
    LowPassDecay,
    bound_product_mixing,
    measure_low_pass_decay,
    trace_hfc_lfc,
)
from attention_core.theory.polynomial_filters import (
    GFSAWeights,
    bound_power_error,
    match_polynomial,
    normalize_symmetrically,
)
from attention_core.theory.singular_value_filters import (
    HighPassRatios,
    bound_spectral_norm,
    measure_gain_ratios,
    measure_high_pass_ratios,
)
from attention_core.theory.smoothing_rate import (
    DecayCondition,
    bound_attention_smoothing,
    bound_block_smoothing,
    bound_logits,
    bound_multi_head_smoothing,
    bound_residual_smoothing,
    check_decay,
)
