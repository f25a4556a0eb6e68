"""The report of a diagnosis: measures of each layer and head, a table of them, and the verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any, Self

import torch
from torch.utils._pytree import tree_map

STEPS = ("input", "attention", "residual", "norm", "mlp_residual", "mlp")
_SCALARS = (
    *("hfc_lfc", "hfc_share", "token_cosine", "signed_token_cosine", "effective_rank"),
    *("high_frequency_norm", "trimmed_hfc_lfc", "trimmed_token_cosine"),
    *("largest_channel_share", "largest_token_norm", "outlier_tokens"),
)


@dataclass(frozen=True)
class TokenMeasures:
    """The measures of one set of tokens, as means over samples, without padding.

    `token_cosine` is absolute, `signed_token_cosine` is not. The trimmed measures leave out the
    outlier channels and tokens of all steps, and `samples` has these of each sample; the outliers
    that are listed are its own. `largest_channel_share` is of the energy, `largest_token_norm`
    relative to the median, and `outlier_tokens` a number per sample.

    Source: eqs. 5 and 76, and figure 1, of https://arxiv.org/abs/2203.05962;
    https://arxiv.org/abs/2303.06562 for the signed cosine
    """

    hfc_lfc: float
    hfc_share: float
    token_cosine: float
    signed_token_cosine: float
    effective_rank: float
    high_frequency_norm: float
    singular_values: list[float] = field(repr=False)
    trimmed_hfc_lfc: float
    trimmed_token_cosine: float
    largest_channel_share: float
    largest_token_norm: float
    outlier_channels: list[int]
    outlier_tokens: float
    samples: dict[str, list[float]] = field(repr=False)

    def read_logs(self) -> torch.Tensor:
        """Return log(HFC/LFC) of each sample without outliers, (B,); at least log(1e-6)."""
        return torch.tensor(self.samples["hfc_lfc"]).double().clamp(min=1e-6).log()


@dataclass(frozen=True)
class LayerDiagnosis:
    """The measures of one attention layer; a layer that is called twice counts twice.

    `index` counts the layers of a `stack`: "model", or "encoder" and "decoder"; `segment` counts
    the stages whose tokens have other sizes. `steps` has the tokens at the `input`, after the
    branch of `attention`, after its `residual` sum, and at the end, `mlp`; of a post-LN layer, the
    attention's `norm` and the `mlp_residual` sum too. `changes` are those of log(HFC/LFC) by what
    is added, without outliers.

    Lists over heads are (H,), spectra (H, N // 2 + 1). A map with negative entries has no entropy,
    which is NaN. Rows are normalized before entropy and eigenvalues. `responses` are of the map
    that is applied, H(A). `map_similarity` is the cosine of the map and that of the layer before.

    `eigenvalue_shares`, `value_output_spectrum` (H, d + 1) and `condition_number` are None where
    the value and output weights are not found. `bounds` are on the growth of the high-frequency
    norm in the attention, which is `measured`: `attention` (Proposition 4) and `residual`
    (Proposition 5) by `alpha` and the weights, for softmax without a mask of pairs, and `map`.

    Source: https://arxiv.org/abs/2203.05962 (bounds), https://arxiv.org/abs/2401.04301v2 (shares)
    """

    index: int
    name: str
    module: str
    num_heads: int
    steps: dict[str, TokenMeasures]
    coefficients: dict[str, list[float]]
    changes: dict[str, float] = field(default_factory=dict)
    stack: str = "model"
    segment: int = 0
    is_causal: bool = False
    attention_entropy: list[float] = field(default_factory=list)
    relative_entropy: list[float] = field(default_factory=list)
    map_cosine: float = math.nan
    head_cosine: float | None = None
    map_similarity: float | None = None
    responses: list[list[float]] = field(default_factory=list, repr=False)
    eigenvalue_shares: dict[str, float] | None = None
    value_output_spectrum: list[list[complex]] | None = field(default=None, repr=False)
    condition_number: float | None = None
    bounds: dict[str, float] = field(default_factory=dict)

    @property
    def output(self) -> TokenMeasures | None:
        """Return the tokens at the last step, None if no step was found."""
        return next(reversed(self.steps.values())) if self.steps else None


@dataclass(frozen=True)
class Leverage:
    """The derivatives of the last layer's smoothness by a coefficient of one layer, at identity.

    All entries of the coefficient (heads, channels) move together. `token_cosine` is the
    derivative of the absolute token cosine, `log_hfc_lfc` that of log(HFC/LFC). It says what moves
    the tokens, and nothing about accuracy.
    """

    mechanism: str
    layer: int
    coefficient: str
    token_cosine: float
    log_hfc_lfc: float
    stack: str = "model"


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The report of `attention_core.diagnose`, which prints as a table.

    `final` has the tokens after the final norm of each stack that has one. `findings` are sentences
    on outliers, entropy and maps; `notes` say what was left out. `limits` are the verdict's.
    `leverage` is sorted by the change of log(HFC/LFC), and None where it was not asked for.
    """

    model: str
    num_tokens: int
    num_samples: int
    layers: list[LayerDiagnosis]
    leverage: list[Leverage] | None
    verdict: str
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    final: dict[str, TokenMeasures] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)

    def curve(self, measure: str, step: str = "output") -> list[float]:
        """Return a measure of tokens by depth: at the first layer's input, then after each layer.

        The `output` of a layer is its last step. A layer without the step has NaN. Raises
        ValueError for another measure or step.
        """
        steps = ("output", *STEPS[1:])
        if measure not in _SCALARS or step not in steps:
            raise ValueError(
                f"curve takes a measure of {', '.join(_SCALARS)} and a step of "
                f"{', '.join(steps)}, got {measure!r} and {step!r}"
            )
        tokens = [x.output if step == "output" else x.steps.get(step) for x in self.layers]
        found = [self.layers[0].steps.get("input"), *tokens]
        return [math.nan if x is None else getattr(x, measure) for x in found]

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON: None where a number is undefined, [real, imaginary]."""
        return tree_map(_convert_leaf, asdict(self))

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the report that `to_dict` wrote, from JSON too."""
        layers = [_read_layer(layer) for layer in content["layers"]]
        final = {stack: TokenMeasures(**_to_nan(x)) for stack, x in content["final"].items()}
        leverage = content["leverage"] and [Leverage(**_to_nan(x)) for x in content["leverage"]]
        return cls(**{**content, "layers": layers, "final": final, "leverage": leverage})

    def to_dataframe(self) -> Any:
        """Return the measures as a pandas DataFrame, one row a layer; heads are averaged."""
        import pandas

        return pandas.DataFrame([_flatten_layer(layer, layer.steps) for layer in self.layers])

    def plot(self) -> Any:
        """Draw the report as a matplotlib Figure."""
        return import_module("attention_core.plots").plot_diagnosis(self)  # needs matplotlib

    def __str__(self) -> str:
        samples = "1 sample" if self.num_samples == 1 else f"{self.num_samples} samples"
        title = f"{self.model}: {samples} of {self.num_tokens} tokens"
        lines = _format_table(self.layers)
        table = [lines[0], "-" * max(map(len, lines)), *lines[1:]]
        sentences = [self.verdict, *self.findings, *(f"Note: {note}." for note in self.notes)]
        return "\n".join([title, "", *table, "", *sentences, *self._list_leverage()])

    __repr__ = __str__

    def _list_leverage(self) -> list[str]:
        names = number_layers(self.layers)
        rows = [
            f"{x.mechanism[:18]:18}{names[x.stack, x.layer]:>6}  "
            f"{x.coefficient[:12]:12}{x.log_hfc_lfc:>14.3g}{x.token_cosine:>12.3g}"
            for x in (self.leverage or [])[:10]
        ]
        title = "Leverage on the last layer, at identity (no claim about accuracy)"
        head = f"{'mechanism':18} layer  {'coefficient':12} d log HFC/LFC    d cosine"
        return ["", title, head, *rows] if rows else []


