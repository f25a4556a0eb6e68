"""Measure the attention layers of a prepared model, in slices of the batch if maps are large."""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attention_core.diagnosis.batches import ModelInputs, check_mask, check_samples
from attention_core.diagnosis.measure import MeasuredCall, measure_call
from attention_core.diagnosis.recording import AttentionCall, Recorder, is_measured
from attention_core.diagnosis.report import LayerDiagnosis, TokenMeasures
from attention_core.hosts.restoration import restore_model

MAX_MAP_ENTRIES = 2**26  # in the maps of a layer: more samples are measured in slices


class CallShape(NamedTuple):
    """The sizes of one call of an attention: batch, tokens, and entries of its maps."""

    name: str
    batch: int
    num_tokens: int
    num_entries: int
    is_sequence_first: bool


class MeasuredLayers(NamedTuple):
    """The diagnosis of each layer, the numbers of samples and of the first tokens, and notes."""

    layers: list[LayerDiagnosis]
    num_samples: int
    num_tokens: int
    notes: list[str]


@torch.no_grad()
def list_calls(model: nn.Module, batch: ModelInputs, attention: dict[str, Any]) -> list[CallShape]:
    """Return the shape of each call of an attention, in the order of the calls.

    Raises ValueError if the model calls none of its attention, or with one token alone.
    """
    calls: list[CallShape] = []
    lengths: list[int] = []

    def record(name: str, module: Any, inputs: tuple[Any, ...], z: Tensor) -> None:
        operator, v = inputs
        lengths.append(v.shape[-2])
        if is_measured(operator, v, z):
            B, H, N, _ = z.flatten(0, -4).shape  # windows may have an axis of their own
            is_first = getattr(module, "batch_first", True) is False
            calls.append(CallShape(name, B, N, B * H * N * N, is_first))

    with restore_model(model):
        for name, module in attention.items():
            module.filter.register_forward_hook(
                lambda _, inputs, z, name=name, module=module: record(name, module, inputs, z)
            )
        model(*batch.args, **batch.kwargs)
    if not lengths:
        raise ValueError(f"{type(model).__name__} does not call its attention on this batch")
    if not calls:
        reason = "one token alone" if max(lengths) == 1 else "maps that are not square alone"
        raise ValueError(
            f"{type(model).__name__} attends to {reason} on this batch, and smoothness is measured "
            "between two tokens or more"
        )
    return calls


@torch.no_grad()
def measure_layers(
    model: nn.Module,
    batch: ModelInputs,
    attention: dict[str, Any],
    calls: list[CallShape],
    selected: Sequence[int],
    mask: Tensor | None,
) -> MeasuredLayers:
    """Measure the selected calls of attention, as means over the samples of the batch."""
    masks = find_masks(batch, calls, mask)
    measured: list[MeasuredCall] = []
    slices: list[list[LayerDiagnosis]] = []
    sizes: list[int] = []
    for part, args, kwargs in batch.iterate_slices(choose_size(batch, calls)):
        measured = []

        def finish(call: AttentionCall, part: slice = part, found: Any = measured) -> None:
            found.append(measure_call(call, cut_mask(masks[call.index], part, batch)))

        with restore_model(model):
            Recorder(model, attention, selected, finish)
            model(*args, **kwargs)
        measured.sort(key=lambda call: call.layer.index)
        slices.append([call.layer for call in measured])
        sizes.append(part.stop - part.start)
    layers = _average_layers(slices, sizes)
    first = calls[selected[0]]
    is_other = first.is_sequence_first or first.batch % batch.num_samples > 0
    num_samples = first.batch if is_other else batch.num_samples
    return MeasuredLayers(layers, num_samples, measured[0].num_tokens, _merge_notes(measured))


def find_masks(
    batch: ModelInputs, calls: list[CallShape], mask: Tensor | None
) -> list[Tensor | None]:
    """Return the mask of valid tokens (B, N) of each call, None for one without.

    Raises ValueError for a given mask that fits no call, and a sample without two valid tokens.
    """
    shapes = [(call.batch, call.num_tokens) for call in calls]
    given = check_mask(mask, shapes)
    has_encoder = any("encoder" in call.name.split(".") for call in calls)
    masks: list[Tensor | None] = []
    for call, shape in zip(calls, shapes, strict=True):
        is_decoder = has_encoder and "decoder" in call.name.split(".")
        found = given if given is not None and given.shape == shape else None
        masks.append(batch.find_mask(is_decoder, shape) if given is None else found)
    for found in masks:
        if found is not None:
            check_samples(found)
    return masks


def cut_mask(mask: Tensor | None, part: slice, batch: ModelInputs) -> Tensor | None:
    """Return the rows of a mask of a slice of the batch; a window has its own rows."""
    if mask is None or len(mask) % batch.num_samples:
        return mask
    windows = len(mask) // batch.num_samples
    return mask[part.start * windows : part.stop * windows]


def choose_size(batch: ModelInputs, calls: list[CallShape]) -> int:
    """Return the number of samples of a slice, all of them where the axis of samples is unknown."""
    whole = batch.num_samples
    if any(call.is_sequence_first or call.batch % whole for call in calls):
        return whole
    largest = max(call.num_entries for call in calls)
    return max(1, min(whole, MAX_MAP_ENTRIES * whole // largest))


def _merge_notes(measured: list[MeasuredCall]) -> list[str]:
    notes: dict[str, list[str]] = {}
    for call in measured:
        if call.note:
            notes.setdefault(call.note, []).append(str(call.layer.index))
    return [f"of the blocks of layers {', '.join(where)}: {note}" for note, where in notes.items()]


def _average_layers(slices: list[list[LayerDiagnosis]], sizes: list[int]) -> list[LayerDiagnosis]:
    """Return the layers of slices of a batch, averaged by the number of samples of each slice.

    Raises ValueError if the slices have different layers.
    """
    if len({len(layers) for layers in slices}) > 1:
        raise ValueError("the samples of the batch call different layers: diagnose them one by one")
    return [_average_parts(list(parts), sizes) for parts in zip(*slices, strict=True)]


def _average_parts(parts: list[Any], sizes: list[int]) -> Any:
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, LayerDiagnosis | TokenMeasures):
        named = {
            entry.name: _average_parts([getattr(part, entry.name) for part in parts], sizes)
            for entry in fields(first)
        }
        return replace(first, **named)
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
    return isinstance(value, complex) or (isinstance(value, float) and not math.isnan(value))
