"""The operator protocol, and the functions that filters use.

Shapes: B batch, H heads, N queries, M keys, D head width, r rank; values v are (B, H, M, D). A
filter of A needs a square map (N = M, self-attention). A plain tensor (B, H, N, M) is also an
operator; it has no mask, so that its average is over all keys.
"""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias

MASK_THRESHOLD = -9e3  # an additive mask at or below this value forbids the pair


@runtime_checkable
class Operator(Protocol):
    """Any object that maps values to values linearly by `A @ v`.

    Source: Shuman et al., https://arxiv.org/abs/1211.0053 (attention as a graph shift operator).
    """

    def __matmul__(self, v: Tensor, /) -> Tensor:
        """Apply the map to values (B, H, M, D), giving (B, H, N, D)."""


class ValueFreeOutput:
    """The output of a kernel without values (Primalformer): `A @ v` ignores v.

    Only `Plain` can apply it: `propagate` raises ValueError, since there is no map to filter.

    Shapes: output (B, H, N, D).
    """

    def __init__(self, output: Tensor) -> None:
        self.output = output

    def __matmul__(self, v: Tensor) -> Tensor:
        """Return the output; the values are not read."""
        return self.output

    def eye(self) -> Tensor:
        """Raise ValueError: an output that does not depend on values has no map."""
        raise ValueError("this kernel has no values, so that it has no map")


class LinearMap:
    """The base of maps that need not be formed; `mask` is (B, 1, 1, M) boolean or None.

    `like` is a tensor (B, H, M, any) of the batch, heads and tokens of the values.
    """

    mask: Tensor | None
    like: Tensor

    def __matmul__(self, v: Tensor) -> Tensor:
        """Apply the map to values, (B, H, M, D)."""
        raise NotImplementedError

    def eye(self) -> Tensor:
        """Return the identity as values, (B, H, M, M)."""
        return identity_like(self.like, self.like.shape[-2])

    def average(self, v: Tensor) -> Tensor:
        """Average v over the valid keys."""
        return masked_mean(v, self.mask)

    def dense(self) -> Tensor:
        """Return the map itself, (B, H, N, M), by applying it to the identity."""
        return apply_operator(self, self.eye())


def apply_operator(A: Operator, v: Tensor) -> Tensor:
    """Return `A @ v`; torch.compile can trace this call, but not `@` of our classes."""
    return A.__matmul__(v)


def average(A: Operator, v: Tensor) -> Tensor:
    r"""Average the values over the keys that each query may attend to: the low-pass part of A.

    .. math:: J v, \quad J_{ij} = [j \text{ allowed for } i] / |\text{allowed for } i|

    Shapes: v (B, H, M, D) -> (B, H, 1, D) where all queries share their keys, else (B, H, N, D).

    Source: Wang et al. 2022, eq. 7, https://arxiv.org/abs/2203.05962

    >>> average(torch.eye(2), torch.tensor([[1.0], [3.0]]))
    tensor([[2.]])
    """
    if isinstance(A, Tensor):
        return v.mean(-2, keepdim=True)
    return A.average(v)  # type: ignore[attr-defined]


def propagate(A: Operator, v: Tensor) -> Tensor:
    """Apply a square map: A v, of which filters take polynomials.

    Raises ValueError with the two lengths where A is not square, and for a `ValueFreeOutput`.

    Source: Choi et al. 2024, eq. 6, https://arxiv.org/abs/2312.04234v1
    """
    if isinstance(A, ValueFreeOutput):
        raise ValueError("a filter of A needs a map of values: this kernel has none; use Plain")
    if isinstance(A, Tensor):
        check_values(v, A.shape[-1])
    Av = apply_operator(A, v)
    if Av.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"a filter of A needs self-attention: got {Av.shape[-2]} queries and {v.shape[-2]} "
            "keys; use Plain for cross-attention and class attention"
        )
    return Av


def is_traced() -> bool:
    """Return True in a compiler, a trace or a transform of torch.func: they take plain calls."""
    is_tracing = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[no-untyped-call]
    return is_tracing or torch._C._are_functorch_transforms_active()


def can_recompute(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return True for self-attention in single or double precision, outside of transforms."""
    fits = q.ndim == 4 and q.shape == k.shape and q.shape[:3] == v.shape[:3] and q.numel() > 0
    is_wide = q.dtype == k.dtype == v.dtype and q.dtype in (torch.float32, torch.float64)
    is_plain_call = not is_traced() and not torch.is_autocast_enabled("cpu")
    return fits and is_wide and is_plain_call and type(v) is Tensor and q.device.type == "cpu"


def allowed_pairs(mask: Tensor) -> Tensor:
    """Return the pairs that a mask allows as a boolean tensor of the mask's shape.

    Libraries forbid a pair by -inf, finfo.min (transformers), -1e9 (LRA) or -1e4 (BERT), in any
    dtype; a bias (relative positions, Swin's soft -100) only lowers a logit and allows the pair.
    """
    if not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise TypeError(f"a mask must be boolean or additive, got {mask.dtype}: give mask.bool()")
    return mask if mask.dtype == torch.bool else ~(mask <= MASK_THRESHOLD)  # NaN stays a bias


def read_mask(mask: Any, device: torch.device) -> Any:
    """Return a mask whose values can be read: torch's CausalBias has none, (1, N, M) boolean."""
    return mask._materialize(device)[None] if isinstance(mask, CausalBias) else mask


def masked_mean(v: Tensor, valid: Tensor | None) -> Tensor:
    """Average over the valid tokens: over all where `valid` is None, zero where none is valid.

    Shapes: v (..., M, D), valid (..., N, M) boolean, with one row for all queries or one for each
    -> (..., N, D).

    Source: Wang et al. 2022, eq. 7, https://arxiv.org/abs/2203.05962
    """
    if valid is None:
        return v.mean(-2, keepdim=True)
    check_values(v, valid.shape[-1])
    ones = valid.to(torch.promote_types(v.dtype, torch.float32))
    return (ones / ones.sum(-1, keepdim=True).clamp(min=1)).to(v.dtype) @ v


def check_values(v: Tensor, num_keys: int) -> None:
    """Refuse values that are not one row a key, (..., M, D)."""
    if v.ndim < 2 or v.shape[-2] != num_keys:
        raise ValueError(f"a map of {num_keys} keys got values of shape {tuple(v.shape)}")


def identity_like(like: Tensor, size: int) -> Tensor:
    """Return the identity matrix as values, (..., size, size), with the leading axes of `like`."""
    eye = torch.eye(size, dtype=like.dtype, device=like.device)
    return eye.expand(*like.shape[:-2], size, size)
