"""Measure one layer of a recorded pass: tokens of each step, maps of each head, weights, bounds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from attention_core import spectral
from attention_core.diagnosis.attention import form_maps
from attention_core.diagnosis.layers import Layer
from attention_core.diagnosis.projections import ProjectedTokens, read_projections
from attention_core.diagnosis.record import Node
from attention_core.diagnosis.report import LayerDiagnosis, TokenMeasures
from attention_core.diagnosis.stream import Sum
from attention_core.diagnosis.tokens import Outliers, find_outliers, summarize_tokens, trim_tokens
from attention_core.hosts.hook_points import find_import_path
from attention_core.reparam import EigenSpectrum, find_spectrum
from attention_core.spectral.heads import SMALLEST_WEIGHT

# heads x tokens^3: of the decompositions of a layer's maps, which use the first samples up to it
MAX_DECOMPOSED = 1e8
_STOCHASTIC = 1e-3  # largest difference from 1 of a row's sum that is rounding


@dataclass
class Measurer:
    """Measures the layers of one pass; tokens that two layers share are measured once.

    What is an outlier in any step of a stack is left out of all: one that crosses the threshold
    does not smooth.
    """

    is_full: bool
    outliers: dict[tuple[int, torch.Size], Outliers] = field(default_factory=dict)
    tokens: dict[tuple[Node, int], TokenMeasures] = field(default_factory=dict)
    previous: dict[str, Tensor] = field(default_factory=dict)  # the mean map before, by stack

    def measure_layers(
        self, layers: Sequence[Layer], masks: Sequence[Tensor | None]
    ) -> tuple[list[LayerDiagnosis], dict[str, TokenMeasures]]:
        """Return the measures of layers, and of the tokens behind the final norm of a stack."""
        pairs = zip(layers, masks, strict=True)
        known = [(layer, *self._measure_attention(layer, mask)) for layer, mask in pairs]
        final = {
            layer.stack: self._measure_node(layer.final, mask, layer)
            for layer, mask, _ in known
            if layer.final is not None
        }
        return [self._measure_layer(*measured) for measured in known], final

    def _measure_attention(
        self, layer: Layer, mask: Tensor | None
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """Return the mask of valid tokens and the measures of the maps; keep the outliers."""
        maps, projected = form_layer_maps(layer), None
        if maps is not None and mask is None:
            mask = find_valid_tokens(layer, maps[0])
        for name, node in layer.steps.items():
            x, valid = _read_tokens(node, mask, layer)
            if name != "attention":  # a branch
                key, (channels, tokens) = (layer.segment, x.shape), find_outliers(x, valid)
                known = self.outliers.get(key, (channels, tokens))
                self.outliers[key] = channels | known[0], tokens | known[1]
        for M in maps or ():  # fused attention may turn NaN to 0
            _check_finite(M, None if mask is None else mask.unsqueeze(1), layer, "maps")
        if maps is not None and self.is_full:
            projected = read_projections(layer.projection, layer.call, maps[0].shape)
        return mask, self._measure_maps(layer.stack, maps, mask, projected)

    def _measure_layer(
        self, layer: Layer, mask: Tensor | None, measured: dict[str, Any]
    ) -> LayerDiagnosis:
        steps = layer.steps
        if not self.is_full:
            steps = {name: steps[name] for name in [*steps][:1] + [*steps][-1:]}
        weights = iterate_coefficients(layer.module)
        return LayerDiagnosis(
            index=layer.index,
            stack=layer.stack,
            segment=layer.segment,
            name=layer.call.name,
            module=find_import_path(layer.module),
            steps={name: self._measure_node(node, mask, layer) for name, node in steps.items()},
            changes=self._measure_changes(layer, mask) if self.is_full else {},
            coefficients={name: x.detach().flatten().tolist() for name, x, _ in weights},
            **{"num_heads": layer.call.shape[-3], **measured},
        )

    def _measure_node(self, node: Node, mask: Tensor | None, layer: Layer) -> TokenMeasures:
        if (key := (node, layer.segment)) not in self.tokens:
            x, valid = _read_tokens(node, mask, layer)
            self.tokens[key] = summarize_tokens(x, valid, self._find_outliers(layer, x, valid))
        return self.tokens[key]

    def _find_outliers(self, layer: Layer, x: Tensor, mask: Tensor | None) -> Outliers:
        return self.outliers.get((layer.segment, x.shape)) or find_outliers(x, mask)

    def _measure_changes(self, layer: Layer, mask: Tensor | None) -> dict[str, float]:
        """Return the change of log(HFC/LFC) by what is added, as a mean over samples.

        Of branches that are added at once, each has the mean of its changes as the first and as
        the last one.
        """
        found: dict[str, list[float]] = {}
        for change in layer.changes:
            kinds = list(change.branches) or ["norm"]
            if len(kinds) == 1:
                nodes = change.carried, change.node
                before, after = (self._measure_node(x, mask, layer).read_logs() for x in nodes)
                shares = {kinds[0]: after - before} if len(after) == len(before) else {}
            else:
                first = self._add_in_order(change, kinds, mask, layer)
                last = self._add_in_order(change, kinds[::-1], mask, layer)
                shares = {kind: (first[kind] + last[kind]) / 2 for kind in kinds}
            for kind, values in shares.items():
                finite = values[values.isfinite()]
                found.setdefault(kind, []).append(finite.mean().item() if len(finite) else 0.0)
        return {kind: sum(values) for kind, values in found.items()}

    def _add_in_order(
        self, change: Sum, order: list[str], mask: Tensor | None, layer: Layer
    ) -> dict[str, Tensor]:
        x, valid = _read_tokens(change.carried, mask, layer)
        branches = {
            kind: sum(_read_tokens(node, mask, layer)[0] for node in change.branches[kind])
            for kind in order
        }
        total: Any = sum(branches.values())
        added = _read_tokens(change.node, mask, layer)[0] - x
        # a LayerScale may multiply the sum of the branches
        gain = (total * added).sum(1, True) / total.square().sum(1, True).clamp(min=1e-30)
        ratios = [self._measure_node(change.carried, mask, layer).read_logs()]
        for kind in order:
            x = x + gain * branches[kind]
            few = trim_tokens(x, valid, *self._find_outliers(layer, x, valid))
            ratios.append(spectral.hfc_lfc(*few).log())
        pairs = zip(order, pairwise(ratios), strict=True)
        return {kind: after - before for kind, (before, after) in pairs}

    def _measure_maps(
        self,
        stack: str,
        maps: tuple[Tensor, Tensor] | None,
        mask: Tensor | None,
        projected: ProjectedTokens | None,
    ) -> dict[str, Any]:
        """Return the measures of the map A and of the map H that is applied, by name."""
        if maps is None:  # a kernel whose output does not depend on values
            self.previous.pop(stack, None)
            return {}
        A, H = (M.to(torch.promote_types(M.dtype, torch.float32)) for M in maps)
        if mask is not None:  # padding may be NaN
            A, H = (spectral.restrict_map(M, mask.unsqueeze(1)) for M in (A, H))
        H = A if maps[1] is maps[0] else H
        gains = spectral.dft_response(H, mask)[..., : H.shape[-1] // 2 + 1]
        found: dict[str, Any] = {"num_heads": A.shape[1], "responses": gains.mean(0).tolist()}
        rows = normalize_rows(A)
        if self.is_full:
            found |= {"map_similarity": self._compare_map(stack, rows)} | _measure_heads(rows, mask)
        if projected is not None:
            few = max(1, int(MAX_DECOMPOSED / (A.shape[1] * A.shape[-1] ** 3)))
            part = None if mask is None else mask[:few]
            found["bounds"] = _compute_bounds(A[:few], H[:few], part, projected, rows is A)
            found |= _measure_weights(projected, rows[:few], part)
        return found

    def _compare_map(self, stack: str, A: Tensor) -> float | None:
        """Return the cosine of the mean map of the heads and that of the layer before.

        Source: https://arxiv.org/abs/2103.11886 (DeepViT)
        """
        mean, before = A.mean(1).flatten(1), self.previous.get(stack)
        self.previous[stack] = mean
        if before is None or before.shape != mean.shape:
            return None
        return torch.cosine_similarity(mean, before, dim=-1).mean().item()


def _read_tokens(node: Node, mask: Tensor | None, layer: Layer) -> tuple[Tensor, Tensor | None]:
    x = layer.arrange_tokens(node, node.value)
    valid, shapes = None, (x.shape[:2], node.shape[:-1])
    if mask is not None and mask.shape in shapes:
        valid = mask.reshape(x.shape[:2])
    _check_finite(x, valid, layer, "tokens")
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x if valid is None else x.where(valid.unsqueeze(-1), 0.0), valid  # it may be NaN


def form_layer_maps(layer: Layer) -> tuple[Tensor, Tensor] | None:
    """Return the map A and the applied map H of a layer, (B, heads, N, N), None without maps."""
    maps = form_maps(layer.call) if layer.has_map else None
    if maps is None:
        return None
    A = layer.flatten_map(maps[0])
    return A, A if maps[1] is maps[0] else layer.flatten_map(maps[1])


def normalize_rows(A: Tensor) -> Tensor:
    """Return a map whose rows sum to 1, A itself if they do; rows of zeros stay."""
    total = A.sum(-1, keepdim=True)
    empty = total == 0
    if ((total - 1).abs() <= _STOCHASTIC).logical_or(empty).all():
        return A
    return A / total.where(~empty, 1.0)


def iterate_coefficients(model: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield the name and values of each coefficient of a mechanism, and True if it is trained.

    A kernel's are those that it applies (AGF's), and not the parameters behind them; a spectrum's
    are its eigenvalues, `<attention>.spectrum.psi`.
    """
    module: Any
    for name, module in model.named_modules():
        owner, _, slot = name.rpartition(".")
        if slot == "kernel" and hasattr(module, "coefficients"):
            is_trained = any(w.requires_grad for w in module.parameters())
            yield f"{name}.theta", module.coefficients(), is_trained
        elif slot in ("filter", "tokens"):
            for key, w in (*module.named_parameters(), *module.named_buffers(recurse=False)):
                if w.ndim == 1 or ("." not in key and w.numel() == max(w.shape, default=0)):
                    yield f"{name}.{key}", w.flatten(), w.requires_grad
        elif not isinstance(module, EigenSpectrum) and (found := find_spectrum(module)) is not None:
            yield f"{owner or name}.spectrum.psi", found.eigenvalues(), True


