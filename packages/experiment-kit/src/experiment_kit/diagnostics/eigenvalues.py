"""Smoothing and sharpening of a model's layers, by their dominating eigenvalues."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from attention_core import Plain, spectral
from torch import nn

from experiment_kit.diagnostics.coefficients import attention_projections
from experiment_kit.diagnostics.hooks import eval_mode, forward_hooks
from experiment_kit.environment import describe_environment
from experiment_kit.errors import UserError

_KINDS = ("smoothing_share", "sharpening_share", "tied_share")
_SHARES = (*_KINDS, *(f"nonzero_{kind}" for kind in _KINDS))  # with the zeros of H, and without


@torch.no_grad()
def eigenvalue_shares(model: Any, batch: Any) -> list[list[float]]:
    """Return the shares of smoothing, sharpening and tied cases of each attention.

    The last three of its six shares leave out the zeros among the eigenvalues of H. A case is a
    head of a sample; its map is the one that the filter receives.
    """
    parts = dict(attention_projections(model))
    found: list[list[float]] = []

    def measure_map(filter: nn.Module, inputs: tuple[Any, ...], _: Any) -> None:
        A = spectral.matrix(Plain(), inputs[0]).double()
        H = spectral.value_output_eigenvalues(*parts[filter])
        values = torch.linalg.eigvals(A)
        found.append([])
        for count_zeros in (True, False):
            shares = spectral.dominating_eigenvalue_shares(H, values, count_zeros=count_zeros)
            found[-1] += shares.tolist()

    with eval_mode(model), forward_hooks(list(parts), measure_map):
        model.predict_step(batch, 0)
    return found


def measure_eigenvalues(model: Any, batches: Iterable[Any]) -> dict[str, Any]:
    """Return the shares of each layer over all samples of the batches, and their means.

    Raises UserError if the model has no attention that `attention_projections` finds.
    """
    sizes, found = [], []
    for batch in batches:
        sizes.append(len(batch[0]))
        found.append(eigenvalue_shares(model, batch))
    if not found or not found[0]:
        raise UserError("the model has no attention with a filter, qkv and proj")
    weights = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    layers = torch.einsum("b,bls->ls", weights, torch.tensor(found, dtype=torch.float64))
    return {
        "metrics": dict(zip(_SHARES, layers.mean(0).tolist(), strict=True)),
        "layers": [dict(zip(_SHARES, layer, strict=True)) for layer in layers.tolist()],
        "samples": sum(sizes),
        "environment": describe_environment(),
    }


def take_samples(batches: Iterable[Any], count: int | None) -> Iterator[list[Any]]:
    """Yield batches of `count` samples in all; the last one is cut to fit.

    >>> batches = [[[1, 2]], [[3, 4]], [[5, 6]]]
    >>> list(take_samples(batches, 3)), len(list(take_samples(batches, None)))
    ([[[1, 2]], [[3]]], 3)
    """
    for batch in batches:
        yield [part[:count] for part in batch]
        if count is not None:
            count -= len(batch[0])
            if count <= 0:
                return
