"""Statements of https://arxiv.org/abs/2505.08516 (AGF)."""

from attention_core.filters.polynomial import recurrence_steps
from attention_core.theory import low_pass, singular_value_filters
from attention_core.theory.statements.statement import Statement

_TEST = "test_singular_value_filters.py::test_"

AGF_STATEMENTS = (
    Statement(
        "AGF", "theorem 1",
        "Every softmax map is a low-pass filter, for the $c$ lowest frequencies.",
        "holds if", r"$\pi^\top x \ne 0$, as theorem 1 of AttnScale.",
        low_pass.measure_low_pass_decay,
        "test_low_pass.py::test_theorem_1_of_agf_counts_more_low_frequencies",
    ),
    Statement(
        "AGF", "eqs. 4 and 5",
        r"$U \Sigma^\alpha V^\top$ is a power of $A$, and $U g(\Sigma) V^\top$ a polynomial of it.",
        "holds if", "$A$ is symmetric without negative eigenvalues; a definition else.",
        singular_value_filters.measure_power_gap,
        _TEST + "a_power_of_singular_values_is_that_of_a_symmetric_semidefinite_map",
    ),
    Statement(
        "AGF", "theorem 2, largest singular value",
        r"$\sigma_1 = 1$ (in its proof; $\Vert A\Vert \le 1$ in section 3.2).",
        "fails", r"$\sigma_1 \ge 1$, and is 1 only if the columns of $A$ sum to 1. "
        "`normalize_symmetrically` gives a map that has it.",
        singular_value_filters.bound_spectral_norm, _TEST + "the_spectral_norm_of_random_maps",
    ),
    Statement(
        "AGF", "theorem 2, first half",
        r"$\theta_k \ge 0$ gives $\lvert g(\sigma_i) / g(\sigma_1)\rvert < 1$.",
        "holds", r"for monomials and any $\sigma_1$, and for Jacobi polynomials on $[0, 1]$ with "
        r"the paper's grid, $a$ from 1 to 2; not with $a = -\frac{1}{2}$ and $b \ge 0$.",
        singular_value_filters.measure_gain_ratios,
        _TEST + "theorem_2_non_negative_coefficients_prefer_the_largest_value",
    ),
    Statement(
        "AGF", "theorem 2, low-pass",
        "Such a filter is low-pass.",
        "fails", r"not in the sense of theorem 1: the vectors of $\sigma_1$ are not constant.",
        singular_value_filters.measure_gain_ratios,
        _TEST + "theorem_2_that_filter_is_not_low_pass_in_the_sense_of_theorem_1",
    ),
    Statement(
        "AGF", "theorem 2, second half",
        r"$\theta_k = (-\alpha)^k$ with $0 < \alpha < 1$ and a large $K$ is high-pass.",
        "holds if", r"$\alpha \sigma_1 < 1$; else the series diverges, and the ratios tend to 0.",
        singular_value_filters.measure_high_pass_ratios,
        _TEST + "theorem_2_alternating_coefficients_are_high_pass_where_the_series_converges",
    ),
    Statement(
        "AGF", "appendix F, orthogonality",
        r"Jacobi polynomials are orthogonal with the weight $(1 - x)^a (1 + x)^b$ on $[-1, 1]$.",
        "holds", "for $a, b > -1$, as printed. The runs use $b$ down to $-2$, and arguments in "
        "$(0, 1)$, where they are not orthogonal.",
        recurrence_steps,
        _TEST + "the_jacobi_basis_is_orthogonal_on_its_interval_and_not_where_it_is_used",
    ),
    Statement(
        "AGF", "eq. 24",
        r"$w_k = \frac{(2k+a+b)(2k+a+b+1)}{2k(k+a+b)}$.",
        "fails", "a misprint: the second factor is $2k+a+b-1$.",
        singular_value_filters.measure_jacobi_misprint, _TEST + "eq_24_is_misprinted",
    ),
    Statement(
        "AGF", "eq. 11",
        r"$\Vert V V^\top - I\Vert$ with $V$ of $n \times d$ and $I$ of $d \times d$ can vanish.",
        "fails", r"the sizes differ. $V^\top V$ fits; $V V^\top$ stays $\sqrt{n - d}$ from an "
        r"identity.",
        singular_value_filters.bound_orthogonality,
        _TEST + "eq_11_in_its_printed_sizes_cannot_vanish",
    ),
    Statement(
        "AGF", "section 3.5",
        "AGF takes $O(n d^2)$ time and $O(n d + d^2)$ memory.",
        "holds", "",
        singular_value_filters.count_multiplications,
        _TEST + "the_costs_are_those_of_the_matrix_products",
    ),
)  # fmt: skip