def find_valid_tokens(layer: Layer, A: Tensor) -> Tensor | None:
    """Return the keys (B, N) that some query of a map attends to; None for all."""
    seen = (A.abs() >= SMALLEST_WEIGHT).any(-2).any(1)
    seen = seen | ~seen.any(-1, keepdim=True)
    # without a mask, a weight is 0 where attention is sharp
    return seen if layer.call.may_pad and not seen.all() else None


def _check_finite(x: Tensor, mask: Tensor | None, layer: Layer, what: str) -> None:
    finite = x.isfinite().all(-1)
    if not (finite if mask is None else finite | ~mask).all():
        raise ValueError(
            f"layer {layer.index} ({layer.call.name}) is the first whose {what} are not finite: "
            "look for NaN in the batch, in its weights, and in those before it"
        )


def _measure_heads(A: Tensor, mask: Tensor | None) -> dict[str, Any]:
    relative = spectral.attention_entropy(A, mask, relative=True)
    return {
        "is_causal": bool((A.triu(1) == 0).all()),
        "attention_entropy": spectral.attention_entropy(A, mask).mean(0).tolist(),
        # over the samples in which a head has a number
        "relative_entropy": relative.nanmean(0).tolist(),
        "map_cosine": spectral.map_cosine(A, mask).mean().item(),
        "head_cosine": spectral.head_cosine(A, mask).mean().item() if A.shape[1] > 1 else None,
    }


