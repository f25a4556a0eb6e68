"""Measure one recorded attention call: tokens of each step, maps of each head, weights, bounds."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_core import spectral
from attention_core.diagnosis.attribution import find_steps
from attention_core.diagnosis.projections import ProjectedTokens, Projections, find_projections
from attention_core.diagnosis.recording import AttentionCall
from attention_core.diagnosis.report import LayerDiagnosis, TokenMeasures
from attention_core.hosts.hook_points import find_import_path
from attention_core.spectral.heads import SMALLEST_WEIGHT
from attention_core.spectral.tokens import count_directions

# heads x tokens^3: of the decompositions of a layer's maps, which use the first samples up to it
MAX_DECOMPOSED = 1e8
_KINDS = ("smoothing", "sharpening", "tied")


class MeasuredCall(NamedTuple):
    """The diagnosis of a call, the number of tokens of its block, and what was not found."""

    layer: LayerDiagnosis
    num_tokens: int
    note: str


def measure_call(call: AttentionCall, mask: Tensor | None) -> MeasuredCall:
    """Measure a call of an attention.

    The mask (B, N) is of the call's tokens; without one, keys that no query sees are padding.

    Raises ValueError for tokens that are not finite.
    """
    mask = find_valid_tokens(call, mask)
    steps, note = find_steps(call)
    tokens = {name: _measure_step(x, mask, call) for name, x in steps.items()}
    queries = None if mask is None else mask.unsqueeze(1)
    for M in (call.A, call.H):  # fused attention may turn NaN to 0
        if M is not None and not _are_finite(M, queries):
            raise ValueError(_describe_first(call, "maps"))
    projected = find_projections(call)
    maps = _measure_maps(call, mask, projected)
    layer = LayerDiagnosis(
        index=call.index,
        name=call.name,
        module=find_import_path(call.attention),
        num_heads=call.num_heads,
        steps=tokens,
        coefficients=read_coefficients(call.attention),
        **maps,
        **_measure_weights(projected),
    )
    num_tokens = next(iter(steps.values())).shape[1] if steps else call.z.shape[2]
    return MeasuredCall(layer, num_tokens, note)


def summarize_tokens(x: Tensor, mask: Tensor | None = None) -> TokenMeasures:
    """Measure tokens (B, N, D), as means over the samples."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if mask is not None:
        x = x.where(mask.unsqueeze(-1), 0.0)  # padding may be NaN
    names = ("hfc_lfc", "hfc_share", "token_cosine", "high_frequency_norm")
    found = {name: getattr(spectral, name)(x, mask).mean().item() for name in names}
    signed = spectral.token_cosine(x, mask, signed=True).mean().item()
    sigma = torch.linalg.svdvals(x)  # rows of zeros, of padding, do not change them
    rank = count_directions(sigma).mean().item()
    return TokenMeasures(
        **found,
        signed_token_cosine=signed,
        effective_rank=rank,
        singular_values=sigma.mean(0).tolist(),
    )


def read_coefficients(attention: Any) -> dict[str, list[float]]:
    """Return the coefficients of an attention's filter, kernel and function of tokens by name."""
    found: dict[str, list[float]] = {}
    kernel: Any = getattr(attention, "kernel", None)
    if hasattr(kernel, "coefficients"):
        found["kernel.theta"] = kernel.coefficients().flatten().tolist()
    for slot in ("filter", "tokens"):
        for path, part in attention.named_modules():
            if path.rpartition(".")[-1] == slot:
                own = {f"{path}.{key}": w for key, w in part.named_parameters() if w.ndim == 1}
                found |= {name: w.detach().tolist() for name, w in own.items()}
    return found


def _measure_step(x: Tensor, mask: Tensor | None, call: AttentionCall) -> TokenMeasures:
    fits = mask is not None and mask.shape == x.shape[:2]
    valid = mask if fits else None
    if not _are_finite(x, valid):
        raise ValueError(_describe_first(call, "tokens"))
    return summarize_tokens(x, valid)


def _are_finite(x: Tensor, mask: Tensor | None) -> bool:
    finite = x.isfinite().all(-1)
    return bool((finite if mask is None else finite | ~mask).all())


def _describe_first(call: AttentionCall, what: str) -> str:
    return (
        f"layer {call.index} ({call.name}) is the first whose {what} are not finite: look for NaN "
        "in its weights, and in those before it"
    )


def find_valid_tokens(call: AttentionCall, mask: Tensor | None) -> Tensor | None:
    """Return the mask (B, N) of a call, or the keys that some query attends to; None for all."""
    if mask is not None or call.A is None:
        return mask
    seen = (call.A.abs() >= SMALLEST_WEIGHT).any(-2).any(1)  # (B, N)
    return None if seen.all() or not seen.any() else seen


