"""Record what a forward pass shows of each attention call: its map, values, and block's tokens."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attention_core import spectral
from attention_core.filters.plain import Plain
from attention_core.hosts.selection import adapter_for
from attention_core.operators import ValueFreeOutput

_TOKEN_AXES = 3  # (B, N, D); images (B, H, W, D) have more
_MATRIX_AXES = 2  # a weight that multiplies is a matrix
_MLP_MATRICES = 2


class Event(NamedTuple):
    """A tensor that entered (`is_input`) or left a module of a block, and its version then."""

    module: nn.Module
    is_input: bool
    tensor: Tensor
    version: int

    @property
    def is_changed(self) -> bool:
        """Return True if the tensor was changed in place later, as by `+=`."""
        return read_version(self.tensor) != self.version


@dataclass
class AttentionCall:
    """One call of an attention, when its block has ended.

    `position` is the number of events of the block before its filter was called, and `start` the
    position of the input of the attention.

    Shapes: A and H (B, heads, N, N), v and z (B, heads, N, d); A and H are None for a kernel
    without a map.
    """

    index: int
    name: str
    attention: Any
    A: Tensor | None
    H: Tensor | None
    v: Tensor
    z: Tensor
    position: int
    events: list[Event] = field(default_factory=list)

    @property
    def start(self) -> int:
        """Return the position of the last input of the attention before its filter."""
        before = range(self.position - 1, -1, -1)
        return next((i for i in before if self.events[i].module is self.attention), 0)

    @property
    def num_heads(self) -> int:
        """Return the number of heads of the map; values may be of fewer, as groups of heads."""
        return self.z.shape[1]

    def to_batch_first(self, x: Tensor) -> Tensor | None:
        """Return a tensor of the attention's tokens as (B, N, channels), None for any other."""
        B, N = self.z.shape[0], self.z.shape[2]
        if x.ndim < _TOKEN_AXES or x.numel() != B * N * x.shape[-1]:
            return None
        if x.shape[0] == B and not self.is_sequence_first:
            return x.flatten(1, -2)
        if x.shape[:2] == (N, B):
            return x.transpose(0, 1)
        return x.flatten(1, -2) if x.shape[0] == B else None

    @property
    def is_sequence_first(self) -> bool:
        """Return True where the tokens of the block are (N, B, D)."""
        B, N = self.z.shape[0], self.z.shape[2]
        if B == N:  # the shape does not tell
            return getattr(self.attention, "batch_first", True) is False
        return self.events[self.start].tensor.shape[:2] == (N, B)


