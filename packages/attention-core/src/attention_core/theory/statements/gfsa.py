"""Statements of https://arxiv.org/abs/2312.04234v1 (GFSA) and of its submission to ICLR."""

from attention_core.theory import polynomial_filters, singular_value_filters
from attention_core.theory.statements.statement import Statement

_TEST = "test_polynomial_filters.py::test_"

GFSA_STATEMENTS = (
    Statement(
        "GFSA", "theorem 3.1",
        r"$E_K = \Vert A^K - (A + (K - 1)(A^2 - A))\Vert_\infty \le 2 K$.",
        "holds", r"$2(K - 1)$ is true too, and attained; so is "
        r"$\frac{(K-1)(K-2)}{2} \Vert A (I - A)^2\Vert_\infty$.",
        polynomial_filters.bound_power_error, _TEST + "theorem_3_1_and_the_sharper_bound",
    ),
    Statement(
        "GFSA", "proof of theorem 3.1",
        r"$\Vert A^k\Vert_\infty \le \Vert A\Vert_\infty^k \le 1$, and the triangle inequality.",
        "holds", "",
        polynomial_filters.bound_power_norm, _TEST + "the_steps_of_its_proof",
    ),
    Statement(
        "GFSA", "eq. 4",
        "$A + (K - 1)(A^2 - A)$ is a first-order Taylor approximation of $A^K$.",
        "holds if", "read as the line through $K = 1$ and $2$, where it is exact: a difference "
        "takes the place of the derivative. Its error grows with $K$.",
        polynomial_filters.bound_power_error,
        _TEST + "the_approximation_is_exact_for_two_orders_and_drifts_beyond",
    ),
    Statement(
        "GFSA", "section 3.3, GCN",
        "GFSA with $K = 1$, $w_0 = 0$, $w_1 = 1$ is a GCN.",
        "holds if", "$w_K = 0$; else it is $(1 + w_K) A$.",
        polynomial_filters.match_gcn, _TEST + "gcn_as_printed_leaves_a_factor",
    ),
    Statement(
        "GFSA", "section 3.3, ChebNet",
        "GFSA without its high-order term is ChebNet of order 1.",
        "holds", "",
        polynomial_filters.match_chebnet, _TEST + "reductions_are_exact",
    ),
    Statement(
        "GFSA", "section 3.3, GPR-GNN",
        "GFSA up to order 1 is GPR-GNN.",
        "holds", "with $w_K$ it is GPR-GNN of order 2, for every $K \\ge 2$.",
        polynomial_filters.match_gpr_gnn, _TEST + "gfsa_of_any_order_is_a_polynomial_of_order_two",
    ),
    Statement(
        "GFSA", "section 3.3, GREAD",
        r"GFSA with a negative $w_K$ alone can become $A + \beta (A - A^2)$.",
        "fails", r"it can with $w_1 = 1 + \frac{\beta}{K - 1}$ and $w_K = -\frac{\beta}{K - 1}$.",
        polynomial_filters.match_gread, _TEST + "gread_as_printed_needs_w1",
    ),
    Statement(
        "GFSA", "section 2.2 and appendix N",
        "A softmax map is a symmetrically normalized adjacency matrix.",
        "fails", "it is the random-walk normalization; the two agree where all degrees are equal.",
        polynomial_filters.normalize_symmetrically,
        _TEST + "a_softmax_map_is_no_symmetric_normalization_unless_all_degrees_are_equal",
    ),
    Statement(
        "GFSA", "appendix L",
        "GFSA takes $O(n^2 d + n^3)$ operations.",
        "holds if", "$A^2$ is formed. $A (A v)$ takes $O(n^2 d)$.",
        singular_value_filters.count_multiplications,
        "test_singular_value_filters.py::test_the_costs_are_those_of_the_matrix_products",
    ),
)  # fmt: skip
