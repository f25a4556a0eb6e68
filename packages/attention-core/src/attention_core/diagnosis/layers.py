"""Plan what is measured of each layer: the tensors of its steps, its attention call, its weights.

A layer is an attention call on its own tokens, with what the stream passes until the next one.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, takewhile
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attention_core.diagnosis.attention import AttentionCall
from attention_core.diagnosis.projections import Projection, find_projection
from attention_core.diagnosis.record import Graph, Node
from attention_core.diagnosis.stream import (
    CONVOLUTIONS,
    MIN_TOKEN_AXES,
    Stream,
    Sum,
    find_streams,
    is_full_sum,
    iterate_ancestors,
    trace_stream,
)
from attention_core.hosts.adapter import NUM_HEADS_NAMES


class Layout(NamedTuple):
    """The axes of the samples and the channels of a stream's tensors."""

    is_sequence_first: bool = False
    is_channel_first: bool = False

    def to_tokens(self, x: Tensor) -> Tensor:
        """Return the tokens of a stream as (B, N, D)."""
        if self.is_sequence_first:
            return x.transpose(0, 1)
        return x.flatten(2).mT if self.is_channel_first else x.flatten(1, -2)


class Change(NamedTuple):
    """A sum of a stream: the tokens `before` it, the branches of each kind, and the result.

    A norm has no branches.
    """

    before: Node
    after: Node
    branches: dict[str, list[Node]]


