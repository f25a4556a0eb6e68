"""Run a model on a batch, plan its layers, and measure them, in slices if maps are large."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from math import isnan, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attention_core.attention import SelfAttention
from attention_core.diagnosis.attention import AttentionCall, find_attention_calls
from attention_core.diagnosis.batches import ModelInputs, check_mask, check_samples
from attention_core.diagnosis.layers import Layer, Plan, plan_layers
from attention_core.diagnosis.measure import Measurer, count_heads
from attention_core.diagnosis.record import Graph, Node, record_graph
from attention_core.diagnosis.report import LayerDiagnosis, TokenMeasures
from attention_core.diagnosis.stream import find_streams
from attention_core.hosts.attach import attach
from attention_core.hosts.restoration import restore_model
from attention_core.hosts.selection import Where, make_selector, self_attention_modules

MAX_MAP_ENTRIES = 2**26  # entries of a layer's maps: more samples are measured in slices


class Measured(NamedTuple):
    """The diagnosis of each layer, the numbers of samples and of the first tokens, and more."""

    layers: list[LayerDiagnosis]
    final: dict[str, TokenMeasures]
    num_samples: int
    num_tokens: int


@dataclass(eq=False, repr=False)
class PlannedRun:
    """A model and a batch with the plan of its layers, and the names of the pass's functions."""

    model: nn.Module
    inputs: ModelInputs
    plan: Plan
    functions: list[str]

    def record(self, keep: Collection[Node], args: Any, kwargs: Any) -> bool:
        """Run the model again and set the values of the nodes to keep.

        Return False if the model called other functions than when the run was planned, as
        transformers does for samples without padding.
        """
        with restore_model(self.model):
            graph = record_graph(
                self.model,
                lambda: self.inputs.run(self.model, args, kwargs),
                {node.index for node in keep},
            )
        if [node.name for node in graph.nodes] != self.functions:
            return False
        for node in keep:
            node.value = graph.nodes[node.index].value
        for layer in self.plan.layers:
            if layer.call.filter is not None:
                layer.call.filter.arguments = graph.calls[layer.call.filter.place].arguments
        return True

    def find_masks(self, mask: Tensor | None) -> list[Tensor | None]:
        """Return the mask of valid tokens (B, N) of each layer's map, None for one without.

        Raises ValueError for a given mask that fits no layer, and for a sample without two valid
        tokens.
        """
        layers = self.plan.layers
        shapes = [(count_map_samples(self.model, layer), layer.call.shape[-1]) for layer in layers]
        given = check_mask(mask, shapes)
        masks: list[Tensor | None] = []
        for layer, shape in zip(layers, shapes, strict=True):
            found = given if given is not None and given.shape == shape else None
            is_decoder = layer.stack == "decoder"
            masks.append(self.inputs.find_mask(is_decoder, shape) if given is None else found)
        for found in masks:
            if found is not None:
                check_samples(found)
        return masks

    def choose_size(self) -> int:
        """Return the number of samples of a slice: all where the axis of samples is unknown."""
        whole, layers = self.inputs.num_samples, self.plan.layers
        if any(
            layer.layout.is_sequence_first or count_map_samples(self.model, layer) % whole
            for layer in layers
        ):
            return whole
        largest = max(prod(layer.call.shape) for layer in layers)
        return max(1, min(whole, MAX_MAP_ENTRIES * whole // largest))

    def cut_mask(self, mask: Tensor | None, part: slice) -> Tensor | None:
        """Return the rows of a mask of a slice of the batch; a window has its own rows."""
        if mask is None or len(mask) % self.inputs.num_samples:
            return mask
        windows = len(mask) // self.inputs.num_samples
        return mask[part.start * windows : part.stop * windows]


def count_map_samples(model: nn.Module, layer: Layer) -> int:
    """Return the number of samples of a layer's map, windows counted as samples."""
    shape = layer.call.shape
    if len(shape) > 3:
        return prod(shape[:-3])
    return shape[0] // count_heads(shape, layer, model.get_submodule(layer.call.name))


def plan_run(model: nn.Module, inputs: ModelInputs, where: Where | None = None) -> PlannedRun:
    """Run a model once and return the plan of its layers.

    Attention that shows no map gets a Plain filter if `attach` knows it: the caller restores the
    model.

    Raises ValueError for a model without attention over two tokens or more.
    """

    def run() -> tuple[Graph, list[AttentionCall]]:
        with restore_model(model):
            graph = record_graph(model, lambda: inputs.run(model, inputs.args, inputs.kwargs))
        return graph, [call for call in find_attention_calls(graph) if is_chosen(call)]

    is_chosen = _make_choice(model, where)
    graph, calls = run()
    if not any(call.is_square for call in calls) and _attach_plain(model, where):
        graph, calls = run()
    _check_calls(model, calls, where)
    plan = plan_layers(model, graph, calls, find_streams(graph, calls))
    for layer in plan.layers:
        layer.has_map = _covers_tokens(model, layer)
    if not any(layer.has_map for layer in plan.layers):
        raise ValueError(
            f"the attention maps of {type(model).__name__} are of channels or of other parts than "
            "tokens, and smoothness is measured between tokens"
        )
    if left := [layer.call.name for layer in plan.layers if not layer.has_map]:
        plan.notes.append(f"the maps of {', '.join(left)} are not of all tokens, and left out")
    for call in calls:
        if call.filter is not None:
            call.filter.arguments = ()  # until they are needed
    return PlannedRun(model, inputs, plan, [node.name for node in graph.nodes])


def _make_choice(model: nn.Module, where: Where | None) -> Callable[[AttentionCall], bool]:
    if where is None:
        return lambda call: True
    is_named = make_selector(where)
    names = {name for name, module in model.named_modules() if is_named(module)}
    return lambda call: bool(names.intersection(call.node.modules))


def _attach_plain(model: nn.Module, where: Where | None) -> bool:
    try:
        attach(model, where=where)
    except ValueError:
        return False
    return True


def _check_calls(model: nn.Module, calls: list[AttentionCall], where: Where | None) -> None:
    if any(call.is_square for call in calls):
        return
    if not calls:
        if not any(isinstance(module, SelfAttention) for module in model.modules()):
            self_attention_modules(model, where)  # raises a sentence on what it has
        raise ValueError(f"{type(model).__name__} does not call its attention on this batch")
    is_alone = max(call.shape[-1] for call in calls) == 1
    reason = "one token alone" if is_alone else "maps that are not square alone"
    raise ValueError(
        f"{type(model).__name__} attends to {reason} on this batch, and smoothness is measured "
        "between two tokens or more"
    )


def _covers_tokens(model: nn.Module, layer: Layer) -> bool:
    """Return True if the rows of a map are the tokens of its layer.

    Windows may add padding, less than as many tokens along each side of an image. A class token or
    registers may be added or left out.
    """
    if "input" not in layer.steps:
        return True
    samples, tokens = count_map_samples(model, layer), layer.num_tokens
    rows = samples * layer.call.shape[-1]
    if samples > layer.shape[1 if layer.layout.is_sequence_first else 0]:
        return tokens <= rows < 4 * tokens
    return abs(rows - tokens) <= samples * max(2, tokens // samples // 4)


@torch.no_grad()
def measure_run(
    run: PlannedRun,
    selected: Sequence[int],
    mask: Tensor | None,
    measures: Collection[str],
    where: Where | None = None,
) -> Measured:
    """Measure the selected layers of a planned run, as means over the samples of the batch."""
    inputs, masks = run.inputs, run.find_masks(mask)
    parts: list[tuple[list[LayerDiagnosis], dict[str, TokenMeasures]]] = []
    sizes = []
    for part, args, kwargs in inputs.iterate_slices(run.choose_size()):
        cut = [run.cut_mask(masks[i], part) for i in selected]
        sizes.append(part.stop - part.start)
        found = _measure_part(run, selected, cut, measures, args, kwargs)
        if found is None:
            sliced = inputs.replace(args, kwargs, sizes[-1])
            again = plan_run(run.model, sliced, where)
            found = None
            if len(again.plan.layers) == len(run.plan.layers):
                found = _measure_part(again, selected, cut, measures, args, kwargs)
            if found is None:
                raise ValueError(
                    "the samples of the batch call different layers: diagnose them one by one"
                )
        parts.append(found)
    measured, ends = _average_parts(parts, sizes)
    first = run.plan.layers[selected[0]]
    samples = count_map_samples(run.model, first)
    is_other = first.layout.is_sequence_first or samples % inputs.num_samples > 0
    num_samples = samples if is_other else inputs.num_samples
    return Measured(measured, ends, num_samples, first.num_tokens // max(1, num_samples))


def _measure_part(
    run: PlannedRun,
    selected: Sequence[int],
    masks: Sequence[Tensor | None],
    measures: Collection[str],
    args: Any,
    kwargs: Any,
) -> tuple[list[LayerDiagnosis], dict[str, TokenMeasures]] | None:
    """Measure a slice of the batch, None if it does not fit the plan of the run."""
    layers = [run.plan.layers[i] for i in selected]
    last = {layer.stack: layer for layer in run.plan.layers}
    final = {name: node for name, (node, _) in run.plan.final.items() if last[name] in layers}
    keep = {node for layer in layers for node in layer.list_nodes(measures)} | {*final.values()}
    if not run.record(keep, args, kwargs):
        return None
    measurer = Measurer(run.model, measures)
    found = [measurer.measure_layer(*pair) for pair in zip(layers, masks, strict=True)]
    ends = {
        name: measurer.measure_node(node, masks[layers.index(last[name])], last[name])
        for name, node in final.items()
    }
    for node in keep:
        if node.parents or node.name:  # no weight
            node.value = None
    return found, ends


def _average_parts(parts: list[Any], sizes: list[int]) -> Any:
    """Return the measures of slices of a batch, averaged by their numbers of samples."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, tuple):
        return tuple(_average_parts(list(entries), sizes) for entries in zip(*parts, strict=True))
    if is_dataclass(first):
        named = {
            entry.name: _average_parts([getattr(part, entry.name) for part in parts], sizes)
            for entry in fields(first)
        }
        if isinstance(first, TokenMeasures):
            named["samples"] = {
                key: [x for part in parts for x in part.samples[key]] for key in first.samples
            }
            named["outlier_channels"] = sorted({x for part in parts for x in part.outlier_channels})
        return replace(first, **named)  # type: ignore[type-var]
    if isinstance(first, dict):
        shared = [key for key in first if all(key in part for part in parts)]
        return {key: _average_parts([part[key] for part in parts], sizes) for key in shared}
    if isinstance(first, list):
        return [_average_parts(list(entries), sizes) for entries in zip(*parts, strict=False)]
    if isinstance(first, bool):
        return all(parts)
    if isinstance(first, float | complex):
        known = [(x, n) for x, n in zip(parts, sizes, strict=True) if _is_number(x)]
        total = sum(n for _, n in known)
        return sum(x * n / total for x, n in known) if known else first
    return first


def _is_number(value: Any) -> bool:
    return isinstance(value, complex) or (isinstance(value, float) and not isnan(value))