def _measure_weights(projected: ProjectedTokens, A: Tensor, mask: Tensor | None) -> dict[str, Any]:
    """Return the measures of square weights, and the shares of dominating eigenvalues."""
    value, output = projected.value, projected.output
    if value.shape[1] != output.shape[0]:
        return {}
    # float32 does not tell a product of 768 channels from a singular one
    product = output.double() @ value.double()  # (W_V W_O)^T
    spectrum = spectral.value_output_eigenvalues(value, output, projected.num_heads)
    maps = [A]
    if mask is not None:  # zeros of padding would be eigenvalues
        maps = [M[:, valid][..., valid] for M, valid in zip(A, mask, strict=True)]
    features = spectrum.to(torch.promote_types(A.dtype, torch.complex64))
    shares = [
        spectral.dominating_eigenvalue_shares(features, torch.linalg.eigvals(M)) for M in maps
    ]
    kinds, means = ("smoothing", "sharpening", "tied"), torch.stack(shares).mean(0).tolist()
    return {
        "value_output_spectrum": spectrum.tolist(),
        "condition_number": spectral.condition_number(product).item(),
        "eigenvalue_shares": dict(zip(kinds, means, strict=True)),
    }


def _compute_bounds(
    A: Tensor, H: Tensor, mask: Tensor | None, projected: ProjectedTokens, is_softmax: bool
) -> dict[str, float]:
    """Return the growth of the high frequencies in an attention, and bounds on it."""
    x, y = (tokens[: len(A)].to(A.dtype) for tokens in (projected.x, projected.y))
    if mask is not None:
        x, y = (tokens.where(mask.unsqueeze(-1), 0.0) for tokens in (x, y))
    growth = spectral.high_frequency_norm(y, mask) / spectral.high_frequency_norm(x, mask)
    heads, value, output = projected.num_heads, projected.value, projected.output
    V = value.to(A.dtype).reshape(heads, -1, value.shape[1])  # (H, d, D)
    W = output.to(A.dtype).reshape(len(output), heads, -1).movedim(1, 0)  # (H, D, d)
    valid = None if mask is None else mask.unsqueeze(1)
    gains = torch.linalg.matrix_norm(torch.linalg.qr(V.mT).R @ W.mT, 2)  # norms of W_V^h W_O^h
    found = {"measured": growth.mean().item()}
    found["map"] = (spectral.map_smoothing_rate(H, valid) * gains).sum(-1).mean().item()
    alpha = spectral.logit_range(A, valid).amax(-1)
    if not is_softmax or not alpha.isfinite().all():
        return found
    num_tokens = A.shape[-1] if mask is None else mask.sum(-1)
    weights = torch.linalg.matrix_norm(V, 2).amax() * torch.linalg.matrix_norm(W, 2).amax()
    bound = (spectral.smoothing_rate(alpha, num_tokens) * weights * len(V)).mean().item()
    return {"alpha": alpha.mean().item(), "attention": bound, "residual": 1 + bound, **found}
