"""Record a forward pass as a graph of tensors and functions, whatever the classes of a model."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch
from weakref import ref

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_run_script: Any = torch.jit.ScriptFunction.__call__
_ALIASES = {
    **{"iadd": "add", "radd": "add", "isub": "sub", "subtract": "sub"},
    **{"imul": "mul", "rmul": "mul", "multiply": "mul", "rmatmul": "matmul"},
    **{"truediv": "div", "itruediv": "div", "true_divide": "div", "divide": "div"},
}
_IN_PLACE = {
    f"__{name}__" for name in ["setitem", "iadd", "isub", "imul", "itruediv", "ipow", "iand", "ior"]
}
RESHAPES = (
    *("view", "reshape", "permute", "transpose", "swapaxes", "swapdims", "contiguous", "flatten"),
    *("unflatten", "squeeze", "unsqueeze", "movedim", "moveaxis", "view_as", "reshape_as", "T"),
    *("mT", "expand", "expand_as", "clone", "detach", "to", "type", "type_as", "float", "double"),
    *("half", "bfloat16", "requires_grad", "data", "alias", "rearrange"),
)
# sums of the stream in one function, written out for the graph
_WRITTEN_OUT: dict[str, Callable[..., Tensor]] = {
    "addcmul": lambda x, a, b, *, value=1: x + value * (a * b),
    "lerp": lambda x, y, weight: (1 - weight) * x + weight * y,
}
# functions that make a tensor of what is no tensor, such as a list of tokens
_CONVERSIONS = ("tensor", "as_tensor", "from_numpy", "asarray")


@dataclass(eq=False, slots=True, repr=False)
class Node:
    """One tensor of a forward pass.

    `name` is the function that made it, without underscores: `add` for `x + y` and `x += y`; ""
    for an input, a weight and whatever else comes from outside. `args` and `kwargs` are those of
    the call, with a node in place of each tensor. `modules` are the names of the modules around
    it. `value` is the tensor, if the graph keeps it, and `axes` are those of samples and channels.
    """

    index: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: torch.Size
    is_constant: bool
    modules: tuple[str, ...]
    value: Any = None
    parents: tuple["Node", ...] = ()
    axes: tuple[int, int] = 0, -1

    @property
    def numel(self) -> int:
        """Return the number of entries."""
        return self.shape.numel()

    def read_argument(self, place: int, name: str) -> Any:
        """Return an argument of the call by position or name."""
        return self.args[place] if place < len(self.args) else self.kwargs.get(name)

    def list_terms(self) -> list["Node"]:
        """Return the tensors among the arguments of the call, one that occurs twice twice."""
        return [x for x in (*self.args, *self.kwargs.values()) if isinstance(x, Node)]

    def descends_from(self, ancestors: Collection["Node"]) -> bool:
        """Return True if the tensor is made of one of others."""
        first = min(ancestor.index for ancestor in ancestors)
        return any(x in ancestors for x in self.iterate_ancestors(first, ancestors))

    def iterate_ancestors(self, first: int, stop: Collection["Node"] = ()) -> Iterator["Node"]:
        """Yield the node and its ancestors from index `first` on, without those behind `stop`."""
        waiting, seen = [self], {self}
        while waiting:
            yield (node := waiting.pop())
            found = set() if node in stop else {p for p in node.parents if p.index >= first}
            waiting += found - seen
            seen |= found


@dataclass(eq=False, slots=True, repr=False)
class ModuleCall:
    """One call of a module: its first tensors in and out, and the nodes made inside.

    `arguments` are those of a filter, an operator and its values; no other call keeps them.
    """

    name: str
    module: nn.Module
    place: int  # among the calls of the pass
    start: int
    inputs: list[Node]
    outputs: list[Node] = field(default_factory=list)
    end: int = 0
    arguments: tuple[Any, ...] = ()


class Graph:
    """The nodes and module calls of one forward pass, in their order."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.calls: list[ModuleCall] = []
        self._by_id: dict[int, tuple[Any, Node]] = {}
        self._by_place: dict[tuple[Any, ...], tuple[Any, Node]] = {}

    def find_node(self, x: Tensor) -> Node | None:
        """Return the node of a tensor, also of another view of the same entries."""
        found = self._by_id.get(id(x))
        if found is not None and found[0]() is x:
            return found[1]
        found = self._by_place.get(_locate(x))
        return found[1] if found is not None and found[0]() is not None else None

    def add_node(self, x: Tensor, node: Node) -> None:
        """Add a node for a tensor; a tensor that is changed in place has a new one."""
        self.nodes.append(node)
        self._by_id[id(x)] = self._by_place[_locate(x)] = (ref(x), node)


def _locate(x: Tensor) -> tuple[Any, ...]:
    if x.layout != torch.strided or x.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return (id(x),)
    return x.untyped_storage().data_ptr(), x.storage_offset(), x.shape, x.stride(), x.dtype


