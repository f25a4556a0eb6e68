"""Three-term recurrences over an operator, and their gradient in a map that is formed."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Step = tuple[float, float, float]


def evaluate_polynomial(
    steps: Sequence[Step],
    theta: Sequence[Tensor],
    apply: Callable[[Tensor], Tensor],
    v: Tensor,
) -> Tensor:
    r"""Weighted sum of the basis polynomials of an operator, applied to values.

    .. math:: \sum_{k=0}^{K} \theta_k T_k(A) v, \qquad
        T_0 = 1, \quad T_k(x) = (a_k x + b_k) T_{k-1}(x) - c_k T_{k-2}(x)

    Shapes: `apply` maps v (any shape) to `A v`; each theta_k broadcasts to v; a step is
    (a_k, b_k, c_k).

    Source: eq. 6 of https://arxiv.org/abs/2505.08516

    >>> x, one = torch.tensor([0.0, 0.5, 1.0]), torch.ones(3)
    >>> steps, theta = [(1, 0, 0), (1.5, 0, 0.5)], [0 * one, 0 * one, one]
    >>> evaluate_polynomial(steps, theta, lambda v: x * v, one)
    tensor([-0.5000, -0.1250,  1.0000])
    """
    first, *others = basis_terms(steps, apply, v)
    total = theta[0] * first
    for term, weight in zip(others, theta[1:], strict=True):
        total = torch.addcmul(total, weight, term)
    return total


def basis_terms(
    steps: Sequence[Step], apply: Callable[[Tensor], Tensor], v: Tensor
) -> Iterator[Tensor]:
    """The basis polynomials themselves, applied to values: T_0(A) v, then one for each step.

    >>> terms = basis_terms([(2, 0, 0), (2, 0, 1)], lambda v: 3 * v, torch.ones(()))
    >>> [term.item() for term in terms]
    [1.0, 6.0, 35.0]
    """
    older, newer = v, v
    yield v
    for step in steps:
        older, newer = newer, _next(step, apply(newer), newer, older)
        yield newer


def _next(step: Step, Au: Tensor, newer: Tensor, older: Tensor) -> Tensor:
    a, b, c = step
    if a + b == 1 and Au.dtype == newer.dtype:  # autocast may have lowered one
        term = Au if b == 0 else torch.lerp(newer, Au, a)
    else:
        term = (a * Au).add(newer, alpha=b) if b else a * Au
    return term.sub(older, alpha=c) if c else term


def adjoint(
    A: Tensor,
    terms: Sequence[Tensor],
    g: Tensor,
    steps: Sequence[Step],
    theta: Sequence[Tensor],
    dtheta: Sequence[Tensor | None],
) -> tuple[Tensor, Tensor]:
    r"""Gradients of A and v, those of theta added: the recurrence backwards, by A's transpose.

    Shapes: A (B, H, N, N), g (B, H, N, D), and so the terms of the basis, of which the last is not
    needed; no entry of theta differs by token.

    Source: https://doi.org/10.1090/S0025-5718-1955-0071856-0 (Clenshaw's recurrence)

    >>> A, v = torch.eye(2).view(1, 1, 2, 2), torch.ones(1, 1, 2, 1)
    >>> one = torch.ones(1, 1, 1)
    >>> dA, dv = adjoint(A, [v], v, [(1, 0, 0)], [one, one], [None, None])
    >>> dA.tolist(), dv.flatten().tolist()
    ([[[[1.0, 1.0], [1.0, 1.0]]]], [2.0, 2.0])
    """
    a, b, c = steps[-1]
    # the last term meets g through A^T g, which is needed anyway: one application of A less
    last = _next((a, b, 0.0), A.mT @ g, g, g)
    for total, term in zip(dtheta, terms, strict=False):
        _add_product(total, g, term)
    _add_product(dtheta[-1], last, terms[-1])
    if c:
        _add_product(dtheta[-1], -c * g, terms[-2])
    # Clenshaw's recurrence: the gradients of the terms, last first
    found = [theta[-1] * g, torch.addcmul(theta[-1] * last, theta[-2], g)]
    for i in range(len(steps) - 2, -1, -1):
        older = _next((*steps[i][:2], steps[i + 1][2]), A.mT @ found[-1], found[-1], found[-2])
        found.append(torch.addcmul(older, theta[i], g))
    # one product: those of narrow heads are slow
    left = torch.cat(
        [d if a == 1 else a * d for (a, _, _), d in zip(steps[::-1], found[:-1], strict=True)], -1
    )
    return left @ torch.cat(list(terms[::-1]), -1).mT, found[-1]


def _add_product(total: Tensor | None, x: Tensor, y: Tensor) -> None:
    if total is not None:
        total += (x * y).sum_to_size(total.shape)