def _measure_maps(
    call: AttentionCall, mask: Tensor | None, projected: ProjectedTokens | None
) -> dict[str, Any]:
    A, H = call.A, call.H
    undefined = [float("nan")] * call.num_heads
    if A is None or H is None:  # a kernel whose output does not depend on values
        return {
            **{"is_causal": False, "map_cosine": float("nan"), "head_cosine": None},
            **{"attention_entropy": undefined, "relative_entropy": undefined},
            **{"map_singular_values": [], "responses": [], "map_responses": []},
            **{"eigenvalue_shares": None, "bounds": {}},
        }
    wide = torch.promote_types(A.dtype, torch.float32)
    A = A.to(wide)
    H = A if call.H is call.A else H.to(wide)
    if mask is not None:  # padding may be NaN
        A, H = (spectral.restrict_map(M, mask.unsqueeze(1)) for M in (A, H))
    num_heads = call.num_heads
    responses = _average_responses(H, mask)
    few = max(1, int(MAX_DECOMPOSED / (num_heads * A.shape[-1] ** 3)))
    part = None if mask is None else mask[:few]
    return {
        "is_causal": bool((A.triu(1) == 0).all()),
        "attention_entropy": spectral.attention_entropy(A, mask).mean(0).tolist(),
        "relative_entropy": _average_finite(spectral.attention_entropy(A, mask, relative=True)),
        "map_cosine": spectral.map_cosine(A, mask).mean().item(),
        "head_cosine": spectral.head_cosine(A, mask).mean().item() if num_heads > 1 else None,
        "map_singular_values": spectral.singular_values(A[:few]).mean(0).tolist(),
        "responses": responses,
        "map_responses": responses if H is A else _average_responses(A, mask),
        "eigenvalue_shares": _count_dominating(A[:few], part, projected),
        "bounds": {} if projected is None else _compute_bounds(A[:few], H[:few], part, projected),
    }


def _average_responses(H: Tensor, mask: Tensor | None) -> list[list[float]]:
    response = spectral.dft_response(H, mask)[..., : H.shape[-1] // 2 + 1]
    return response.mean(0).tolist()


def _average_finite(x: Tensor) -> list[float]:
    """Average (B, H) over the samples in which a head has a number."""
    return x.nanmean(0).tolist()


def _count_dominating(
    A: Tensor, mask: Tensor | None, projected: ProjectedTokens | None
) -> dict[str, float] | None:
    if projected is None or not _is_square(projected.projections):
        return None
    features = spectral.value_output_eigenvalues(*projected.projections[1:])
    maps = [A]
    if mask is not None:  # zeros of padding would be eigenvalues
        maps = [M[:, valid][..., valid] for M, valid in zip(A, mask, strict=True)]
    shares = [
        spectral.dominating_eigenvalue_shares(
            features.to(torch.promote_types(M.dtype, torch.complex64)), torch.linalg.eigvals(M)
        )
        for M in maps
    ]
    return dict(zip(_KINDS, torch.stack(shares).mean(0).tolist(), strict=True))


def _is_square(projections: Projections) -> bool:
    return projections.value.shape[1] == projections.output.shape[0]


def _measure_weights(projected: ProjectedTokens | None) -> dict[str, Any]:
    if projected is None or not _is_square(projected.projections):
        return {"value_output_spectrum": None, "condition_number": None}
    _, value, output, num_heads = projected.projections
    # float32 does not tell a product of 768 channels from a singular one
    product = output.detach().double() @ value.detach().double()  # (W_V W_O)^T
    return {
        "value_output_spectrum": spectral.value_output_eigenvalues(
            value, output, num_heads
        ).tolist(),
        "condition_number": spectral.condition_number(product).item(),
    }


def _compute_bounds(
    A: Tensor, H: Tensor, mask: Tensor | None, projected: ProjectedTokens
) -> dict[str, float]:
    """Return the growth of the high frequencies in an attention, and bounds on it."""
    x, y = (
        tokens[: len(A)].to(A.dtype).where(_broadcast_mask(mask), 0.0)
        for tokens in (projected.x, projected.y)
    )
    growth = spectral.high_frequency_norm(y, mask) / spectral.high_frequency_norm(x, mask)
    V, W = _split_heads(projected.projections, A.dtype)  # (H, d, D) and (H, D, d)
    heads = None if mask is None else mask.unsqueeze(1)
    gains = torch.linalg.matrix_norm(torch.linalg.qr(V.mT).R @ W.mT, 2)  # norms of W_V^h W_O^h
    found = {"measured": growth.mean().item()}
    found["map"] = (spectral.map_smoothing_rate(H, heads) * gains).sum(-1).mean().item()
    alpha = spectral.logit_range(A, heads).amax(-1)
    if not alpha.isfinite().all():
        return found
    num_tokens = A.shape[-1] if mask is None else mask.sum(-1)
    weights = torch.linalg.matrix_norm(V, 2).amax() * torch.linalg.matrix_norm(W, 2).amax()
    bound = (spectral.smoothing_rate(alpha, num_tokens) * weights * len(V)).mean().item()
    return {"alpha": alpha.mean().item(), "attention": bound, "residual": 1 + bound, **found}


def _broadcast_mask(mask: Tensor | None) -> Tensor:
    return torch.tensor(True) if mask is None else mask.unsqueeze(-1)


def _split_heads(projections: Projections, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    _, value, output, num_heads = projections
    V = value.detach().to(dtype).reshape(num_heads, -1, value.shape[1])
    return V, output.detach().to(dtype).reshape(len(output), num_heads, -1).movedim(1, 0)
