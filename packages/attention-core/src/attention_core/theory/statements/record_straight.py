"""Statements of https://arxiv.org/abs/2401.04301v2 (Setting the Record Straight)."""

from attention_core.theory import dominating_eigenvalue, feature_limit, low_pass
from attention_core.theory.statements.statement import Statement

_EIGEN, _LIMIT = "test_dominating_eigenvalue.py::test_", "test_feature_limit.py::test_"

RECORD_STRAIGHT_STATEMENTS = (
    Statement(
        "Record straight", "definition 2.1",
        "A layer is a low-pass filter if HFC / LFC tends to 0 for all $X$.",
        "holds if", "read for almost all $X$, as definition 1 of AttnScale.",
        low_pass.trace_hfc_lfc,
        "test_low_pass.py::test_theorem_1_fails_by_hand_and_definition_1_for_tokens_of_zeros",
    ),
    Statement(
        "Record straight", "eq. 3",
        r"$X + A X W_V W_O$ is $I + H \otimes A$ on stacked columns, with $H = (W_V W_O)^\top$.",
        "holds", "",
        feature_limit.form_update_matrix,
        _LIMIT + "the_update_is_the_kronecker_matrix_on_stacked_columns",
    ),
    Statement(
        "Record straight", "assumption 3.1",
        "A softmax map is positive and invertible.",
        "holds if", "no two tokens are equal, no pair is masked, and no entry underflows.",
        dominating_eigenvalue.measure_attention_spectrum,
        _EIGEN + "assumption_3_1_fails_for_equal_tokens_causal_masks_and_underflow",
    ),
    Statement(
        "Record straight", "proposition 1",
        "All eigenvalues of $A$ are in $(-1, 1]$, and 1 is the largest.",
        "fails", "the moduli are: 1 is simple, all others are inside the unit circle. "
        "Most are complex.",
        dominating_eigenvalue.measure_attention_spectrum,
        _EIGEN + "proposition_1_most_eigenvalues_are_complex",
    ),
    Statement(
        "Record straight", "definition 3.2",
        r"A pair of the largest $\lvert 1 + \lambda^H_j \lambda^A_i \rvert$ dominates.",
        "holds", "",
        dominating_eigenvalue.find_dominating_pairs, _EIGEN + "definition_3_2_by_a_double_loop",
    ),
    Statement(
        "Record straight", "theorem 3.3",
        "Three rules by the phases of $H$ name the dominating pair (A.1 in the appendix).",
        "fails", "each rule compares too few pairs. The largest of "
        r"$\lvert 1 + \lambda^H_d \rvert$ and $\max_j \lvert 1 + \lambda^H_j \lambda^A_1 \rvert$ "
        "dominates, for real eigenvalues of $A$.",
        dominating_eigenvalue.choose_by_phase, _EIGEN + "each_rule_of_theorem_3_3_fails",
    ),
    Statement(
        "Record straight", "text after theorem 3.3",
        r"A dominating pair is at $\lambda^A_1$ or $\lambda^A_n$.",
        "holds if", "the eigenvalues of $A$ are real. For complex ones it is at a corner of their "
        "convex hull.",
        dominating_eigenvalue.choose_dominating_pair,
        _EIGEN + "the_repaired_theorem_3_3_for_real_maps",
    ),
    Statement(
        "Record straight", "theorem 3.4",
        r"$X_L \to (1 + \lambda^H_j \lambda^A_i)^L s_{j,i} v^A_i v_j^{H\top}$ for the "
        r"dominating pair.",
        "holds if", r"$X_L$ is divided by $\lvert\mu\rvert^L$, $A$ and $H$ are diagonalizable and "
        r"$s_{j,i} \ne 0$. Complex pairs turn for ever.",
        feature_limit.predict_features,
        _LIMIT + "theorem_3_4_the_features_converge_to_the_dominating_terms",
    ),
    Statement(
        "Record straight", "corollary 1",
        "The rank of $X_L$ tends to the size of a largest set of dominating pairs that share no "
        "index.",
        "holds if", r"it is the rank of the limit of $X_L / \lvert\mu\rvert^L$, for "
        r"almost all $X$.",
        feature_limit.measure_feature_rank, _LIMIT + "corollary_1_the_rank_of_the_limit",
    ),
    Statement(
        "Record straight", "theorem 3.5, case 1",
        r"The layer is a low-pass filter if a pair at $\lambda^A_n$ dominates.",
        "holds if", "read for almost all $X$.",
        feature_limit.classify_update, _LIMIT + "theorem_3_5_case_1_smooths",
    ),
    Statement(
        "Record straight", "theorem 3.5, case 2",
        r"HFC / LFC does not tend to 0, for any $X$, if a pair at $\lambda^A_1$ dominates.",
        "holds if", "read for almost all $X$; equal tokens stay equal. True of a pair at any other "
        r"$\lambda^A_i \ne 1$ too.",
        feature_limit.classify_update, _LIMIT + "theorem_3_5_case_2_does_not_smooth",
    ),
    Statement(
        "Record straight", "theorem 3.5, case 3",
        r"The same if pairs tie and one is not at $\lambda^A_n$.",
        "holds if", "read for almost all $X$. The ratio may alternate and have no limit. A "
        "zero of $H$ ties.",
        feature_limit.classify_update,
        _LIMIT + "theorem_3_5_case_3_zeros_of_h_tie_and_do_not_smooth",
    ),
    Statement(
        "Record straight", "corollary 2",
        r"$\lambda^H \in [-1, 0)$: a pair at $\lambda^A_1$ dominates. $\lambda^H > 0$: "
        r"$(\lambda^H_d, \lambda^A_n)$ does.",
        "holds if", "the eigenvalues of $A$ are real. For complex ones the effect is as stated, at "
        "another index. There are at least two tokens.",
        dominating_eigenvalue.predict_effect, _EIGEN + "corollary_2_holds_for_complex_maps_too",
    ),
    Statement(
        "Record straight", "corollary 3",
        "The rules of theorem 3.3 for phases in one half plane.",
        "fails", "the rule of the right half plane is true for real eigenvalues of $A$; those "
        "of the left are rules of theorem 3.3.",
        dominating_eigenvalue.choose_by_half_plane,
        _EIGEN + "each_rule_of_theorem_3_3_fails",
    ),
    Statement(
        "Record straight", "theorem B.1",
        "Rules by the signs of a real $H$ name the dominating pair.",
        "fails", "true for one sign. For mixed signs the largest of three moduli dominates: "
        r"$1 + \lambda^H_d$, $1 + \lambda^H_1$ and $1 + \lambda^H_1 \lambda^A_1$.",
        dominating_eigenvalue.choose_by_sign, _EIGEN + "theorem_b1_fails_for_mixed_signs",
    ),
)  # fmt: skip
