"""Average the diagnoses of slices of a batch."""

import math
from dataclasses import fields, replace
from typing import Any

from attention_core.diagnosis.report import LayerDiagnosis, TokenMeasures


def average_layers(slices: list[list[LayerDiagnosis]], sizes: list[int]) -> list[LayerDiagnosis]:
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
