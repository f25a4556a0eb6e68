"""Run a model on a batch, plan its layers, and measure them, in slices if maps are large."""

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attention_core.attention import SelfAttention
from attention_core.diagnosis.attention import AttentionCall, find_attention_calls
from attention_core.diagnosis.batches import ModelInputs
from attention_core.diagnosis.layers import Plan, plan_layers
from attention_core.diagnosis.measure import Measurer, form_layer_maps
from attention_core.diagnosis.projections import ProjectedTokens, read_projections
from attention_core.diagnosis.record import Graph, Node, record_graph
from attention_core.diagnosis.report import Diagnosis, LayerDiagnosis, TokenMeasures
from attention_core.diagnosis.verdict import LIMITS, list_findings, write_verdict
from attention_core.hosts.adapter import Filtered
from attention_core.hosts.attach import attach
from attention_core.hosts.restoration import restore_model
from attention_core.hosts.selection import Where, make_selector, self_attention_modules

MAX_MAP_ENTRIES = 2**26  # entries of a layer's maps: more samples are measured in slices


class LayerMaps(NamedTuple):
    """The map A and the applied map H of a layer, (B, heads, N, N), and its weights, if found."""

    A: Tensor
    H: Tensor
    projected: ProjectedTokens | None


@dataclass(eq=False, repr=False)
class PlannedRun:
    """A model and a batch with the plan of its layers, and the names of the pass's functions."""

    model: nn.Module
    inputs: ModelInputs
    where: Where | None
    plan: Plan
    functions: list[str]

    @contextmanager
    def record(
        self, list_nodes: Callable[[Plan], Iterable[Node]], inputs: ModelInputs
    ) -> Iterator[Plan]:
        """Run the model on a slice and hold the values of nodes; yield their plan.

        It is another plan where the slice calls other functions (transformers without padding).
        """
        run, nodes = self, {*list_nodes(self.plan)}
        if not run._set_values(nodes, inputs):
            run = plan_run(self.model, inputs, self.where)
            nodes = {*list_nodes(run.plan)}
            is_alike = len(run.plan.layers) == len(self.plan.layers)
            if not is_alike or not run._set_values(nodes, inputs):
                raise ValueError(
                    "the samples of the batch call different layers: diagnose them one by one"
                )
        yield run.plan
        for node in nodes:
            node.value = None
        for layer in run.plan.layers:
            if layer.call.filter is not None:
                layer.call.filter.arguments = ()

    def _set_values(self, keep: Collection[Node], inputs: ModelInputs) -> bool:
        places = {node.index for node in keep}
        with restore_model(self.model):
            graph = record_graph(self.model, partial(inputs.run, self.model), places)
        if [node.name for node in graph.nodes] != self.functions:
            return False
        for node in keep:
            node.value = graph.nodes[node.index].value
        for layer in self.plan.layers:
            if layer.call.filter is not None:
                layer.call.filter.arguments = graph.calls[layer.call.filter.place].arguments
        return True

    def find_masks(self, mask: Tensor | None) -> list[Tensor | None]:
        """Return the mask of valid tokens (B, N) of each layer's map, None for one without."""
        layers = self.plan.layers
        shapes = [(layer.num_samples, layer.call.shape[-2]) for layer in layers]
        if not isinstance(mask, Tensor | None):
            raise TypeError(f"diagnose.mask must be a tensor, got {type(mask).__name__}")
        if mask is not None and (
            tuple(mask.shape) not in shapes or mask.is_floating_point() or mask.is_complex()
        ):
            known = ", ".join(str(shape) for shape in dict.fromkeys(shapes))
            raise ValueError(
                f"diagnose.mask must be boolean (batch, tokens), True for a valid token: {known} "
                f"in this model, got {tuple(mask.shape)} of {mask.dtype}"
            )
        if mask is None:
            pairs = zip(layers, shapes, strict=True)
            masks = [self.inputs.find_mask(x.stack == "decoder", shape) for x, shape in pairs]
        else:
            masks = [mask.bool() if mask.shape == shape else None for shape in shapes]
        for found in masks:
            few = [] if found is None else (found.sum(1) < 2).nonzero().flatten().tolist()
            if few:
                raise ValueError(
                    f"sample {few[0]} of the batch has fewer than two valid tokens, and smoothness "
                    "is measured between two or more: leave it out"
                )
        return masks

    def choose_size(self, limit: float = inf) -> int:
        """Return the number of samples of a slice: all where the axis of samples is unknown."""
        whole, layers = self.inputs.num_samples, self.plan.layers
        tensors = (x for x in self.inputs.args if isinstance(x, Tensor) and x.ndim)
        is_joined = any(len(x) not in (1, whole) for x in tensors)  # as the bonds of graphs
        if is_joined or any(x.tokens.axes[0] or x.num_samples % whole for x in layers):
            return whole
        largest = max(prod(layer.call.shape) for layer in layers)
        return int(max(1, min(whole, limit, MAX_MAP_ENTRIES * whole // largest)))

    def cut_mask(self, mask: Tensor | None, part: slice) -> Tensor | None:
        """Return the rows of a mask of a slice of the batch; a window has its own rows."""
        if mask is None or len(mask) % self.inputs.num_samples:
            return mask
        windows = len(mask) // self.inputs.num_samples
        return mask[part.start * windows : part.stop * windows]


def plan_run(model: nn.Module, inputs: ModelInputs, where: Where | None = None) -> PlannedRun:
    """Plan the layers of a model by a pass; it may get Plain filters: the caller restores it."""
    graph, calls = _find_calls(model, inputs, where)
    if not any(call.is_square for call in calls) and attach_plain(model, where):
        graph, calls = _find_calls(model, inputs, where)
    if not calls and any(node.name == "flex_attention" for node in graph.nodes):
        raise ValueError("flex_attention shows no map: diagnose with scaled_dot_product_attention")
    _check_calls(model, calls, where)
    plan = plan_layers(model, graph, calls)
    if not any(layer.has_map for layer in plan.layers):
        raise ValueError(
            f"the attention maps of {type(model).__name__} are of channels, of blocks, or of other "
            "tokens than a stream has (joint attention, hyper-connections), and smoothness is "
            "measured between those of a stream (graphs of several sizes: diagnose one at a time)"
        )
    for call in calls:
        if call.filter is not None:
            call.filter.arguments = ()  # until they are needed
    return PlannedRun(model, inputs, where, plan, [node.name for node in graph.nodes])


def _find_calls(
    model: nn.Module, inputs: ModelInputs, where: Where | None
) -> tuple[Graph, list[AttentionCall]]:
    with restore_model(model):
        graph = record_graph(model, partial(inputs.run, model))
    calls = find_attention_calls(graph)
    if where is not None:
        is_named = make_selector(where)
        names = {name for name, module in model.named_modules() if is_named(module)}
        calls = [call for call in calls if names.intersection(call.node.modules)]
    return graph, calls


def attach_plain(model: nn.Module, where: Where | None) -> bool:
    """Attach Plain to the attention without a filter; return False if attach knows none."""
    try:
        found = self_attention_modules(model, where)
        stock = [i for i, (module, _) in enumerate(found) if not isinstance(module, Filtered)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # attention that no filter supports stays as it is
            attach(model, layers=stock, where=where)
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


@torch.no_grad()
def collect_maps(model: nn.Module, inputs: ModelInputs) -> list[LayerMaps]:
    """Return the maps of the layers of a prepared model, without kernels that form none."""
    run = plan_run(model, inputs)

    with run.record(lambda p: [x for y in p.layers for x in y.list_nodes(True)], inputs) as plan:
        formed = [(layer, form_layer_maps(layer)) for layer in plan.layers]
        return [
            LayerMaps(*maps, read_projections(layer.projection, layer.call, maps[0].shape))
            for layer, maps in formed
            if maps is not None
        ]


@torch.no_grad()
def measure_run(
    run: PlannedRun, selected: Sequence[int], mask: Tensor | None, is_full: bool
) -> Diagnosis:
    """Measure the selected layers of a planned run, as means over the samples, and judge them."""
    inputs, masks = run.inputs, run.find_masks(mask)
    found: list[tuple[list[LayerDiagnosis], dict[str, TokenMeasures]]] = []
    sizes, device = [], next((w.device.type for w in run.model.parameters()), "cpu")

    def list_nodes(plan: Plan) -> list[Node]:
        return [node for i in selected for node in plan.layers[i].list_nodes(is_full)]

    for part, few in inputs.iterate_slices(run.choose_size()):
        sizes.append(few.num_samples)
        with run.record(list_nodes, few) as plan, torch.autocast(device, enabled=False):
            cut = [run.cut_mask(masks[i], part) for i in selected]
            found.append(Measurer(is_full).measure_layers([plan.layers[i] for i in selected], cut))
    layers, final = (_average_parts(list(parts), sizes) for parts in zip(*found, strict=True))
    first = run.plan.layers[selected[0]]
    is_other = first.tokens.axes[0] or first.num_samples % inputs.num_samples > 0
    num_samples = first.num_samples if is_other else inputs.num_samples
    return Diagnosis(
        model=type(run.model).__name__,
        num_tokens=first.num_tokens // max(1, num_samples),
        num_samples=num_samples,
        layers=layers,
        leverage=None,
        verdict=write_verdict(layers, run.plan.reason),
        notes=run.plan.notes,
        findings=list_findings(layers),
        final=final,
        limits=LIMITS,
    )


def _average_parts(parts: list[Any], sizes: list[int]) -> Any:
    """Return the measures of slices of a batch, averaged by their numbers of samples."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, list):
        return [_average_parts(list(entries), sizes) for entries in zip(*parts, strict=False)]
    if isinstance(first, dict):
        shared = [key for key in first if all(key in part for part in parts)]
        return {key: _average_parts([part[key] for part in parts], sizes) for key in shared}
    if isinstance(first, LayerDiagnosis | TokenMeasures):
        changes = _average_parts([vars(part) for part in parts], sizes)
        if isinstance(first, TokenMeasures):
            samples = {k: [x for part in parts for x in part.samples[k]] for k in first.samples}
            channels = sorted({x for part in parts for x in part.outlier_channels})
            changes |= {"samples": samples, "outlier_channels": channels}
        return replace(first, **changes)
    if isinstance(first, bool):
        return all(parts)
    if not isinstance(first, float | complex):
        return first
    pairs = zip(parts, sizes, strict=True)
    known = [(x, n) for x, n in pairs if x is not None and x == x]  # no NaN
    total = sum(n for _, n in known)
    return sum(x * n / total for x, n in known) if known else first
