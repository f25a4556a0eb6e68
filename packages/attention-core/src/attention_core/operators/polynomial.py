"""Polynomials of a map, by a three-term recurrence over values: no power of A is formed."""

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor, addcmul, lerp

from attention_core.operators.base import Operator, propagate

Step = tuple[float, float, float]


def evaluate_polynomial(
    steps: Sequence[Step],
    theta: Sequence[Tensor],
    apply: Callable[[Tensor], Tensor],
    v: Tensor,
) -> Tensor:
    r"""Evaluate a weighted sum of basis polynomials of an operator, applied to values.

    .. math:: \sum_{k=0}^{K} \theta_k T_k(A) v, \qquad
        T_0 = 1, \quad T_k(x) = (a_k x + b_k) T_{k-1}(x) - c_k T_{k-2}(x)

    Shapes: `apply` maps v (any shape) to `A v`; each theta_k broadcasts to v; a step is
    (a_k, b_k, c_k).

    Source: eq. 6 of https://arxiv.org/abs/2505.08516

    >>> import torch
    >>> x, one = torch.tensor([0.0, 0.5, 1.0]), torch.ones(3)
    >>> steps, theta = [(1, 0, 0), (1.5, 0, 0.5)], [0 * one, 0 * one, one]
    >>> evaluate_polynomial(steps, theta, lambda v: x * v, one)
    tensor([-0.5000, -0.1250,  1.0000])
    """
    first, *others = basis_terms(steps, apply, v)
    total = theta[0] * first
    for term, weight in zip(others, theta[1:], strict=True):
        total = addcmul(total, weight, term)
    return total


def basis_terms(
    steps: Sequence[Step], apply: Callable[[Tensor], Tensor], v: Tensor
) -> Iterator[Tensor]:
    """Yield the basis polynomials of an operator applied to values: T_0(A) v, T_1(A) v, ..."""
    older, newer = v, v
    yield v
    for step in steps:
        older, newer = newer, combine_step(step, apply(newer), newer, older)
        yield newer


def combine_step(step: Step, Au: Tensor, newer: Tensor, older: Tensor) -> Tensor:
    """Return a A u + b u - c w for u = `newer` and w = `older`, in few operations."""
    a, b, c = step
    if a + b == 1 and Au.dtype == newer.dtype:  # autocast may have lowered the precision of one
        term = Au if b == 0 else lerp(newer, Au, a)
    else:
        term = (a * Au).add(newer, alpha=b) if b else a * Au
    return term.sub(older, alpha=c) if c else term


def apply_polynomial(
    A: Operator, v: Tensor, theta: Sequence[Tensor], steps: Sequence[Step]
) -> Tensor:
    r"""Apply a polynomial of a square map to values by K applications of A.

    Each application is one fused call. On a CPU `Softmax` forms a map of moderate size once for all
    applications, since K fused calls would compute its softmax K times; see `operators._cpu`.

    Shapes: v (B, H, N, D) -> (B, H, N, D); K steps and K + 1 weights, broadcastable to v.

    Raises ValueError with the two lengths where A is not square, and for another number of weights.

    >>> import torch
    >>> A, one = torch.full((1, 2, 2), 0.5), torch.ones(1, 1, 1)
    >>> apply_polynomial(A, torch.tensor([[[1.0], [3.0]]]), [0 * one, one], [(1, 0, 0)]).flatten()
    tensor([2., 2.])
    """
    if len(theta) != len(steps) + 1:
        raise ValueError(f"{len(steps)} steps need one weight more, got {len(theta)} weights")
    if hasattr(A, "polynomial") and (y := A.polynomial(v, theta, steps)) is not None:
        return y
    return evaluate_polynomial(steps, theta, lambda u: propagate(A, u), v)
