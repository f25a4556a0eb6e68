"""Plan what is measured of each layer: the tensors of its steps, its attention, its weights."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from math import gcd, prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attention_core.diagnosis import stream
from attention_core.diagnosis.attention import AttentionCall
from attention_core.diagnosis.projections import Projection, find_projection
from attention_core.diagnosis.record import Graph, Node
from attention_core.diagnosis.stream import NORMS, Sum, trace_stream
from attention_core.hosts.adapter import NUM_HEADS_NAMES

_CHOICES = ("argmax", "multinomial", "topk", "embedding")  # another pass starts behind them
# functions that join the tokens of two sources
_MERGES = ("cat", "masked_scatter", "setitem", "index_put", "where")
_NO_STREAM = (
    "no residual stream was found, a chain of sums in which each adds a branch to the tokens of "
    "the one before (gated residuals and hyper-connections have none): the tokens of the table are "
    "those that attention returns"
)


@dataclass(eq=False, repr=False)
class Layer:
    """The tensors of one attention and of what follows until the next, by their `steps`.

    `changes` are its sums and norms. `final` are the tokens behind the final norm of its stack,
    None for all but the last layer.
    """

    call: AttentionCall
    module: nn.Module
    steps: dict[str, Node] = field(default_factory=dict)
    changes: list[Sum] = field(default_factory=list)
    batch: int = 0  # input samples, where tokens of one change their places between layers
    final: Node | None = None
    projection: Projection | None = None
    stack: str = "model"
    index: int = 0
    segment: int = 0

    @property
    def tokens(self) -> Node:
        """Return its first tokens, not those of a step that has them as (B N, D)."""
        nodes = [*self.steps.values()] or [self.call.node]
        return next((x for x in nodes if len(x.shape) >= stream.MIN_TOKEN_AXES), nodes[0])

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of all samples together."""
        return self.tokens.numel // self.tokens.shape[self.tokens.axes[1]]

    @property
    def num_heads(self) -> int:
        """Return the number of heads of its map (..., heads, N, N), or (B heads, N, N)."""
        shape, tokens = self.call.shape, max(1, self.num_tokens)
        if len(shape) > 3:
            is_grouped = prod(shape[:-3]) * shape[-1] == shape[-4] * tokens > tokens
            return prod(shape[-4:-2]) if is_grouped else shape[-3]
        # a loop over heads has a map for each, of the samples alone
        known = [getattr(self.module, name, None) for name in NUM_HEADS_NAMES.split()]
        rows, least = shape[0] * shape[-1], tokens if self.steps else 0
        fits = (n for n in known if isinstance(n, int) and n > 0 and 4 * rows >= 3 * n * least)
        heads = next((n for n in fits if shape[0] % n == 0), 0) or max(1, rows // tokens)
        return heads if shape[0] % heads == 0 else 1

    @property
    def num_samples(self) -> int:
        """Return the number of samples of its map, windows counted as samples."""
        return prod(self.call.shape[:-2]) // self.num_heads

    @property
    def has_map(self) -> bool:
        """Return True if the rows and columns of its map are the tokens.

        Windows may add padding, less than as many tokens along each side of an image. A class
        token or registers may be added or left out.
        """
        if "input" not in self.steps or not self.call.is_square:
            return self.call.is_square
        samples, tokens = self.num_samples, self.num_tokens
        rows = samples * self.call.shape[-1]
        if len(self.tokens.shape) < stream.MIN_TOKEN_AXES:  # the nodes of all graphs
            return rows == tokens
        if samples > self.tokens.shape[self.tokens.axes[0]]:
            return tokens <= rows < 4 * tokens
        return abs(rows - tokens) <= samples * max(2, tokens // samples // 4)

    def flatten_map(self, M: Tensor) -> Tensor:
        """Return a map, or values, as (B, heads, N, ...); windows count as samples."""
        is_grouped = M.ndim > 4 and self.num_heads > self.call.shape[-3]
        heads = self.num_heads if M.ndim == 3 else prod(M.shape[-4 if is_grouped else -3 : -2])
        M = M.reshape(-1, heads, *M.shape[-2:])
        return M.transpose(1, 2) if M.shape[1] == self.call.shape[-1] != M.shape[2] else M

    def arrange_tokens(self, node: Node, x: Tensor) -> Tensor:
        """Return the tokens of a node, or their gradient, as (B, N, D)."""
        if x.ndim == len(self.tokens.shape) == 2:  # the nodes of all graphs
            return x.reshape(self.num_samples, -1, x.shape[-1])
        if x.ndim == 2 and x.numel() == self.tokens.numel:  # (B N, D)
            node, x = self.tokens, x.reshape(self.tokens.shape)
        if node.axes[0] == 1:
            return x.transpose(0, 1)
        x = x.flatten(2).mT if node.axes[1] == 1 else x.flatten(1, -2)
        parts = node.shape[0] // gcd(node.shape[0], self.batch)  # each input sample has so many
        return x.reshape(len(x) // parts, -1, x.shape[-1])

    def list_nodes(self, is_full: bool) -> Iterator[Node]:
        """Yield the nodes whose values the measures need."""
        yield from self.steps.values()
        yield from self.call.list_operands()
        if self.final is not None:
            yield self.final
        for change in self.changes if is_full else ():
            yield from (change.carried, change.node, *chain(*change.branches.values()))
        for node in (self.projection or ()) if is_full else ():
            yield from (node, *node.parents)


class Plan(NamedTuple):
    """All layers of a pass, the reason for no verdict or "", and notes on what was left out."""

    layers: list[Layer]
    reason: str
    notes: list[str]


def plan_layers(model: nn.Module, graph: Graph, calls: list[AttentionCall]) -> Plan:
    """Return the layers of a pass, in the order of their attention calls."""
    chains = stream.find_streams(graph, calls)
    planned = [(sums, _plan_stream(model, graph, sums)) for sums in chains]
    layers: list[Layer] = []
    all_sums = [made for sums, _ in planned for made in sums]
    first = {made.attention[0]: made for made in reversed(all_sums) if made.attention}
    # the keys of a pyramid are fewer than its tokens
    owners = {first[x.call] for _, y in planned for x in y if x.has_map or not x.call.is_square}
    if owners:  # drop streams inside of other functions, and those that a map only feeds
        planned = [(sums, found) for sums, found in planned if owners.intersection(sums)]
    streams = [sums for sums, _ in planned]
    for place, stack in enumerate(_name_stacks(streams, calls)):
        _, found = planned[place]
        for layer in found:
            layer.stack, layer.segment = stack, place
        for layer in layers if found else ():  # an earlier segment is not the last
            layer.final = layer.final if layer.stack != stack else None
        layers += found
    make = partial(torch.empty, device="meta")
    sizes = [{y.arrange_tokens(x, make(x.shape)).shape for x in y.steps.values()} for y in layers]
    mixed = [x.call.name for x, found in zip(layers, sizes, strict=True) if len(found) > 1]
    reason = f"the tokens of {', '.join(mixed)} change their number or size" if mixed else ""
    if not layers:
        layers = [_plan_module(model, graph, call) for call in calls if call.is_square]
        reason = "" if _join_composed(graph, layers) else _NO_STREAM
    counts: Counter[str] = Counter()
    for layer in layers:
        layer.index = counts[layer.stack]
        counts[layer.stack] += 1
        layer.projection = find_projection(graph, layer.call)
    for before, layer in pairwise(layers):  # what lies between tokens of one size counts
        if (before.stack, before.tokens.shape) == (layer.stack, layer.tokens.shape):
            layer.segment = before.segment
    return Plan(layers, reason, [*_list_notes(calls, layers, [*chain(*streams)])])


def _list_notes(calls: list[AttentionCall], layers: list[Layer], sums: list[Sum]) -> Iterator[str]:
    inside, shown = {x for made in sums for x in made.calls}, {layer.call.name for layer in layers}
    calls = [call for call in calls if call.name not in shown]  # Perceiver-like calls reshape one
    if apart := [c.name or "the model" for c in calls if sums and c.is_square and c not in inside]:
        yield f"no residual stream passes {', '.join(dict.fromkeys(apart))}, which is left out"
    crossed = [c for c in calls if not c.is_square and (1 in c.shape[-2:] or c not in inside)]
    if crossed and layers:  # the attention of a class token, and that of pooled queries
        names = ", ".join(dict.fromkeys(call.name for call in crossed))
        yield f"the maps of {names} are left out: they are not square, or have one token"
    known = {layer.call for layer in layers}
    several = [made.calls for made in sums if known < known.union(made.calls)]
    if more := [str(x.index) for x in layers if any(x.call in found for found in several)]:
        yield f"layers {', '.join(more)} add several attention maps at once: one is shown"
    if left := [layer.call.name for layer in layers if not layer.has_map]:
        yield f"the maps of {', '.join(left)} are not of all tokens, and left out"


def _name_stacks(streams: list[list[Sum]], calls: list[AttentionCall]) -> list[str]:
    """Return the stack of each stream: those of stages that follow each other are one stack."""
    stacks: list[int] = []
    owners: dict[Node, int] = {}  # the streams of the sums before
    crossings = {call.node for call in calls if not call.is_square}
    for place, sums in enumerate(streams):
        root = sums[0].carried
        start, stop = min((node.index for node in owners), default=0), {*owners, *crossings}
        stop |= {x for x in root.iterate_ancestors(start, stop) if x.name in _CHOICES}
        before = {owners[x] for x in root.iterate_ancestors(start, stop) if x in owners}
        # patches of pixels are samples of their own
        samples = sums[0].node.shape[0]
        found = {stacks[i] for i in before if streams[i][0].node.shape[0] == samples}
        # tokens of a text, or of another stack, may join them
        own = {*owners, *(x for sums in streams[:place] for x in trace_stream(sums[0].carried))}
        merges = [x for x in root.iterate_ancestors(start, stop) if x.name in _MERGES]
        others = [p for x in merges for p in x.parents if not p.is_constant and len(p.shape) > 2]
        is_one = len(found) == 1 and all(p.descends_from(own) for p in others)
        stacks.append(found.pop() if is_one else max(stacks, default=-1) + 1)
        owners |= {made.node: place for made in sums}
    pairs = zip(stacks, streams, strict=True)
    crossed = {i for i, sums in pairs if any("cross-attention" in x.branches for x in sums)}
    if len(set(stacks)) == 1:
        return ["decoder" if crossed else "model"] * len(streams)
    if len(set(stacks)) == 2 and crossed == {1}:
        return [("encoder", "decoder")[stack] for stack in stacks]
    return [f"stream {stack}" for stack in stacks]


def _plan_stream(model: nn.Module, graph: Graph, sums: list[Sum]) -> list[Layer]:
    """Return a layer for each attention; a sum between two belongs to the block that makes it."""
    starts = [i for i, made in enumerate(sums) if made.attention is not None]
    modules = [{*made.node.modules} for made in sums]
    bounds = []
    for place, start in enumerate(starts):
        other = starts[place - 1]  # another block: that before, or the last one
        bound, least = start, other + 1 if place else 0
        while bound > least and len(modules[bound - 1] & modules[start]) > len(
            modules[bound - 1] & modules[other]
        ):
            bound -= 1
        bounds.append(bound)
    bounds, end = [*bounds, len(sums)], stream.find_end(graph, sums[-1].node)
    layers = [_plan_layer(model, graph, sums, slice(*pair), end) for pair in pairwise(bounds)]
    for layer in layers if any(map(stream.is_rearranged, sums[1:])) else ():
        layer.batch = graph.calls[0].inputs[0].shape[:1].numel()
    end.axes = sums[-1].node.axes
    if layers and end not in (sums[-1].node, *layers[-1].steps.values()):
        layers[-1].final = end
    return layers


def _plan_layer(model: nn.Module, graph: Graph, sums: list[Sum], place: slice, end: Node) -> Layer:
    group = sums[place]
    start, (call, added) = next((i, x.attention) for i, x in enumerate(group) if x.attention)
    attention, later = group[start], group[start + 1 :]
    is_alone = sum(map(len, attention.branches.values())) == 1
    steps = {"input": group[0].carried, "attention": added}
    last, closing = group[-1].node, _find_closing_norm(sums, place.stop, end)
    if is_alone:
        steps["residual"] = attention.node
        if later and later[0].is_normed:
            steps["norm"] = later[0].carried
        elif not later and closing is not None:
            steps["norm"] = closing
    if later or not is_alone:
        if closing is not None:
            steps["mlp_residual"] = last
        steps["mlp"] = last if closing is None else closing
    changes = []
    for i, made in enumerate(group):
        for node in (made.node, made.carried, *chain(*made.branches.values())):
            node.axes = _find_axes(graph, made.node, call)
        if i and made.is_normed:
            changes.append(Sum(made.carried, group[i - 1].node))
        changes.append(made)
    if closing is not None:
        changes.append(Sum(closing, last))
    return Layer(call, model.get_submodule(call.name), steps, changes)


def _find_closing_norm(sums: list[Sum], stop: int, end: Node) -> Node | None:
    """Return the tokens behind a norm that closes a block, None where the sum closes it."""
    if stop < len(sums):
        path = trace_stream(sums[stop].carried)  # what is added behind a norm is no norm
        place = next((i for i, node in enumerate(path) if node.name in NORMS), 0)
        # a norm over channels first has other axes, which move back behind it
        alike = (x for x in path[place::-1] if x.shape == sums[stop - 1].node.shape)
        return next(alike, path[place]) if sums[stop].is_normed else None
    last, has_inner = sums[-1].node, any(made.is_normed for made in sums[1:])
    normed = (any(x.name in NORMS for x in trace_stream(made.carried)) for made in sums[1:])
    is_post = len(sums) > 2 and all(normed)
    # a sum or a norm may be a module of its own, in the block of the last sum
    shared = [a for a, b in zip(last.modules, end.modules, strict=False) if a == b]
    is_inside = bool(shared) and (
        len(shared) == len(last.modules) or shared[-1] not in sums[0].node.modules
    )
    return end if has_inner and (is_inside or is_post) and end is not last else None


def _find_axes(graph: Graph, node: Node, call: AttentionCall) -> tuple[int, int]:
    """Return the axes of samples and of channels in the tokens of a stream."""
    shape, N, given = node.shape, call.shape[-2], graph.calls[0].inputs[0].shape
    if len(shape) > stream.MIN_TOKEN_AXES:
        return 0, 1 if stream.has_channels_first(node) else -1
    # there may be as many images as tokens of a window
    has_images = len(given) > stream.MIN_TOKEN_AXES and given[0] == shape[0] != shape[1]
    if shape[0] != N or len(shape) < stream.MIN_TOKEN_AXES or has_images:
        samples = prod(call.shape[:-3] or call.shape[:1])
        # maps (B heads, N, N) alone have more samples than these tokens
        fits = samples == shape[0] or (len(call.shape) == 3 and samples % shape[0] == 0)
        return 0, 1 if shape[-1] == N != shape[-2] and fits else -1
    around = [made.module for made in graph.calls if made.name in call.node.modules]
    is_first = any(getattr(module, "batch_first", True) is False for module in around)
    # the map of a chunk, such as Mamba-2's, has not as many samples
    has_samples = any(size % shape[1] == 0 for size in call.shape[:-2])
    return int(has_samples and (shape[1] != N or is_first)), -1


def _plan_module(model: nn.Module, graph: Graph, call: AttentionCall) -> Layer:
    layer = Layer(call, model.get_submodule(call.name))
    around = [made for made in graph.calls if made.start <= call.node.index < made.end]
    for made in reversed(around):
        x, y = (
            next((x for x in nodes if len(x.shape) == 3 and x.shape[1] == call.shape[-1]), None)
            for nodes in (made.inputs, made.outputs)
        )
        if y is not None:
            layer.steps = {"attention": y} if x is None else {"input": x, "attention": y}
            layer.changes = [] if x is None else [Sum(y, x, {"attention": []})]
            break
    return layer


def _join_composed(graph: Graph, layers: list[Layer]) -> bool:
    """Return True if each layer takes what the one before returns, without a sum of tokens.

    What lies between two such layers then counts as an MLP.
    """
    if any(len(layer.steps) < 2 for layer in layers):
        return False
    first = layers[0].steps["input"].index
    pairs = [(a, a.steps["attention"], b.steps["input"]) for a, b in pairwise(layers)]
    paths = [(x.steps["input"], x.steps["attention"].iterate_ancestors(first)) for x in layers]
    for _, y, x in pairs:
        between = [*x.iterate_ancestors(y.index, {y})]
        passed = {parent for node in between if node is not y for parent in node.parents}
        if y not in between or any(p.index < y.index and p.numel >= x.numel for p in passed):
            return False  # tokens pass by the layer
        paths.append((x, iter(between)))
    y = layers[-1].steps["attention"]
    later = [x for node in graph.nodes[y.index + 1 :] for x in node.parents if not x.is_constant]
    if any(x.index < y.index and x.numel >= y.numel and x.shape[-1] == y.shape[-1] for x in later):
        return False
    if any(stream.is_full_sum(z) and z.shape == x.shape for x, path in paths for z in path):
        return False
    for before, y, x in pairs:
        if x is not y:
            before.steps["mlp"] = x
            before.changes.append(Sum(x, y, {"MLP": []}))
    return True