_CHANGE = "+.2f"
# the columns of a table of layers by their titles: a name in a row of measures, and a format
COLUMNS = {
    "HFC/LFC": ("output_trimmed_hfc_lfc", ".3g"),
    "attn": ("attention_change", _CHANGE),
    "cross": ("cross-attention_change", _CHANGE),
    "MLP": ("MLP_change", _CHANGE),
    "conv": ("convolution_change", _CHANGE),
    "skip": ("skip_change", _CHANGE),
    "norm": ("norm_change", _CHANGE),
    "cosine": ("output_trimmed_token_cosine", ".3f"),
    "signed": ("output_signed_token_cosine", ".3f"),
    "rank": ("output_effective_rank", ".1f"),
    "largest": ("output_largest_token_norm", ".1f"),
    "entropy": ("relative_entropy", ".2f"),
    "maps": ("map_cosine", ".3f"),
    "smooths": ("smoothing_share", ".0%"),
    "tied": ("tied_share", ".0%"),
}
_PAGE_ONLY = ("signed", "largest", "maps")  # too wide for a terminal


def make_columns(layers: list[LayerDiagnosis]) -> dict[str, list[tuple[float | None, str]]]:
    """Return the columns of a table: for each layer a value, None where unknown, and its text."""
    rows = [_flatten_layer(layer, {"output": layer.output}) for layer in layers]
    columns = {}
    for title, (name, form) in COLUMNS.items():
        values = [row.get(name) for row in rows]
        known = [x if x is not None and math.isfinite(x) else None for x in values]
        if form != _CHANGE or any(name in row for row in rows):
            columns[title] = [(x, "-" if x is None else format(x, form)) for x in known]
    return columns


