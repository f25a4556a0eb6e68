"""Plan what is measured of each layer: the tensors of its steps, its attention call, its weights.

A layer is an attention call on its own tokens, with what the stream passes until the next one.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

import torch
from torch import nn

from attention_core.diagnosis.attention import AttentionCall
from attention_core.diagnosis.projections import Projection, find_projection
from attention_core.diagnosis.record import Graph, Node
from attention_core.diagnosis.stream import (
    CONVOLUTIONS,
    MIN_TOKEN_AXES,
    Stream,
    Sum,
    is_full_sum,
    iterate_ancestors,
    trace_stream,
)


@dataclass(frozen=True)
class Layout:
    """The axes of the samples and the channels of a stream's tensors."""

    is_sequence_first: bool = False
    is_channel_first: bool = False


@dataclass(eq=False, repr=False)
class Change:
    """A sum of a stream: the tokens `before` it, the branches of each kind, and the result.

    A norm has no branches.
    """

    before: Node
    after: Node
    branches: dict[str, list[Node]] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class Layer:
    """The tensors of one layer, by the names of `LayerDiagnosis.steps`."""

    call: AttentionCall
    layout: Layout
    stack: str = "model"
    index: int = 0
    segment: int = 0
    steps: dict[str, Node] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    projection: Projection | None = None
    has_map: bool = True

    @property
    def shape(self) -> torch.Size:
        """Return the shape of its tokens, also where a step has them as (B N, D)."""
        shapes = [node.shape for node in self.steps.values()] or [self.call.node.shape]
        return next((shape for shape in shapes if len(shape) >= MIN_TOKEN_AXES), shapes[0])

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of all samples together."""
        return self.shape.numel() // self.shape[1 if self.layout.is_channel_first else -1]

    def list_nodes(self, measures: Collection[str]) -> Iterator[Node]:
        """Yield the nodes whose values measures need."""
        yield from self.steps.values()
        yield from self.call.list_operands()
        if "steps" not in measures:
            return
        for change in self.changes:
            yield from (change.before, change.after)
            for nodes in change.branches.values():
                yield from nodes
        if self.projection is not None:
            yield from self.projection.list_nodes()


@dataclass(eq=False, repr=False)
class Plan:
    """All layers of a pass; the tokens after the final norm of each stack; and what was left out.

    `is_composed` says that layers follow each other without a sum.
    """

    layers: list[Layer]
    final: dict[str, tuple[Node, Layout]]
    has_stream: bool
    is_composed: bool
    notes: list[str]


def plan_layers(
    model: nn.Module, graph: Graph, calls: list[AttentionCall], streams: list[Stream]
) -> Plan:
    """Return the layers of a pass, in the order of their attention calls."""
    stacks = _name_stacks(streams)
    layers: list[Layer] = []
    final: dict[str, tuple[Node, Layout]] = {}
    for place, stream in enumerate(streams):
        made = list(_plan_stream(model, stream))
        for layer in made:
            layer.stack, layer.segment = stacks[place], place
        layers += made
        if made:
            final.pop(stacks[place], None)  # an earlier segment has none
            if stream.end not in (stream.sums[-1].node, *made[-1].steps.values()):
                final[stacks[place]] = stream.end, made[0].layout
    has_stream, is_composed = bool(layers), False
    if not has_stream:
        square = [call for call in calls if call.is_square]
        layers = [_plan_module(graph, call) for call in square]
        is_composed = _is_composed(layers)
    for stack in dict.fromkeys(layer.stack for layer in layers):
        for index, layer in enumerate(x for x in layers if x.stack == stack):
            layer.index = index
    for layer in layers:
        layer.projection = find_projection(graph, layer.call)
    return Plan(layers, final, has_stream, is_composed, _list_notes(calls, layers, streams))


def _list_notes(
    calls: list[AttentionCall], layers: list[Layer], streams: list[Stream]
) -> list[str]:
    known = {layer.call for layer in layers}
    inside = {
        call for s in streams for u in s.sums for branch in u.branches for call in branch.calls
    }
    outside = [call.name or "the model" for call in calls if call not in inside and call.is_square]
    notes = []
    if streams and outside:
        named = ", ".join(dict.fromkeys(outside))
        notes.append(f"no residual stream passes {named}, which is left out")
    class_attention = [c.name for c in calls if not c.is_square and 1 in c.shape[-2:]]
    if class_attention and layers:
        named = ", ".join(dict.fromkeys(class_attention))
        notes.append(f"{named} attends with one token alone and is left out")
    more = [
        str(layer.index)
        for layer in layers
        for s in streams
        for u in s.sums
        if any(layer.call in branch.calls for branch in u.branches)
        and len({c for branch in u.branches for c in branch.calls} - known) > 0
    ]
    if more:
        notes.append(
            f"layers {', '.join(dict.fromkeys(more))} add several attention maps at once: the "
            "maps of the first are shown"
        )
    return notes


def _name_stacks(streams: list[Stream]) -> list[str]:
    """Return the stack of each stream: those of stages that follow each other are one stack."""
    stacks: list[int] = []
    for place, stream in enumerate(streams):
        sums = {made.node for earlier in streams[:place] for made in earlier.sums}
        start = min((node.index for node in sums), default=0)
        before = {x for x in iterate_ancestors(stream.root, start, sums) if x in sums}
        found = [
            stacks[i]
            for i, earlier in enumerate(streams[:place])
            if before & {made.node for made in earlier.sums}
            # patches of pixels are samples of their own
            and earlier.sums[0].node.shape[0] == stream.sums[0].node.shape[0]
        ]
        stacks.append(found[-1] if found else max(stacks, default=-1) + 1)
    count = len(set(stacks))
    if count == 1:
        return ["model"] * len(streams)
    crossed = {
        stack
        for stack, stream in zip(stacks, streams, strict=True)
        for made in stream.sums
        for branch in made.branches
        if branch.kind == "cross-attention"
    }
    if count == 2 and crossed == {1}:
        return [("encoder", "decoder")[stack] for stack in stacks]
    return [f"stream {stack}" for stack in stacks]


def _plan_stream(model: nn.Module, stream: Stream) -> Iterator[Layer]:
    groups = _group_sums(stream)
    for place, group in enumerate(groups):
        following = groups[place + 1][0] if place + 1 < len(groups) else None
        layer = _plan_group(model, stream, group, following)
        if layer is not None:
            yield layer


def _find_attention(made: Sum) -> AttentionCall | None:
    calls = [c for branch in made.branches if branch.kind == "attention" for c in branch.calls]
    square = [call for call in calls if call.is_square]
    return square[0] if square else None


def _group_sums(stream: Stream) -> list[list[Sum]]:
    """Group sums by layer; one between two attentions belongs to the block that makes it."""
    starts = [i for i, made in enumerate(stream.sums) if _find_attention(made) is not None]
    if not starts:
        return []
    bounds = []
    for before, start in zip([None, *starts], starts, strict=False):
        first = 0 if before is None else start
        while before is not None and first - 1 > before:
            if not _is_nearer(stream, first - 1, before, start):
                break
            first -= 1
        bounds.append(first)
    return [
        stream.sums[first:last]
        for first, last in zip(bounds, [*bounds[1:], len(stream.sums)], strict=True)
    ]


def _is_nearer(stream: Stream, place: int, before: int, after: int) -> bool:
    made, first, second = (stream.sums[i].node.modules for i in (place, before, after))
    return count_shared(made, second) > count_shared(made, first)


def count_shared(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the number of names that two paths of modules start with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _plan_group(
    model: nn.Module, stream: Stream, group: list[Sum], following: Sum | None
) -> Layer | None:
    attention = next((made for made in group if _find_attention(made) is not None), None)
    call = None if attention is None else _find_attention(attention)
    if attention is None or call is None:
        return None
    layout = _find_layout(model, stream, call)
    layer = Layer(call, layout)
    branch = next(branch for branch in attention.branches if call in branch.calls)
    steps = {"input": attention.carried, "attention": branch.node}
    later = group[group.index(attention) + 1 :]
    closing = _find_closing_norm(stream, group, following)
    if len(attention.branches) == 1:
        steps["residual"] = attention.node
        if later and later[0].is_normed:
            steps["norm"] = later[0].carried
        elif not later and closing is not None:
            steps["norm"] = closing
    last = group[-1].node
    if later or len(attention.branches) > 1:
        if closing is not None:
            steps["mlp_residual"] = last
        steps["mlp"] = last if closing is None else closing
    layer.steps = steps
    layer.changes = [*_list_changes(group)]
    if closing is not None:
        layer.changes.append(Change(last, closing))
    return layer


def _list_changes(group: list[Sum]) -> Iterator[Change]:
    for place, made in enumerate(group):
        if place and made.is_normed:
            yield Change(group[place - 1].node, made.carried)
        branches: dict[str, list[Node]] = {}
        for branch in made.branches:
            branches.setdefault(branch.kind, []).append(branch.node)
        yield Change(made.carried, made.node, branches)


def _find_closing_norm(stream: Stream, group: list[Sum], following: Sum | None) -> Node | None:
    """Return the tokens behind a norm that closes a block, None where the sum closes it."""
    if following is not None:
        return following.carried if following.is_normed else None
    last = stream.sums[-1].node
    inner = [made for made in stream.sums[1:] if made.is_normed]
    is_inside = bool(last.modules) and stream.end.modules[: len(last.modules)] == last.modules
    return stream.end if inner and is_inside and stream.end is not last else None


def _find_layout(model: nn.Module, stream: Stream, call: AttentionCall) -> Layout:
    shapes = [made.node.shape for made in stream.sums]
    shape = next((shape for shape in shapes if len(shape) >= MIN_TOKEN_AXES), shapes[0])
    roots = [trace_stream(b.node)[-1].name for made in stream.sums for b in made.branches]
    if len(shape) > MIN_TOKEN_AXES:
        return Layout(is_channel_first=any(name in CONVOLUTIONS for name in roots))
    N = call.shape[-1]
    if shape[0] != N or len(shape) < MIN_TOKEN_AXES:
        return Layout()
    if shape[1] != N:
        return Layout(is_sequence_first=True)
    around = [model.get_submodule(name) for name in call.node.modules]
    return Layout(any(getattr(module, "batch_first", True) is False for module in around))


def _plan_module(graph: Graph, call: AttentionCall) -> Layer:
    """Return the layer of an attention outside of any stream, by its module's input and output."""
    around = [made for made in graph.calls if made.start <= call.node.index < made.end]
    for made in reversed(around):
        x, y = _find_tokens(made.inputs, call), _find_tokens(made.outputs, call)
        if y is not None and made.name in call.node.modules:
            steps = {"attention": y} if x is None else {"input": x, "attention": y}
            changes = [] if x is None else [Change(x, y, {"attention": []})]
            return Layer(call, Layout(), steps=steps, changes=changes)
    return Layer(call, Layout())


def _find_tokens(nodes: list[Node], call: AttentionCall) -> Node | None:
    N = call.shape[-1]
    return next((x for x in nodes if len(x.shape) == MIN_TOKEN_AXES and x.shape[1] == N), None)


def _is_composed(layers: list[Layer]) -> bool:
    """Return True if each layer takes what the one before returns, without a sum of tokens.

    What lies between two of them counts as an MLP.
    """
    if any(len(layer.steps) < 2 for layer in layers):
        return False
    for before, after in pairwise(layers):
        y, x = before.steps["attention"], after.steps["input"]
        between = [*iterate_ancestors(x, y.index, {y})]
        if y not in between or any(is_full_sum(node) and node.shape == x.shape for node in between):
            return False
        if x is not y:
            before.steps["mlp"] = x
            before.changes.append(Change(y, x, {"MLP": []}))
    first = layers[0].steps["input"].index
    return not any(
        is_full_sum(node) and node.shape == layer.steps["input"].shape
        for layer in layers
        for node in iterate_ancestors(layer.steps["attention"], first)
    )
