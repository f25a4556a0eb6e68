"""Measure tokens, with and without the few channels and tokens that outweigh all others."""

import torch
from torch import Tensor

from attention_core import spectral
from attention_core.diagnosis.report import TokenMeasures
from attention_core.spectral.tokens import count_directions

# an outlier channel has this many times the energy of the median channel
OUTLIER_CHANNEL = 100.0
# an outlier token (a sink, a register) has this many times the norm of the median token
OUTLIER_TOKEN = 5.0
_FEW_CHANNELS, _FEW_TOKENS = 10, 5  # at most one in so many is an outlier
_LITTLE = 1e-30
Outliers = tuple[Tensor, Tensor]  # channels (D,) and tokens (B, N) as booleans


def summarize_tokens(x: Tensor, mask: Tensor | None, left_out: Outliers) -> TokenMeasures:
    """Measure tokens (B, N, D), zero where they are padding, as means over the samples."""
    names = ("hfc_lfc", "hfc_share", "high_frequency_norm", "token_cosine")
    found = {name: getattr(spectral, name)(x, mask) for name in names}
    signed = spectral.token_cosine(x, mask, signed=True)
    sigma = torch.linalg.svdvals(x)  # rows of zeros, of padding, do not change them
    trimmed = {name: found[name] for name in ("hfc_lfc", "token_cosine")}
    if any(map(torch.any, left_out)):
        few, valid = trim_tokens(x, mask, *left_out)
        trimmed = {name: getattr(spectral, name)(few, valid) for name in trimmed}
    channels, tokens = find_outliers(x, mask)
    energy = x.square().sum(1)  # (B, D)
    share = energy.amax(-1) / energy.sum(-1).clamp(min=_LITTLE)
    return TokenMeasures(
        **{name: values.mean().item() for name, values in found.items()},
        signed_token_cosine=signed.mean().item(),
        effective_rank=count_directions(sigma).mean().item(),
        singular_values=sigma.mean(0).tolist(),
        trimmed_hfc_lfc=trimmed["hfc_lfc"].mean().item(),
        trimmed_token_cosine=trimmed["token_cosine"].mean().item(),
        largest_channel_share=share.mean().item(),
        largest_token_norm=_compare_norms(x, mask).amax(-1).mean().item(),
        outlier_channels=channels.nonzero().flatten().tolist(),
        outlier_tokens=tokens.sum(-1).double().mean().item(),
        samples={name: values.tolist() for name, values in trimmed.items()},
    )


def find_outliers(x: Tensor, mask: Tensor | None) -> Outliers:
    """Return the outlier channels and tokens of tokens (B, N, D).

    A token is one if its norm is `OUTLIER_TOKEN` times the median of its sample; a channel, if its
    energy over the other tokens is `OUTLIER_CHANNEL` times the median of the channels.

    Source: https://arxiv.org/abs/2402.17762 (massive activations), https://arxiv.org/abs/2109.04404
    (rogue channels), https://arxiv.org/abs/2309.16588 (registers)
    """
    tokens = _limit_outliers(_compare_norms(x, mask) > OUTLIER_TOKEN, mask, _FEW_TOKENS)
    energy = x.where(~tokens.unsqueeze(-1), 0.0).square().sum((0, 1))
    channels = (energy > OUTLIER_CHANNEL * energy.median()) & (energy.median() > 0)
    return _limit_outliers(channels, None, _FEW_CHANNELS), tokens


def _limit_outliers(found: Tensor, mask: Tensor | None, part: int) -> Tensor:
    """Return what is found (..., n), or nothing where it is more than one in `part`."""
    count = torch.tensor(found.shape[-1]) if mask is None else mask.sum(-1, keepdim=True)
    return found & (found.sum(-1, keepdim=True) <= (count // part).clamp(min=1))


def trim_tokens(
    x: Tensor, mask: Tensor | None, channels: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return tokens without outlier channels, and the mask of those that are no outliers."""
    tokens = _limit_outliers(tokens, mask, _FEW_TOKENS)
    if tokens.any():
        mask = ~tokens if mask is None else mask & ~tokens
    few = x[..., ~_limit_outliers(channels, None, _FEW_CHANNELS)]
    return few if mask is None else few.where(mask.unsqueeze(-1), 0.0), mask


def _compare_norms(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the norm of each token over the median norm of its sample, 0 for padding, (B, N)."""
    norms = x.norm(dim=-1)
    valid = norms if mask is None else norms.where(mask, torch.nan)
    median = valid.nanmedian(-1, keepdim=True).values.clamp(min=_LITTLE)
    return (valid / median).nan_to_num(0.0)
