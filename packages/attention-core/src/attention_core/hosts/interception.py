"""A mode that filters the one attention map of a module's forward pass.

The map is either inside a call of `scaled_dot_product_attention`, or it is formed by a softmax and
multiplied by the values, with dropout, a mask of heads or a cast in between.
"""

from collections.abc import Callable
from functools import partial
from string import ascii_uppercase
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attention_core.filters import AttnScale, Plain, ReAttention
from attention_core.hosts.adapter import find_active, find_H_dropout
from attention_core.kernels.common import apply_kernel, postprocess
from attention_core.operators import Host, Softmax
from attention_core.operators.base import allowed_pairs, masked_mean, read_mask

MERGED_AXES = 3  # a map is (B H, N, N)
OPERANDS = 2  # in a product
TRANSPOSES = ("transpose", "permute", "swapaxes", "swapdims", "movedim", "__get__")  # as of mT
SUMS = ("add", "__add__", "__radd__", "__iadd__", "add_")
SOFT_MASK = -100  # what Swin adds for pairs of two regions in a shifted window
SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
EINSUM = (torch.einsum, torch.functional.einsum)
PRODUCTS = ("matmul", "bmm", "__matmul__", "linalg_matmul")
# functions that turn a map (..., N, N) into the map that is applied
MAP_FUNCTIONS = (
    *("dropout", "conv2d", "mul", "__mul__", "multiply", "masked_fill", "nan_to_num"),
    *("div", "__truediv__", "true_divide", "divide"),
    *("to", "type", "type_as", "float", "double", "half", "bfloat16"),
    *("view", "view_as", "reshape", "contiguous", "clone"),
)


class FormedMap(NamedTuple):
    """A tensor that a module formed: its map (..., N, M), the logits of the map, or A^T."""

    tensor: Tensor
    map: Tensor
    logits: Tensor
    is_transposed: bool = False


