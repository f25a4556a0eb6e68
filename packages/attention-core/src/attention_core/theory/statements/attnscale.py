"""Statements of https://arxiv.org/abs/2203.05962 (AttnScale and FeatScale)."""

from attention_core.theory import low_pass, smoothing_rate
from attention_core.theory.statements.statement import Statement

_LOW, _RATE = "test_low_pass.py::test_", "test_smoothing_rate.py::test_"

ATTNSCALE_STATEMENTS = (
    Statement(
        "AttnScale", "definition 1",
        "A map is a low-pass filter if the ratio of high to low frequencies tends to 0 for "
        "all $x$.",
        "holds if", "read for almost all $x$: tokens of zeros have no ratio, so no linear map "
        "is one.",
        low_pass.trace_hfc_lfc,
        _LOW + "theorem_1_fails_by_hand_and_definition_1_for_tokens_of_zeros",
    ),
    Statement(
        "AttnScale", "theorem 1",
        "Every softmax map is a low-pass filter.",
        "holds if", r"$\pi^\top x \ne 0$, with $\pi$ the stationary distribution of $A$.",
        low_pass.measure_low_pass_decay,
        _LOW + "theorem_1_the_ratio_vanishes_at_the_rate_of_the_second_eigenvalue",
    ),
    Statement(
        "AttnScale", "corollary 2",
        "A product of softmax maps is a low-pass filter.",
        "holds if", "the product is one map that is repeated. That more layers smooth more needs "
        "logits below a common bound.",
        low_pass.bound_product_mixing,
        _LOW + "corollary_2_products_mix_at_least_as_fast_as_their_factors",
    ),
    Statement(
        "AttnScale", "theorem 3",
        r"$\Vert\mathrm{HC}[A X W_V]\Vert_F \le "
        r"\sqrt{\frac{n e^{2\alpha}}{e^{2\alpha} + n - 1}} \Vert W_V\Vert_2 "
        r"\Vert\mathrm{HC}[X]\Vert_F$ "
        r"with $\alpha = \max \lvert P_{ij} \rvert$.",
        "holds", "",
        smoothing_rate.bound_attention_smoothing, _RATE + "theorem_3_bounds_the_literal_head",
    ),
    Statement(
        "AttnScale", "theorem 3, dot products",
        r"$\alpha \le \gamma^2 \Vert W_Q W_K^\top\Vert_2 / \sqrt d$ for tokens in a ball of radius "
        r"$\gamma$.",
        "holds", "",
        smoothing_rate.bound_logits, _RATE + "logits_of_tokens_in_a_ball",
    ),
    Statement(
        "AttnScale", "text after theorem 3, small values",
        r"$\Vert W_V\Vert_2 < 1 / \sqrt n$ makes high frequencies decay.",
        "holds", "",
        smoothing_rate.check_decay, _RATE + "the_conditions_that_imply_a_decay",
    ),
    Statement(
        "AttnScale", "text after theorem 3, sufficient condition",
        r"$\alpha + \log \Vert W_V\Vert_2 \le \frac{1}{2} \log \frac{n - 1}{2}$ makes them decay.",
        "fails", r"$\alpha + \log \Vert W_V\Vert_2 < 0$ does.",
        smoothing_rate.check_decay, _RATE + "the_printed_condition_for_a_decay_fails",
    ),
    Statement(
        "AttnScale", "proposition 4",
        r"$H$ heads have the factor of theorem 3 times $\sigma_1 \sigma_2 H$.",
        "holds", "",
        smoothing_rate.bound_multi_head_smoothing,
        _RATE + "propositions_4_to_6_bound_the_literal_block",
    ),
    Statement(
        "AttnScale", "proposition 5",
        "A residual adds 1 to the factor.",
        "holds", "",
        smoothing_rate.bound_residual_smoothing,
        _RATE + "propositions_4_to_6_bound_the_literal_block",
    ),
    Statement(
        "AttnScale", "section 2.3, residual",
        "A residual keeps high frequencies from vanishing, as its factor exceeds 1.",
        "fails", "an upper bound keeps nothing. A lower bound does where attention contracts.",
        smoothing_rate.bound_residual_smoothing,
        _RATE + "a_residual_bound_above_1_keeps_no_high_frequency",
    ),
    Statement(
        "AttnScale", "proposition 6",
        r"A feed-forward layer multiplies the factor by its Lipschitz constant $\sigma_3$.",
        "holds", "",
        smoothing_rate.bound_block_smoothing, _RATE + "propositions_4_to_6_bound_the_literal_block",
    ),
    Statement(
        "AttnScale", "lemma 7",
        r"The mean token is the nearest constant: $\Vert\mathrm{HC}[X]\Vert_F \le "
        r"\Vert X - 1 z^\top\Vert_F$.",
        "holds", "",
        low_pass.bound_distance_to_constant, _LOW + "lemma_7_the_mean_is_the_nearest_constant",
    ),
    Statement(
        "AttnScale", "lemma 8",
        r"$\frac{1}{n} 1 1^\top$ is the largest low-pass part of $A$: $\beta^* = 1$.",
        "holds", "",
        low_pass.fit_low_pass_part, _LOW + "lemma_8_the_low_pass_part_is_the_uniform_map",
    ),
    Statement(
        "AttnScale", "remark D.1",
        r"$\Vert a_i^\top A - \pi^\top\Vert \le \lambda \Vert a_i - \pi\Vert$ with "
        r"$\lambda < 1$, and $A^l \to 1 \pi^\top$.",
        "holds if", r"the norm is that of $\ell_1$, where $\lambda$ is Dobrushin's coefficient. "
        "In the Euclidean norm a distance may grow.",
        low_pass.bound_stationary_distance, _LOW + "remark_d1_holds_in_the_norm_of_l1",
    ),
    Statement(
        "AttnScale", "remark D.2",
        "Eq. 12 of Dong et al. has a counterexample, 4 > 3.",
        "holds", "",
        low_pass.bound_rank_one_product, _LOW + "remark_d2_refutes_the_bound_of_dong_et_al",
    ),
    Statement(
        "AttnScale", "remark D.3, logistic attention",
        r"$\alpha \le \lvert (\Vert u_K\Vert + \Vert u_Q\Vert) \gamma + b \rvert$.",
        "fails", r"true for $b \ge 0$; $\lvert b \rvert$ outside of the sum is true for all.",
        smoothing_rate.bound_logistic_logits,
        _RATE + "remark_d3_logistic_as_printed_fails_for_a_negative_b",
    ),
    Statement(
        "AttnScale", "remark D.3, distance attention",
        r"$\alpha \le (\Vert W_K\Vert_2 + \Vert W_Q\Vert_2)^2 \gamma^2 / \tau$.",
        "holds", "",
        smoothing_rate.bound_distance_logits, _RATE + "logits_of_tokens_in_a_ball",
    ),
    Statement(
        "AttnScale", "section 2, Fourier matrix",
        r"$F_{kl} \propto e^{2 \pi i k l}$, and $F^{-1} = F$ (appendix A).",
        "fails", r"$F_{kl} = e^{-2 \pi i k l / n} / \sqrt n$ and $F^{-1} = \bar F^\top$. AGF and "
        "Record straight print the same exponent.",
        low_pass.build_fourier_matrix,
        _LOW + "the_fourier_matrix_splits_off_the_mean_and_the_printed_one_cannot",
    ),
)  # fmt: skip