class _Recorder(TorchFunctionMode):
    def __init__(self, constants: Collection[int], keep: Collection[int] | None) -> None:
        super().__init__()
        self.graph, self.constants, self.keep = Graph(), constants, keep or ()
        self.held: list[Node] = []
        self.modules: tuple[str, ...] = ()
        self.is_paused = False  # inside of a filter, which counts as one function

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_paused:
            return func(*args, **kwargs)
        changed = _find_changed(func, args, kwargs)
        if changed is None and (formula := _WRITTEN_OUT.get(getattr(func, "__name__", ""))):
            with self:
                return formula(*args, **kwargs)
        if changed is not None:
            self.find_or_add(changed)
            memory, *_ = _locate(changed)
            for node in self.held:  # also another view of what changes
                if node.value is not None and _locate(node.value)[0] == memory:
                    node.value = node.value.clone()
            given = self._to_nodes((args, kwargs))
        result = func(*args, **kwargs)
        # `contiguous` may return its input
        inputs = {id(x) for x in list_leaves((args, kwargs))}
        made = [y for y in list_leaves(result) if id(y) not in inputs]
        if changed is not None:
            made = [changed]
        elif made:
            given = self._to_nodes((args, kwargs))
        for y in made:
            self.add(y, _name_function(func), *given)
        return result

    def add(self, y: Tensor, name: str, args: Any = (), kwargs: Any = None) -> Node:
        """Add the node of a tensor: of a function, or of a module whose functions are not seen."""
        kwargs = kwargs or {}
        parents = tuple(list_leaves((args, kwargs), Node))
        index = len(self.graph.nodes)
        if parents:
            is_constant = all(parent.is_constant for parent in parents)
        else:
            is_constant = name not in _CONVERSIONS if name else id(y) in self.constants
        node = Node(index, name, args, kwargs, y.shape, is_constant, self.modules, parents=parents)
        if index in self.keep:
            node.value = y
            self.held.append(node)
        self.graph.add_node(y, node)
        return node

    def find_or_add(self, x: Tensor) -> Node:
        """Return the node of a tensor, a new one for a tensor from outside."""
        return self.graph.find_node(x) or self.add(x, "")

    def _to_nodes(self, given: Any) -> Any:
        if isinstance(given, Tensor):
            return self.find_or_add(given)
        if isinstance(given, dict):
            return {key: self._to_nodes(x) for key, x in given.items()}
        return tuple(map(self._to_nodes, given)) if isinstance(given, tuple | list) else given


def _run_python(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the Python that a function of TorchScript is made of, if any, which a mode sees."""
    return getattr(func, "_torchdynamo_inline", partial(_run_script, func))(*args, **kwargs)


def _name_function(func: Any) -> str:
    name = getattr(func, "__name__", type(func).__name__)
    if name == "__get__":  # a property, such as Tensor.mT
        name = func.__self__.__name__
    name = name.strip("_")
    return _ALIASES.get(name, name)


def _find_changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the tensor that a call changes in place, None if there is none."""
    name = getattr(func, "__name__", "")
    if isinstance(kwargs.get("out"), Tensor):
        return kwargs["out"]
    is_method = name.endswith("_") and not name.endswith("__")
    is_in_place = is_method or name in _IN_PLACE or kwargs.get("inplace") is True
    return args[0] if is_in_place and args and isinstance(args[0], Tensor) else None


def list_leaves(value: Any, kind: type = Tensor) -> list[Any]:
    """Return the tensors in nested tuples, lists and mappings, faster than torch does."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [x for part in value for x in list_leaves(part, kind)]


def record_graph(
    model: nn.Module, run: Callable[[], Any], keep: Collection[int] | None = None
) -> Graph:
    """Run a model by `run` and return the graph, with the values of the nodes in `keep`."""
    recorder = _Recorder({id(w) for w in (*model.parameters(), *model.buffers())}, keep)
    was_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one function without a map
    scripted = patch.object(torch.jit.ScriptFunction, "__call__", _run_python)
    try:
        with _watch_modules(model, recorder), scripted, recorder:
            run()
    finally:
        torch.backends.mha.set_fastpath_enabled(was_fast)
    return recorder.graph


@contextmanager
def _watch_modules(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    opened: list[ModuleCall] = []
    graph = recorder.graph

    def enter(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        inputs = [recorder.find_or_add(x) for x in list_leaves((args, kwargs))]
        call = ModuleCall(name, module, len(graph.calls), len(graph.nodes), inputs)
        if name.rpartition(".")[2] == "filter" and len(args) == 2:
            call.arguments, recorder.is_paused = args, True
            call.inputs += map(recorder.find_or_add, list_leaves(vars(args[0])))
        graph.calls.append(call)
        opened.append(call)
        recorder.modules = tuple(call.name for call in opened)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        call = opened.pop()
        recorder.is_paused = recorder.is_paused and not call.arguments
        for y in list_leaves(output):
            # a function of another library is not seen by the mode
            node = graph.find_node(y) or recorder.add(y, type(module).__name__, tuple(call.inputs))
            call.outputs.append(node)
        call.end = len(graph.nodes)
        if call.name.rpartition(".")[2] == "tokens" and call.inputs and call.outputs:
            # one function that passes its tokens on, like a norm
            first, last = call.inputs[0], call.outputs[0]
            if first.shape == last.shape and first is not last and last.index >= call.start:
                last.name, last.args, last.kwargs = "tokens", (first,), {}
                last.parents = (first,)
        recorder.modules = tuple(call.name for call in opened)

    with ExitStack() as handles:
        for name, module in model.named_modules():
            hook = partial(enter, name)
            handles.enter_context(
                module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
            )
            handles.enter_context(module.register_forward_hook(leave))
        yield