@dataclass(eq=False, repr=False)
class Layer:
    """The tensors of one layer, by the names of `LayerDiagnosis.steps`.

    `final` are the tokens behind the final norm of its stack, None for all but the last layer.
    """

    call: AttentionCall
    module: nn.Module
    layout: Layout
    steps: dict[str, Node] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    final: Node | None = None
    projection: Projection | None = None
    stack: str = "model"
    index: int = 0
    segment: int = 0

    @property
    def shape(self) -> torch.Size:
        """Return the shape of its tokens, also where a step has them as (B N, D)."""
        shapes = [node.shape for node in self.steps.values()] or [self.call.node.shape]
        return next((shape for shape in shapes if len(shape) >= MIN_TOKEN_AXES), shapes[0])

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of all samples together."""
        return self.shape.numel() // self.shape[1 if self.layout.is_channel_first else -1]

    @property
    def num_heads(self) -> int:
        """Return the number of heads of its map (..., heads, N, N), or (B heads, N, N)."""
        shape = self.call.shape
        if len(shape) > 3:
            return shape[-3]
        known = [getattr(self.module, name, None) for name in NUM_HEADS_NAMES]
        heads = next((n for n in known if isinstance(n, int) and n > 0 and shape[0] % n == 0), 0)
        heads = heads or max(1, shape[0] * shape[-1] // max(1, self.num_tokens))
        return heads if shape[0] % heads == 0 else 1

    @property
    def num_samples(self) -> int:
        """Return the number of samples of its map, windows counted as samples."""
        shape = self.call.shape
        return prod(shape[:-3]) if len(shape) > 3 else shape[0] // self.num_heads

    @property
    def has_map(self) -> bool:
        """Return True if the rows of its map are the tokens.

        Windows may add padding, less than as many tokens along each side of an image. A class
        token or registers may be added or left out.
        """
        if "input" not in self.steps:
            return True
        samples, tokens = self.num_samples, self.num_tokens
        rows = samples * self.call.shape[-1]
        if samples > self.shape[1 if self.layout.is_sequence_first else 0]:
            return tokens <= rows < 4 * tokens
        return abs(rows - tokens) <= samples * max(2, tokens // samples // 4)

    def flatten_map(self, M: Tensor) -> Tensor:
        """Return a map as (B, heads, N, N); windows with an axis of their own are samples."""
        return M.flatten(0, -4) if M.ndim > 3 else M.reshape(-1, self.num_heads, *M.shape[1:])

    def list_nodes(self, measures: Collection[str]) -> Iterator[Node]:
        """Yield the nodes whose values measures need."""
        yield from self.steps.values()
        yield from self.call.list_operands()
        if self.final is not None:
            yield self.final
        for change in self.changes if "steps" in measures else ():
            yield from (change.before, change.after)
            yield from chain.from_iterable(change.branches.values())
        for node in (self.projection or ()) if "weights" in measures else ():
            yield from (node, *node.parents)


class Plan(NamedTuple):
    """All layers of a pass, if their tokens follow each other, and notes on what was left out."""

    layers: list[Layer]
    has_verdict: bool
    notes: list[str]


def plan_layers(model: nn.Module, graph: Graph, calls: list[AttentionCall]) -> Plan:
    """Return the layers of a pass, in the order of their attention calls."""
    streams = find_streams(graph, calls)
    layers = _plan_streams(model, streams)
    has_verdict = bool(layers)
    if not layers:
        layers = [_plan_module(model, graph, call) for call in calls if call.is_square]
        has_verdict = _are_composed(layers)
        if has_verdict:
            _add_mlps(layers)
    counts: Counter[str] = Counter()
    for layer in layers:
        layer.index = counts[layer.stack]
        counts[layer.stack] += 1
    for layer in layers:
        layer.projection = find_projection(graph, layer.call)
    return Plan(layers, has_verdict, [*_list_notes(calls, layers, streams)])


def _plan_streams(model: nn.Module, streams: list[Stream]) -> list[Layer]:
    layers: list[Layer] = []
    for place, (stream, stack) in enumerate(zip(streams, _name_stacks(streams), strict=True)):
        made = _plan_stream(model, stream)
        for layer in made:
            layer.stack, layer.segment = stack, place
        if made:
            for layer in layers:
                layer.final = layer.final if layer.stack != stack else None  # an earlier segment
            if stream.end not in (stream.sums[-1].node, *made[-1].steps.values()):
                made[-1].final = stream.end
        layers += made
    return layers


def _list_notes(
    calls: list[AttentionCall], layers: list[Layer], streams: list[Stream]
) -> Iterator[str]:
    sums = [made for stream in streams for made in stream.sums]
    inside = {call for made in sums for call in made.list_calls()}
    outside = [call.name or "the model" for call in calls if call not in inside and call.is_square]
    if streams and outside:
        named = ", ".join(dict.fromkeys(outside))
        yield f"no residual stream passes {named}, which is left out"
    class_attention = [c.name for c in calls if not c.is_square and 1 in c.shape[-2:]]
    if class_attention and layers:
        named = ", ".join(dict.fromkeys(class_attention))
        yield f"{named} attends with one token alone and is left out"
    known = {layer.call for layer in layers}
    several = [made.list_calls() for made in sums if known < known.union(made.list_calls())]
    if more := [str(x.index) for x in layers if any(x.call in found for found in several)]:
        yield f"layers {', '.join(more)} add several attention maps at once: the first is shown"
    if left := [layer.call.name for layer in layers if not layer.has_map]:
        yield f"the maps of {', '.join(left)} are not of all tokens, and left out"


def _name_stacks(streams: list[Stream]) -> list[str]:
    """Return the stack of each stream: those of stages that follow each other are one stack."""
    stacks: list[int] = []
    nodes = [{made.node for made in stream.sums} for stream in streams]
    for place, stream in enumerate(streams):
        earlier = set().union(*nodes[:place])
        start = min((node.index for node in earlier), default=0)
        before = earlier.intersection(iterate_ancestors(stream.root, start, earlier))
        found = [
            stacks[i]
            for i in range(place)
            if before & nodes[i]
            # patches of pixels are samples of their own
            and streams[i].sums[0].node.shape[0] == stream.sums[0].node.shape[0]
        ]
        stacks.append(found[-1] if found else max(stacks, default=-1) + 1)
    crossed = {
        stack
        for stack, stream in zip(stacks, streams, strict=True)
        for made in stream.sums
        if any(branch.kind == "cross-attention" for branch in made.branches)
    }
    if len(set(stacks)) == 1:
        return ["model"] * len(streams)
    if len(set(stacks)) == 2 and crossed == {1}:
        return [("encoder", "decoder")[stack] for stack in stacks]
    return [f"stream {stack}" for stack in stacks]


def _plan_stream(model: nn.Module, stream: Stream) -> list[Layer]:
    """Return a layer for each attention; a sum between two belongs to the block that makes it."""
    sums = stream.sums
    starts = [i for i, made in enumerate(sums) if _find_attention(made) is not None]
    bounds = [0] * len(starts[:1])
    for before, start in pairwise(starts):
        shared = [
            [count_shared(sums[i].node.modules, sums[j].node.modules) for j in (before, start)]
            for i in range(before + 1, start)
        ]
        later = takewhile(lambda pair: pair[1] > pair[0], reversed(shared))
        bounds.append(start - len([*later]))
    ends = [*bounds[1:], len(sums)]
    return [
        _plan_layer(model, stream, slice(*pair), sums[start])
        for *pair, start in zip(bounds, ends, starts, strict=False)
    ]


def _find_attention(made: Sum) -> AttentionCall | None:
    calls = [c for branch in made.branches if branch.kind == "attention" for c in branch.calls]
    return next((call for call in calls if call.is_square), None)


def count_shared(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the number of names that two paths of modules start with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _plan_layer(model: nn.Module, stream: Stream, place: slice, attention: Sum) -> Layer:
    group, call = stream.sums[place], _find_attention(attention)
    assert call is not None
    added = next(branch.node for branch in attention.branches if call in branch.calls)
    steps = {"input": attention.carried, "attention": added}
    later = group[group.index(attention) + 1 :]
    last, closing = group[-1].node, _find_closing_norm(stream, place.stop)
    if len(attention.branches) == 1:
        steps["residual"] = attention.node
        if later and later[0].is_normed:
            steps["norm"] = later[0].carried
        elif not later and closing is not None:
            steps["norm"] = closing
    if later or len(attention.branches) > 1:
        if closing is not None:
            steps["mlp_residual"] = last
        steps["mlp"] = last if closing is None else closing
    changes = []
    for i, made in enumerate(group):
        if i and made.is_normed:
            changes.append(Change(group[i - 1].node, made.carried, {}))
        branches: dict[str, list[Node]] = {}
        for branch in made.branches:
            branches.setdefault(branch.kind, []).append(branch.node)
        changes.append(Change(made.carried, made.node, branches))
    if closing is not None:
        changes.append(Change(last, closing, {}))
    layout = _find_layout(model, stream, call)
    return Layer(call, model.get_submodule(call.name), layout, steps, changes)


def _find_closing_norm(stream: Stream, stop: int) -> Node | None:
    """Return the tokens behind a norm that closes a block, None where the sum closes it."""
    if stop < len(stream.sums):
        following = stream.sums[stop]
        return following.carried if following.is_normed else None
    last = stream.sums[-1].node
    has_inner = any(made.is_normed for made in stream.sums[1:])
    is_inside = bool(last.modules) and stream.end.modules[: len(last.modules)] == last.modules
    return stream.end if has_inner and is_inside and stream.end is not last else None


def _find_layout(model: nn.Module, stream: Stream, call: AttentionCall) -> Layout:
    shapes = [made.node.shape for made in stream.sums]
    shape = next((shape for shape in shapes if len(shape) >= MIN_TOKEN_AXES), shapes[0])
    if len(shape) > MIN_TOKEN_AXES:
        roots = [trace_stream(b.node)[-1].name for made in stream.sums for b in made.branches]
        return Layout(is_channel_first=any(name in CONVOLUTIONS for name in roots))
    N = call.shape[-1]
    if shape[0] != N or len(shape) < MIN_TOKEN_AXES:
        return Layout()
    around = map(model.get_submodule, call.node.modules)
    is_first = any(getattr(module, "batch_first", True) is False for module in around)
    return Layout(is_sequence_first=shape[1] != N or is_first)


def _plan_module(model: nn.Module, graph: Graph, call: AttentionCall) -> Layer:
    layer = Layer(call, model.get_submodule(call.name), Layout())
    for made in reversed(graph.calls):
        if not made.start <= call.node.index < made.end or made.name not in call.node.modules:
            continue
        x, y = (
            next((x for x in nodes if len(x.shape) == 3 and x.shape[1] == call.shape[-1]), None)
            for nodes in (made.inputs, made.outputs)
        )
        if y is not None:
            layer.steps = {"attention": y} if x is None else {"input": x, "attention": y}
            layer.changes = [] if x is None else [Change(x, y, {"attention": []})]
            break
    return layer


def _are_composed(layers: list[Layer]) -> bool:
    """Return True if each layer takes what the one before returns, without a sum of tokens."""
    if any(len(layer.steps) < 2 for layer in layers):
        return False
    first = layers[0].steps["input"].index
    paths = [(x.steps["input"], iterate_ancestors(x.steps["attention"], first)) for x in layers]
    for before, after in pairwise(layers):
        y, x = before.steps["attention"], after.steps["input"]
        between = [*iterate_ancestors(x, y.index, {y})]
        if y not in between:
            return False
        paths.append((x, iter(between)))
    return not any(
        is_full_sum(node) and node.shape == x.shape for x, path in paths for node in path
    )


def _add_mlps(layers: list[Layer]) -> None:
    """Let what lies between two composed layers count as an MLP."""
    for before, after in pairwise(layers):
        y, x = before.steps["attention"], after.steps["input"]
        if x is not y:
            before.steps["mlp"] = x
            before.changes.append(Change(y, x, {"MLP": []}))
