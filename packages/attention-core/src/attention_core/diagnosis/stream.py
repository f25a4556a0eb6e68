"""Find the residual streams of a recorded pass: chains of sums, and the branch that each sum adds.

A sum belongs to a stream if one addend descends from the sum before it through norms, dropout and
reshapes alone. The other addend is a branch: attention if it holds an attention map, else an MLP
or a convolution.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from attention_core.diagnosis.attention import PRODUCTS, TORCH, AttentionCall
from attention_core.diagnosis.record import RESHAPES, Graph, Node

Kind = Literal["attention", "cross-attention", "MLP", "convolution", "skip"]
# `tokens` is a function of tokens that is attached to a model, such as ContraNorm
NORMS = (
    *("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "normalize"),
    "tokens",
)
# they leave every token where it is, or drop or add tokens
_PASSES = {
    *NORMS,
    *RESHAPES,
    *("dropout", "dropout1d", "dropout2d", "alpha_dropout", "feature_dropout"),
    *("roll", "pad", "getitem", "narrow", "index_select", "split", "chunk", "masked_fill", "where"),
    *("nan_to_num", "setitem"),
}  # fmt: skip
_SCALES = ("mul", "div", "add", "sub")  # by fewer entries: a gain, a bias, the norm of a token
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "avg_pool1d", "avg_pool2d")
_CHANNELS_FIRST = (*CONVOLUTIONS, "batch_norm", "group_norm", "instance_norm")
_LINEAR = ("linear", "linear_dynamic", "addmm", "matmul", "bilinear", *CONVOLUTIONS)
_MOVES = ("permute", "transpose", "mT", "swapaxes", "swapdims", "movedim", "moveaxis")
MIN_TOKEN_AXES = 3  # (B, N, D)


@dataclass(eq=False, repr=False)
class Sum:
    """A sum of a stream: the tokens that are `carried` to it, and the branches that it adds.

    `before` is the sum that the stream comes from, None for the first one; `is_normed` says that a
    norm lies between the two. `calls` are the attention calls of the branches, and `attention` is
    the first whose queries are the stream's tokens, and whose keys are not more, with its branch. A
    norm counts as a sum without branches where changes are measured.
    """

    node: Node
    carried: Node
    branches: dict[str, list[Node]] = field(default_factory=dict)  # by their kinds
    calls: list[AttentionCall] = field(default_factory=list)
    attention: tuple[AttentionCall, Node] | None = None
    before: "Sum | None" = None
    is_normed: bool = False
    length: int = 1
    inner: set["Sum"] = field(default_factory=set)  # sums inside of its branches


def find_streams(graph: Graph, calls: list[AttentionCall]) -> list[list[Sum]]:
    """Return the streams of a pass that attention adds to, in the order of their first sums.

    They have no sum in common. Where chains share sums, the longest one is the stream.
    """
    by_node = {call.node: call for call in calls}
    found: dict[Node, Sum] = {}
    for node in graph.nodes:
        if (made := _make_sum(node, found, by_node)) is not None:
            found[node] = made
    streams: list[list[Sum]] = []
    taken: set[Sum] = set()
    inner: set[Sum] = set()  # blocks that are branches of a stream have them
    for last in found.values():
        around = [made for made in _walk_back(last) if made.calls and made.inner]
        inner = inner.union(*(made.inner for made in around)) if len(around) > 1 else inner
    ends = [made for made in found.values() if made not in inner]
    for last in sorted(ends, key=lambda made: (-made.length, made.node.index)):
        sums = [*_walk_back(last)][::-1]
        if any(made.calls for made in sums) and not taken.intersection(sums):
            taken.update(sums)
            streams.append(sums)
    return sorted(streams, key=lambda sums: sums[0].node.index)


def _walk_back(last: Sum | None) -> Iterator[Sum]:
    while last is not None:
        yield last
        last = last.before


def _make_sum(node: Node, found: dict[Node, Sum], calls: dict[Node, AttentionCall]) -> Sum | None:
    if len(node.shape) < 2 or not is_full_sum(node):
        return None
    a, b = node.list_terms()
    ways = []
    for carried, branch in ((a, b), (b, a)):
        path = trace_stream(carried)
        ways.append(([*_walk_back(found.get(path[-1]))], path, branch))
    # the longest chain first: the other addend may be the first input once more
    for passed, path, branch in sorted(ways, key=lambda way: -len(way[0])):
        carried, before = path[0], found.get(path[-1])
        own = {path[-1], *(made.node for made in passed)}
        origin = trace_stream(passed[-1].carried) if passed else path
        elements = own | {origin[0], origin[-1]}
        if not branch.descends_from(elements):
            continue
        first, stop = min(element.index for element in elements), {*elements, *calls}
        passed_nodes = elements | {call.node for made in passed for call in made.calls}
        made = Sum(node, carried, before=before, length=len(passed) + 1)
        made.is_normed = any(part.name in NORMS or part.name == "mul" for part in path[:-1])
        known: list[tuple[AttentionCall, Node]] = []
        for part in _split_branch(branch, elements):
            inside = [x for x in part.iterate_ancestors(first, stop) if x not in passed_nodes]
            made.inner |= {found[x] for x in inside if x in found}
            # a decoder may attend to a memory that is made of its own first tokens
            is_square = all(calls[x].is_square for x in inside if x in calls)
            kind, held = _classify(inside, own | {origin[-1]} if is_square else own, calls)
            made.branches.setdefault(kind, []).append(part)
            made.calls += held
            if kind == "attention":
                known += [(call, part) for call in held if call.shape[-2] >= call.shape[-1] > 1]
        fits = [pair for pair in known if pair[0].shape[-2] in node.shape[1:-1]]
        made.attention = next(iter(fits or known), None)  # not that of Mamba-2's chunks
        return _join_parallel(made, found)
    return None


def _join_parallel(made: Sum, found: dict[Node, Sum]) -> Sum:
    """Return one sum for x + f(x) + g(x), whose branches all start at x; else the sum itself."""
    before, parts = made.before, chain(*made.branches.values())
    if before is None or made.carried is not before.node or made.node.name != before.node.name:
        return made
    first, last = {trace_stream(before.carried)[-1]}, {before.node}
    is_later = any(x.descends_from(last) or not x.descends_from(first) for x in parts)
    if is_later or (made.attention and before.attention):  # a layer shows one map
        return made
    del found[before.node]
    for kind, added in made.branches.items():
        before.branches.setdefault(kind, []).extend(added)
    before.node, before.attention = made.node, before.attention or made.attention
    before.calls += made.calls
    before.inner |= made.inner
    return before


def is_full_sum(node: Node) -> bool:
    """Return True for the sum of two tensors that depend on the input and have all its entries."""
    if node.name not in ("add", "sub"):
        return False
    terms = node.list_terms()
    return len(terms) == 2 and all(
        not term.is_constant and term.numel == node.numel for term in terms
    )


def trace_stream(node: Node) -> list[Node]:
    """Return a tensor, and those before it through norms, dropout and reshapes, newest first."""
    path = [node]
    while (parent := _find_carrier(path[-1])) is not None:
        path.append(parent)
    return path


def is_rearranged(made: Sum) -> bool:
    """Return True if tokens were regrouped into other samples before a sum, as in a video."""
    path = trace_stream(made.carried)
    is_cut = any(node.shape[0] != made.node.shape[0] for node in path)
    return is_cut and any(node.name in _MOVES and len(node.shape) > MIN_TOKEN_AXES for node in path)


def _find_carrier(node: Node) -> Node | None:
    """Return the parent whose tokens a function passes on, None if it makes other tokens."""
    known = [parent for parent in node.parents if not parent.is_constant]
    if not known or is_full_sum(node):
        return None
    largest = max(known, key=lambda parent: parent.numel)
    if node.name == "setitem" and 4 * known[-1].numel >= 3 * node.numel:
        return known[-1]  # most of the tokens are written again
    if node.name in _PASSES:  # a class token alone is a stream of its own
        return largest if 4 * node.numel >= 3 * largest.numel else None
    if node.name == "cat":  # with a class token, registers or prompts
        others = [parent for parent in node.parents if parent is not largest]
        is_few = 2 * sum(parent.numel for parent in others) < node.numel
        return largest if is_few or all(parent.is_constant for parent in others) else None
    if node.name in _SCALES:
        others = [p for p in known if p is not largest and p.numel >= largest.numel]
        is_twice = len(node.list_terms()) == 2 and len(set(node.list_terms())) == 1  # x * x
        return None if others or is_twice else largest
    return None


def has_channels_first(node: Node) -> bool:
    """Return True for tokens (B, D, height, width), by the functions that made channels."""
    nodes = [node]
    for x in nodes:  # grows by what leaves every axis where it is
        if x.name in ("linear", *_CHANNELS_FIRST):
            return x.name != "linear"
        if x.name not in (*RESHAPES, *PRODUCTS):
            nodes += [p for p in x.parents if len(p.shape) == len(node.shape) and p not in nodes]
    dims = [x[-1].shape[-1] for x in map(trace_stream, nodes) if x[-1].name in ("linear", TORCH)]
    return node.shape[1] in dims and node.shape[-1] not in dims


def find_end(graph: Graph, last: Node) -> Node:
    """Return the norm behind the last sum, if the tokens pass one, else the sum."""
    seen = {last}
    for node in graph.nodes[last.index + 1 :]:
        carrier = _find_carrier(node) if node.numel >= last.numel else None
        if carrier in seen:
            seen.add(node)
            # the gain of a norm that is written out: a product with a weight
            weights = (p for p in node.parents if p.is_constant and p.numel > 1)
            is_gain = node.name == "mul" and any(weights)
            if node.name in NORMS or is_gain:
                # the division by a deviation, and a bias; the axes behind channels first
                later = _MOVES if node.shape[-1] != last.shape[-1] else ("add", "div") * is_gain
                for x in graph.nodes[node.index + 1 : node.index + 6]:
                    node = x if x.name in later and _find_carrier(x) is node else node
                if node.shape[-1] == last.shape[-1]:
                    return node
    return last


def _split_branch(branch: Node, elements: Collection[Node]) -> list[Node]:
    """Take a branch apart that is itself a sum of branches, as in parallel blocks."""
    path = trace_stream(branch)
    inner = path[-1]
    if any(part.name in NORMS for part in path[:-1]) or not is_full_sum(inner):
        return [branch]
    terms = inner.list_terms()
    if inner in elements or not all(term.descends_from(elements) for term in terms):
        return [branch]
    # a residual sum inside of a branch, such as an adapter's, is one function
    if any(a.descends_from({trace_stream(b)[-1]}) for a, b in (terms, terms[::-1])):
        return [branch]
    return [part for term in terms for part in _split_branch(term, elements)]


def _classify(
    inside: list[Node], own: Collection[Node], calls: dict[Node, AttentionCall]
) -> tuple[Kind, list[AttentionCall]]:
    found = sorted((calls[x] for x in inside if x in calls), key=lambda call: call.node.index)
    if found:
        keys = [key for call in found for key in call.keys]
        is_self = any(key.descends_from(own) for key in keys)
        return "attention" if is_self else "cross-attention", found
    names = {node.name for node in inside}
    if names.intersection(CONVOLUTIONS):
        return "convolution", []
    return "MLP" if names.intersection(_LINEAR) else "skip", []