def number_layers(layers: list[LayerDiagnosis]) -> dict[tuple[str, int], str]:
    """Return the number of each stack and index, with the stack's name if there are several."""
    places = [(x.stack, x.index) for x in layers]
    has_stacks = len(dict(places)) > 1
    names = {name: name.replace("stream ", "s")[:3] for name, _ in places}
    return {(name, i): f"{names[name]} {i}" if has_stacks else str(i) for name, i in places}


def _format_table(layers: list[LayerDiagnosis]) -> list[str]:
    columns = [["", *number_layers(layers).values()], ["attention", *(x.name for x in layers)]]
    for title, cells in make_columns(layers).items():
        if title not in _PAGE_ONLY:
            columns.append([title, *(text for _, text in cells)])
    widths = [max(map(len, column)) for column in columns]
    widest = 80 - (sum(widths) - widths[1] + len(widths))  # a space behind each column
    columns[1][1:] = [x if len(x) <= widest else "…" + x[1 - widest :] for x in columns[1][1:]]
    widths[1] = max(map(len, columns[1]))
    return [
        " ".join(
            cell.ljust(width) if i == 1 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in zip(*columns, strict=True)
    ]


def average_finite(values: Sequence[float | None]) -> float | None:
    """Return the mean of the finite values, None if there are none."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


def _flatten_layer(
    layer: LayerDiagnosis, steps: Mapping[str, TokenMeasures | None]
) -> dict[str, Any]:
    names = "index stack name module num_heads is_causal map_cosine head_cosine condition_number"
    row: dict[str, Any] = {name: getattr(layer, name) for name in names.split()}
    for name in ("attention_entropy", "relative_entropy"):
        row[name] = average_finite(getattr(layer, name))
    for step, tokens in steps.items():
        row |= {f"{step}_{name}": tokens and getattr(tokens, name) for name in _SCALARS}
    row |= {f"{kind}_change": change for kind, change in layer.changes.items()}
    row |= {f"{kind}_share": share for kind, share in (layer.eigenvalue_shares or {}).items()}
    return row | {f"bound_{name}": value for name, value in layer.bounds.items()}


def _read_layer(content: Mapping[str, Any]) -> LayerDiagnosis:
    # None is a value of its own in these, and NaN in all others
    optional = ("head_cosine", "eigenvalue_shares", "condition_number", "map_similarity")
    layer = _to_nan(content) | {name: content[name] for name in optional}
    spectrum = content["value_output_spectrum"]
    layer["value_output_spectrum"] = spectrum and [[complex(*x) for x in head] for head in spectrum]
    layer["steps"] = {step: TokenMeasures(**x) for step, x in layer["steps"].items()}
    return LayerDiagnosis(**layer)


def _to_nan(value: Any) -> Any:
    return tree_map(lambda x: math.nan if x is None else x, value)


def _convert_leaf(value: Any) -> Any:
    if isinstance(value, complex):
        return [_convert_leaf(value.real), _convert_leaf(value.imag)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
