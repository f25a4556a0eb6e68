"""The report of a diagnosis: measures of each layer and head, a table of them, and the verdict."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

STEPS = ("input", "attention", "residual", "norm", "mlp_residual", "mlp")
_NAME_WIDTH = 22  # for a module's name; the table fits 80 columns
_SCALARS = (
    *("hfc_lfc", "hfc_share", "token_cosine", "signed_token_cosine", "effective_rank"),
    "high_frequency_norm",
)
_MAX_LEVERAGE = 10  # rows of the table of leverage


@dataclass(frozen=True)
class TokenMeasures:
    """The measures of one set of tokens, as means over samples, without padding.

    `token_cosine` is absolute, `signed_token_cosine` is not, `high_frequency_norm` is the
    Frobenius norm of the tokens less their mean, and the singular values are largest first.

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


@dataclass(frozen=True)
class LayerDiagnosis:
    """The measures of one attention layer; a layer that is called twice counts twice.

    `steps` holds the tokens, in this order, at the `input` of the block, after the branch of
    `attention`, after its `residual` sum, and at the output of the block, `mlp`; a block whose
    norms follow its sums (post-LN) has the attention's `norm` and the `mlp_residual` sum too. A
    step that the block does not show is absent. Lists over heads are (H,), and (H, N) or
    (H, N // 2 + 1) for spectra; a head whose map has negative entries has no entropy, which is
    NaN. `responses` are of the map that is applied, H(A), `map_responses` of A.

    `eigenvalue_shares`, `value_output_spectrum` (H, d + 1) and `condition_number`, of the whole
    product of the value and output weights, are None where these weights are not found.
    `bounds` are on the growth of the high-frequency norm from the input of the attention to
    its output: `attention` (Proposition 4) and `residual` (Proposition 5) by `alpha` and the
    weights, and `map`, of the applied map itself; `measured` is the growth. Propositions 4 and 5
    hold for A of softmax without a mask of pairs, and are left out of other layers.

    Source: https://arxiv.org/abs/2203.05962 (bounds), https://arxiv.org/abs/2401.04301v2 (shares)
    """

    index: int
    name: str
    module: str
    num_heads: int
    is_causal: bool
    steps: dict[str, TokenMeasures]
    attention_entropy: list[float]
    relative_entropy: list[float]
    map_cosine: float
    head_cosine: float | None
    map_singular_values: list[list[float]] = field(repr=False)
    responses: list[list[float]] = field(repr=False)
    map_responses: list[list[float]] = field(repr=False)
    eigenvalue_shares: dict[str, float] | None
    value_output_spectrum: list[list[complex]] | None = field(repr=False)
    condition_number: float | None
    coefficients: dict[str, list[float]]
    bounds: dict[str, float]

    def change(self, before: str, after: str) -> float | None:
        r"""Return the change of log(HFC/LFC) between two steps, None where one is absent.

        It is below 0 where the tokens are smoothed.
        """
        pair = [self.steps.get(step) for step in (before, after)]
        ratios = [tokens.hfc_lfc for tokens in pair if tokens is not None]
        if len(ratios) < len(pair) or not all(0 < ratio < math.inf for ratio in ratios):
            return None
        return math.log(ratios[1] / ratios[0])


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


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The report of `attention_core.diagnose`.

    It prints as a table, in a notebook too. `notes` say what was left out. `leverage` is None
    where it was not asked for, and sorted by the largest change of log(HFC/LFC).
    """

    model: str
    num_tokens: int
    num_samples: int
    layers: list[LayerDiagnosis]
    leverage: list[Leverage] | None
    verdict: str
    notes: list[str] = field(default_factory=list)

    def curve(self, measure: str, step: str = "mlp") -> list[float]:
        """Return a measure of tokens by depth: at the first layer's input, then after each layer.

        A layer without this step has NaN. Raises ValueError for another measure or step.
        """
        if measure not in _SCALARS or step not in STEPS[1:]:
            raise ValueError(
                f"curve takes a measure of {', '.join(_SCALARS)} and a step of "
                f"{', '.join(STEPS[1:])}, got {measure!r} and {step!r}"
            )
        tokens = [self.layers[0].steps.get("input")]
        tokens += [layer.steps.get(step) for layer in self.layers]
        return [math.nan if x is None else getattr(x, measure) for x in tokens]

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON: None where a number is undefined, [real, imaginary]."""
        return _convert_to_json(asdict(self))

    def to_dataframe(self) -> Any:
        """Return the measures as a pandas DataFrame, one row a layer; heads are averaged."""
        import pandas

        return pandas.DataFrame([_flatten_layer(layer) for layer in self.layers])

    def plot(self) -> Any:
        """Draw the report as a matplotlib Figure."""
        return import_module("attention_core.plots").plot_diagnosis(self)  # needs matplotlib

    def __str__(self) -> str:
        cells = [_HEADER, *_make_rows(self.layers)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            " ".join(
                cell.ljust(width) if i == 1 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]
        rule = "-" * max(map(len, lines))
        text = [self._title(), "", lines[0], rule, *lines[1:], "", *self._list_sentences()]
        return "\n".join([*text, *self._list_leverage()])

    def __rich__(self) -> Any:
        """Return what `rich` prints."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(self._title()), caption=None, box=None, padding=(0, 1, 0, 0))
        for i, name in enumerate(_HEADER):
            table.add_column(name, justify="left" if i == 1 else "right", no_wrap=True)
        for row in _make_rows(self.layers):
            table.add_row(*map(Text, row))
        lines = [*self._list_sentences(), *self._list_leverage()]
        return Group(table, Text(), *map(Text, lines))

    def __repr__(self) -> str:
        return str(self)

    def _title(self) -> str:
        samples = "1 sample" if self.num_samples == 1 else f"{self.num_samples} samples"
        return f"{self.model}: {samples} of {self.num_tokens} tokens"

    def _list_sentences(self) -> list[str]:
        return [self.verdict, *(f"Note: {note}." for note in self.notes)]

    def _list_leverage(self) -> list[str]:
        if not self.leverage:
            return []
        lines = ["", "Leverage on the last layer, at identity (no claim about accuracy)"]
        lines += [
            f"{'mechanism':18}{'layer':>6}  {'coefficient':12}{'d log HFC/LFC':>14}{'d cosine':>12}"
        ]
        return lines + [
            f"{x.mechanism[:18]:18}{x.layer:>6}  {x.coefficient[:12]:12}"
            f"{x.log_hfc_lfc:>14.3g}{x.token_cosine:>12.3g}"
            for x in self.leverage[:_MAX_LEVERAGE]
        ]


_HEADER = ["", "attention", "HFC/LFC", "attn", "MLP", "cosine", "rank", "entropy", "smooths"]


def _make_rows(layers: list[LayerDiagnosis]) -> Iterator[list[str]]:
    """Yield the cells of each layer: tokens at its output, changes of log(HFC/LFC), its maps."""
    for layer in layers:
        step = list(layer.steps)[-1] if layer.steps else None
        tokens = None if step is None else layer.steps[step]
        last_sum = "residual" if "residual" in layer.steps else "attention"
        name = layer.name if len(layer.name) <= _NAME_WIDTH else "…" + layer.name[1 - _NAME_WIDTH :]
        shares = layer.eigenvalue_shares
        yield [
            str(layer.index),
            name,
            _format_number(None if tokens is None else tokens.hfc_lfc),
            _format_number(layer.change("input", last_sum), "+.2f"),
            _format_number(layer.change(last_sum, "mlp"), "+.2f"),
            _format_number(None if tokens is None else tokens.token_cosine, ".3f"),
            _format_number(None if tokens is None else tokens.effective_rank, ".1f"),
            _format_number(average_finite(layer.relative_entropy), ".2f"),
            _format_number(None if shares is None else shares["smoothing"], ".0%"),
        ]


def average_finite(values: list[float]) -> float | None:
    """Return the mean of the finite values, None if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


def _format_number(value: float | None, form: str = ".3g") -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def _flatten_layer(layer: LayerDiagnosis) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: getattr(layer, name)
        for name in ("index", "name", "module", "num_heads", "is_causal", "map_cosine")
    }
    row |= {"head_cosine": layer.head_cosine, "condition_number": layer.condition_number}
    for name in ("attention_entropy", "relative_entropy"):
        row[name] = average_finite(getattr(layer, name))
    for step, tokens in layer.steps.items():
        row |= {f"{step}_{name}": getattr(tokens, name) for name in _SCALARS}
    row |= {f"{kind}_share": share for kind, share in (layer.eigenvalue_shares or {}).items()}
    return row | {f"bound_{name}": value for name, value in layer.bounds.items()}


def _convert_to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _convert_to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_convert_to_json(item) for item in value]
    if isinstance(value, complex):
        return [_convert_to_json(value.real), _convert_to_json(value.imag)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
