"""Cases of the filter contract: filters, masks, and operands whose sizes all differ.

A new filter adds one line to CASES and one function to reference.py.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from attention_core import GFSA, AttnScale, CenteredAttention, Plain, Polynomial, ReAttention
from attention_core.operators import Softmax, apply_polynomial
from torch import Tensor, nn

from tests.core import reference

B, H, N, D = 2, 3, 37, 5
TIGHT = {"rtol": 1e-9, "atol": 1e-10}


class Case(NamedTuple):
    """A filter, its literal equation, and two properties that some filters lack."""

    name: str
    make: Callable[[int], nn.Module]
    reference: Callable[[Tensor, Tensor, Sequence[Tensor]], Tensor]
    starts_as_A: bool = True
    square_only: bool = True


def _polynomial(basis: str, K: int, **ab: float) -> Case:
    name = "-".join(["polynomial", basis, *map(str, ab.values())])
    make = partial(Polynomial, K=K, basis=basis, **ab)
    return Case(name, make, partial(reference.polynomial, basis=basis, **ab))


CASES = [
    Case("plain", Plain, reference.plain, square_only=False),
    Case("gfsa", GFSA, partial(reference.gfsa, K=3)),
    Case("gfsa-1", partial(GFSA, K=1), partial(reference.gfsa, K=1)),
    Case("gfsa-7-all", partial(GFSA, K=7, learn=("w0", "w1", "wK")), partial(reference.gfsa, K=7)),
    Case("attnscale", AttnScale, reference.attnscale),
    Case("centered", CenteredAttention, reference.centered, starts_as_A=False),
    _polynomial("monomial", K=4),
    _polynomial("jacobi", K=5, a=1.0, b=0.2),
    _polynomial("jacobi", K=4, a=1.5, b=-1.5),
    _polynomial("chebyshev", K=3),
    _polynomial("legendre", K=1),
]
# tested by filters/test_reattention.py: it mixes heads and normalizes over the batch
OUTSIDE_CONTRACT = {ReAttention}


def all_cases(cases: list[Any] = CASES) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def draw_weights(module: nn.Module) -> Any:
    """Return the module in float64, all of its weights random."""
    for weight in module.double().parameters():
        nn.init.normal_(weight)
    return module


def randomized(case: Case) -> nn.Module:
    """Return the filter in float64 with random coefficients, all of them learned."""
    return draw_weights(case.make(H).requires_grad_())


def reference_map(case: Case, filter: nn.Module, A: Tensor, J: Tensor) -> Tensor:
    """Return the map of a filter by its literal equation."""
    weights = dict(sorted(filter.state_dict(keep_vars=True).items())).values()
    return case.reference(A, J, [weight.view(-1, 1, 1) for weight in weights])


def qkv(n: int = N, heads: int = H) -> Iterator[Tensor]:
    return (torch.randn(B, heads, n, D).double().requires_grad_() for _ in range(3))


def draw_kept(p: float, heads: int = H, n: int = N, batch: int = B, once: bool = True) -> Tensor:
    """Return the entries that the next map of these sizes keeps under dropout; draw nothing.

    A polynomial forms its maps in other pieces than one application, which is `once`.
    """
    state, zeros = torch.get_rng_state(), torch.zeros(batch, heads, n, 1).double()
    A = Softmax(zeros, zeros, dropout=p)
    first = torch.ones(1, 1, 1).double()
    y = A @ A.eye() if once else apply_polynomial(A, A.eye(), [0 * first, first, 0 * first])
    kept = y != 0
    torch.set_rng_state(state)
    return kept.double().contiguous()


def gradients(leaves: list[Tensor], *outputs: Tensor, **more: bool) -> list[tuple[Tensor, ...]]:
    """Return the gradients of each output under the same random weight."""
    weight = torch.randn_like(outputs[0])
    options = {"retain_graph": True, "materialize_grads": True} | more
    return [torch.autograd.grad(y, leaves, weight, **options) for y in outputs]


MASKS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": lambda: {},
    "padding": lambda: {"mask": (torch.arange(N) < torch.tensor([[29], [N]]))[:, None, None]},
    "causal": lambda: {"is_causal": True},
    "bias": lambda: {"mask": torch.randn(1, H, N, N).double().requires_grad_()},
    "scale": lambda: {"scale": 0.7},
}

LOWEST = torch.finfo(torch.float32).min
FORBIDDEN = {
    "boolean": lambda valid: valid,
    "infinite": lambda valid: torch.zeros(valid.shape).masked_fill(~valid, -torch.inf),
    "finfo.min": lambda valid: torch.zeros(valid.shape).masked_fill(~valid, LOWEST),
}