class Recorder:
    """Hooks that record the calls of attention in blocks, and pass each on when its block ends."""

    def __init__(
        self,
        model: nn.Module,
        attention: dict[str, Any],
        selected: Collection[int],
        finish: Callable[[AttentionCall], None],
    ) -> None:
        self.selected, self.finish, self.num_calls = selected, finish, 0
        self.events: dict[nn.Module, list[Event]] = {}
        self.calls: dict[nn.Module, list[AttentionCall]] = {}
        blocks: dict[nn.Module, None] = {}
        for name, module in attention.items():
            block = find_block(model, name, list(attention.values()))
            blocks[block] = None
            module.filter.register_forward_hook(self._make_filter_hook(block, name, module))
        for block in blocks:
            self._register(block)

    def _register(self, block: nn.Module) -> None:
        def open_block(module: nn.Module, args: Any) -> None:
            self.events[block], self.calls[block] = [], []

        def record_input(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._record(block, module, (*args, *kwargs.values()), is_input=True)

        def record_output(module: nn.Module, args: Any, output: Any) -> None:
            self._record(block, module, output, is_input=False)

        def close_block(module: nn.Module, args: Any, output: Any) -> None:
            events, calls = self.events.pop(block), self.calls.pop(block)
            for call in calls:
                call.events = events
                self.finish(call)

        block.register_forward_pre_hook(open_block)
        for module in block.modules():
            module.register_forward_pre_hook(record_input, with_kwargs=True)
            module.register_forward_hook(record_output)
        block.register_forward_hook(close_block)

    def _record(self, block: nn.Module, module: nn.Module, given: Any, is_input: bool) -> None:
        tensor = find_token_tensor(given)
        if tensor is not None and block in self.events:
            event = Event(module, is_input, tensor, read_version(tensor))
            self.events[block].append(event)

    def _make_filter_hook(self, block: nn.Module, name: str, attention: Any) -> Callable[..., None]:
        def record_call(filter: nn.Module, inputs: tuple[Any, ...], z: Tensor) -> None:
            operator, v = inputs
            if not is_measured(operator, v, z) or block not in self.calls:
                return
            index, self.num_calls = self.num_calls, self.num_calls + 1
            if index not in self.selected:
                return
            A = H = None
            if not isinstance(operator, ValueFreeOutput):
                A = H = spectral.matrix(Plain(), operator)
                if not isinstance(filter, Plain):
                    H = spectral.matrix(filter.forward, operator)
            # windows may have an axis of their own: they are samples here
            flat_A = None if A is None else A.flatten(0, -4)
            flat_H = flat_A if H is A or H is None else H.flatten(0, -4)
            call = AttentionCall(
                *(index, name, attention, flat_A, flat_H, v.flatten(0, -4), z.flatten(0, -4)),
                position=len(self.events[block]),
            )
            self.calls[block].append(call)

        return record_call


def is_measured(operator: Any, v: Tensor, z: Tensor) -> bool:
    """Return True for a call of a filter with a square map of more than one token."""
    return v.ndim > _TOKEN_AXES and 1 < v.shape[-2] == z.shape[-2]


def find_token_tensor(given: Any) -> Tensor | None:
    """Return the first tensor of floats with an axis of tokens in arguments or results."""
    if isinstance(given, Tensor):
        is_tokens = given.ndim >= _TOKEN_AXES and given.is_floating_point()
        return given if is_tokens else None
    parts = given.values() if isinstance(given, dict) else given
    if not isinstance(given, dict | tuple | list):
        return None
    return next((found for part in parts if (found := find_token_tensor(part)) is not None), None)


def find_block(model: nn.Module, name: str, attention: list[Any]) -> nn.Module:
    """Return the block of an attention: the smallest module around it that has an MLP too.

    An MLP counts as two weight matrices outside of any attention. An element of a list of blocks
    is preferred. Without one, it is the largest module that holds no other attention.
    """
    parts = name.split(".")
    names = [".".join(parts[:i]) for i in range(len(parts) - 1, -1, -1)]
    around = [(path, model.get_submodule(path)) for path in names]
    wide = [(path, block) for path, block in around if _has_mlp(block, attention)]
    listed = [block for path, block in wide if path.rpartition(".")[-1].isdigit()]
    if listed or wide:
        return (listed or [block for _, block in wide])[0]
    alone = [block for _, block in around if _count_attention(block, attention) == 1]
    return alone[-1] if alone else model.get_submodule(name)


def _count_attention(block: nn.Module, attention: list[Any]) -> int:
    return len({*block.modules()} & {*attention})


def _has_mlp(block: nn.Module, attention: list[Any]) -> bool:
    if _count_attention(block, attention) > 2:  # TNT has two in a block, a whole model more
        return False
    known = [m for m in block.modules() if m in attention or adapter_for(m) is not None]
    inner = {id(weight) for module in known for weight in module.parameters()}
    outer = [weight for weight in block.parameters() if id(weight) not in inner]
    return sum(weight.ndim >= _MATRIX_AXES for weight in outer) >= _MLP_MATRICES


def read_version(x: Tensor) -> int:
    """Return how often a tensor was changed in place; 0 in inference mode, which does not count."""
    return 0 if x.is_inference() else x._version


def equal_up_to_rounding(x: Tensor, y: Tensor) -> bool:
    """Return True if two tensors of one shape differ by rounding alone."""
    difference, size = (x - y).abs().amax(), torch.maximum(x.abs(), y.abs()).amax()
    return bool(difference <= 16 * torch.finfo(x.dtype).eps * size)