class FilterMap(TorchFunctionMode):
    """Replace the product of a module's map and its values by the filter of the map.

    The lists, of products, maps and addends, are the caller's: torch.compile forgets a mode's.
    """

    def __init__(
        self,
        module: Any,
        products: list[str],
        formed: list[FormedMap],
        addends: list[tuple[Tensor, torch.Size]],
        make_cached: Callable[[Any, Tensor, int], Any] | None = None,
        x: Any = None,
    ) -> None:
        super().__init__()
        self.make_cached, self.x, self.kernel = make_cached, x, getattr(module, "kernel", None)
        self.module, self.products, self.formed, self.addends = module, products, formed, addends
        self.owner, self.state = module.host_class.__name__, _read_autograd_state()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        func = torch.unflatten if func is Tensor.unflatten else func  # which no compiler traces
        filter = self._find_product(func, args, kwargs)
        if filter is not None:
            self.products.append(func.__name__)
            return filter()
        y: Any = func(*args, **kwargs)
        self._follow_map(func, y, args, kwargs)
        return y

    def _find_product(self, func: Any, args: Any, kwargs: Any) -> Callable[[], Tensor] | None:
        """Return the filter that replaces a call, None for a call that applies no map."""
        if func is F.scaled_dot_product_attention:
            return partial(self._filter_call, *args, **kwargs)
        if func in EINSUM and len(args) == 1 + OPERANDS and any(map(self._find_formed, args[1:])):
            return partial(self._filter_einsum, *args)
        if func.__name__ in PRODUCTS:
            left, right = args if len(args) == OPERANDS else (*args, *kwargs.values())
            if (formed := self._find_formed(left)) and not formed.is_transposed:
                return partial(self._filter_product, formed, right)
            if (formed := self._find_formed(right)) and formed.is_transposed:
                # contiguous, as hosts view it
                return lambda: self._filter_product(formed, left.mT).mT.contiguous()
        return None

    def _follow_map(self, func: Any, y: Any, args: Any, kwargs: Any) -> None:
        """Remember what a call returned, if that is a map."""
        formed = self._find_formed(args[0] if args else None)
        if func.__name__ in SUMS:
            fits = (x for x in args if isinstance(x, Tensor) and x.shape[-2:] == y.shape[-2:])
            self.addends.extend((x, y.shape) for x in fits if not x.requires_grad)
        elif func in SOFTMAX:
            logits = args[0] if args else kwargs["input"]
            dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
            if dim in (-1, y.ndim - 1) and y.ndim >= MERGED_AXES:
                self.formed.append(FormedMap(y, y, logits))
        elif formed is None:
            return
        elif func.__name__ in TRANSPOSES and isinstance(y, Tensor):
            swapped = formed.tensor.mT
            if (y.shape, y.stride()) == (swapped.shape, swapped.stride()):
                is_transposed = not formed.is_transposed
                self.formed.append(formed._replace(tensor=y, is_transposed=is_transposed))
        elif func.__name__ in MAP_FUNCTIONS and not formed.is_transposed:
            if func is F.dropout and y is not args[0] and find_H_dropout(self.module, 1.0):
                raise ValueError(f"{self.owner} drops entries of its map: dropout_on_H cannot act")
            is_map = y.ndim >= MERGED_AXES and y.shape[-2:] == formed.map.shape[-2:]
            self.formed.extend([FormedMap(y, y, formed.logits)] if is_map else [])

    def _find_formed(self, x: Any) -> FormedMap | None:
        return next((formed for formed in self.formed if formed.tensor is x), None)

    def _filter_product(self, formed: FormedMap, values: Tensor) -> Tensor:
        if self.kernel is not None:
            raise ValueError(f"{self.owner} takes a kernel where its fused_attn is True")
        A, logits, v = (self._split_heads(x) for x in (formed.map, formed.logits, values))

        def average(u: Tensor) -> Tensor:
            allowed = allowed_pairs(logits).expand(A.shape)
            for addend, shape in self.addends:
                if shape.numel() == A.numel() and shape[-3:] == A.shape[-3:]:
                    allowed = allowed & (addend != SOFT_MASK).expand(shape).reshape(A.shape)
            return masked_mean(u, allowed)

        host = Host(lambda u: A @ u, like=v, average=average)
        if isinstance(find_active(self.module.filter), AttnScale | ReAttention):
            host.mask = allowed_pairs(logits)  # they look for pairs that they would fill
        y = self._filter(host, v, A.shape[-2:])
        if formed.map.ndim == MERGED_AXES:
            return y.flatten(0, 1)
        return y.movedim(-3, self.module.head_axis)

    def _filter_einsum(self, equation: str, *operands: Tensor) -> Tensor:
        """Filter a product whose values or result have other axes than (..., M, D)."""
        inputs, _, y_axes = equation.replace(" ", "").partition("->")
        pairs = [*zip(operands, inputs.split(","), strict=True)]
        (A, map_axes), (values, v_axes) = pairs if self._find_formed(operands[0]) else pairs[::-1]
        more = ascii_uppercase[: A.ndim - len(map_axes.replace("...", ""))]
        map_axes, v_axes, y_axes = (x.replace("...", more) for x in (map_axes, v_axes, y_axes))
        *leading, query, key = [*map_axes]
        v_order, y_order = ([*leading, axis, *{*v_axes} - {*map_axes}] for axis in (key, query))
        formed = self._find_formed(A)
        fits = (sorted(v_axes), sorted(y_axes)) == (sorted(v_order), sorted(y_order))
        if formed is None or formed.is_transposed or not fits or len(v_order) != A.ndim:
            raise ValueError(
                f"{self.owner} applies its map by einsum({equation!r}), which no filter follows: "
                "write it as '...ij,...jd->...id', unless it mixes heads"
            )
        y = self._filter_product(formed, values.permute([*map(v_axes.index, v_order)]))
        return y.permute([*map(y_order.index, y_axes)])

    def _split_heads(self, x: Tensor) -> Tensor:
        """Return a map or values as (..., H, N, M) or (..., H, M, D)."""
        num_heads = self.module.count_heads(self.module)
        if x.ndim == MERGED_AXES and x.shape[0] % num_heads == 0:
            return x.reshape(-1, num_heads, *x.shape[1:])
        if x.ndim > MERGED_AXES:
            x = x.movedim(self.module.head_axis, -3)
            if x.shape[-3] in (1, num_heads):
                return x
        raise ValueError(
            f"{self.owner} forms a map of shape {tuple(x.shape)}, whose heads are not its "
            f"{num_heads}"
        )

    def _filter_call(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if query.ndim <= MERGED_AXES and not self.module.is_known:
            raise ValueError(
                f"{self.owner} calls scaled_dot_product_attention with queries of {query.ndim} "
                "axes, and its filter needs (batch, heads, tokens, channels)"
            )
        q, k, v = (self._move_heads(x) for x in (query, key, value))
        if q.shape[-3] != k.shape[-3]:  # groups of heads share keys and values
            k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
        mask = read_mask(attn_mask, q.device)
        if mask is not None and mask.ndim == query.ndim:
            mask = self._move_heads(mask)

        def attend(u: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, u, mask, dropout_p, is_causal, scale=scale)

        A: Any = Host(attend, like=v)
        is_square = q.shape[-2] == k.shape[-2]
        if not isinstance(self.module.filter, Plain) and (is_square or self.make_cached):
            A = Softmax(q, k, mask, is_causal, dropout_p, scale)
        if self.kernel is not None:
            A = apply_kernel(self.kernel, (q, k), self.x, mask, is_causal)
        y = postprocess(self.kernel, self._filter(A, v, (q.shape[-2], k.shape[-2])))
        axis = self.module.head_axis
        return y.flatten(0, 1) if axis == 0 else y.movedim(-3, axis)

    def _filter(self, A: Any, v: Tensor, lengths: tuple[int, ...]) -> Tensor:
        queries, keys = lengths
        if self.state and _read_autograd_state() not in ((), self.state):
            raise ValueError(
                f"{self.owner} checkpoints its map inside of its forward, where no gradient can "
                "pass the filter: checkpoint the whole module instead"
            )
        filter: Callable[[Any, Tensor], Tensor] = self.module.filter  # a call, so that hooks see it
        if self.make_cached is not None:
            cached = self.make_cached(A, v, queries)
            return filter(cached, cached.new)
        if queries != keys and not isinstance(self.module.filter, Plain):
            raise ValueError(
                f"{self.owner} has a map of {queries} queries and {keys} keys, which has no "
                "powers: leave it out by layers= or where=, and use no cache (use_cache=False)"
            )
        return filter(A, v)

    def _move_heads(self, x: Tensor) -> Tensor:
        """Return queries, keys, values or a mask of the host as (..., H, N, D)."""
        axis = self.module.head_axis
        if axis == 0:
            return x.unflatten(0, (-1, self.module.count_heads(self.module)))  # type: ignore[no-untyped-call]
        return x.movedim(axis, -3)


def _read_autograd_state() -> tuple[Any, ...]:
    """Return what checkpointing changes: the gradient mode and the hooks of saved tensors."""
    if torch.compiler.is_compiling():
        return ()
    return torch.is_grad_enabled(), torch._C._autograd._top_saved_tensors_default_hooks(False)
