"""Polynomials of a map by Horner's scheme, and of numbers by a three-term recurrence."""

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor, addcmul, lerp

from attention_core.operators.base import Operator, propagate

Step = tuple[float, float, float]
Apply = Callable[[Tensor], Tensor]


def evaluate_polynomial(
    steps: Sequence[Step], theta: Sequence[Tensor], apply: Apply, v: Tensor
) -> Tensor:
    r"""Evaluate a weighted sum of basis polynomials of an operator, applied to values.

    .. math:: \sum_{k=0}^{K} \theta_k T_k(A) v, \qquad
        T_0 = 1, \quad T_k(x) = (a_k x + b_k) T_{k-1}(x) - c_k T_{k-2}(x)

    Shapes: `apply` maps v (any shape) to `A v`; theta_k broadcasts to v; steps (a_k, b_k, c_k).

    Source: eq. 6 of https://arxiv.org/abs/2505.08516
    """
    first, *others = basis_terms(steps, apply, v)
    total = theta[0] * first
    for term, weight in zip(others, theta[1:], strict=True):
        total = addcmul(total, weight, term)
    return total


def basis_terms(steps: Sequence[Step], apply: Apply, v: Tensor) -> Iterator[Tensor]:
    """Yield the basis polynomials of an operator applied to values: T_0(A) v, T_1(A) v, ..."""
    older, newer = v, v
    yield v
    for a, b, c in steps:  # in few operations
        Au = apply(newer)
        if a + b == 1 and Au.dtype == newer.dtype:  # autocast may have lowered the precision of one
            term = Au if b == 0 else lerp(newer, Au, a)
        else:
            term = (a * Au).add(newer, alpha=b) if b else a * Au
        older, newer = newer, term.sub(older, alpha=c) if c else term
        yield newer


def horner_terms(
    apply: Apply, v: Tensor, coefficients: Sequence[Tensor], steps: Sequence[Step]
) -> Iterator[Tensor]:
    """Yield the sums of Horner's scheme, or of Clenshaw's; the last is the polynomial's value.

    Source: https://doi.org/10.1090/S0025-5718-1955-0071856-0 (Clenshaw's recurrence)
    """
    highest = coefficients[-1]
    older, newer, older_weight = v, highest * v, 0.0
    yield newer
    for i, (a, b, c) in enumerate(reversed(steps)):
        # A v first: a cache has the past values, and not the product
        Au = apply(newer) if i else highest * apply(v)
        term = addcmul(Au if a == 1 else a * Au, coefficients[-2 - i], v)
        term = term.add(newer, alpha=b) if b else term
        term = term.sub(older, alpha=older_weight) if older_weight else term
        older, newer, older_weight = newer, term, c
        yield newer


def apply_polynomial(
    A: Operator, v: Tensor, coefficients: Sequence[Tensor], steps: Sequence[Step] | None = None
) -> Tensor:
    r"""Apply a polynomial of a square map to values by Horner's scheme: no power of A is formed.

    .. math:: \sum_{k=0}^{K} c_k A^k v = c_0 v + A (c_1 v + A (c_2 v + \dots))

    With the steps of a basis, c_k are the coefficients of its polynomials (see
    `evaluate_polynomial`). Each power takes one application of A.

    Shapes: v (B, H, N, D) -> (B, H, N, D); c_k broadcasts to v, one value for all tokens.

    >>> import torch
    >>> A, one = torch.full((1, 2, 2), 0.5), torch.ones(1, 1, 1)
    >>> apply_polynomial(A, torch.tensor([[[1.0], [3.0]]]), [0 * one, one]).flatten()
    tensor([2., 2.])
    """
    if steps is None:
        steps = [(1.0, 0.0, 0.0)] * (len(coefficients) - 1)
    if hasattr(A, "polynomial") and (y := A.polynomial(v, coefficients, steps)) is not None:
        return y
    *_, y = horner_terms(lambda u: propagate(A, u), v, coefficients, steps)
    return y
