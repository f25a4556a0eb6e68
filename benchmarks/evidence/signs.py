"""HFC/LFC by depth under X + A X W, for three ranges of the eigenvalues of H = W^T."""

from dataclasses import asdict
from typing import Any

import torch
from attention_core import spectral
from torch import Tensor

from benchmarks.evidence.settings import SignSettings
from benchmarks.evidence.stacks import divide_by_rms

RANGES = {"positive": (0.0, 1.0), "negative": (-1.0, 0.0), "mixed": (-1.0, 1.0)}
LABELS = {"positive": "(0, 1]", "negative": "[−1, 0)", "mixed": "[−1, 1]"}
OUTCOMES = ("smooths", "sharpens", "ties")


def list_units(settings: SignSettings) -> list[dict[str, Any]]:
    """List the arguments of `iterate_update`, one mapping an iteration."""
    sizes = {key: value for key, value in asdict(settings).items() if key != "seeds"}
    return [
        {"spectrum": spectrum, "recomputed": recomputed, "seed": seed, **sizes}
        for recomputed in (False, True)
        for spectrum in RANGES
        for seed in settings.seeds
    ]


def iterate_update(
    spectrum: str, recomputed: bool, seed: int, dim: int, num_tokens: int, depths: tuple[int, ...]
) -> list[dict[str, Any]]:
    r"""Iterate one update, and return one row a depth.

    .. math:: X_{l+1} = X_l + A X_l W, \qquad W = (Q \Lambda Q^{-1})^\top

    A is a softmax map of random queries and keys, fixed or computed again from each X. Tokens are
    divided by one number a step, which changes neither a ratio nor the direction of X.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    low, high = RANGES[spectrum]
    uniform = torch.rand(dim, generator=generator, dtype=torch.float64)
    eigenvalues = low + (high - low) * uniform
    Q = torch.linalg.qr(draw(dim, dim)).Q
    H = Q @ torch.diag(eigenvalues) @ Q.mT
    x, queries, keys = draw(num_tokens, dim), draw(dim, dim) / dim**0.5, draw(dim, dim) / dim**0.5
    A = form_map(x, queries, keys)
    shares = spectral.dominating_eigenvalue_shares(eigenvalues, torch.linalg.eigvals(A))
    row = {"spectrum": spectrum, "map": "recomputed" if recomputed else "fixed", "seed": seed,
           "predicted": OUTCOMES[int(shares.argmax())]}  # fmt: skip
    rows = []
    for depth in range(max(depths) + 1):
        if depth > 0:
            A = form_map(x, queries, keys) if recomputed else A
            x = divide_by_rms(x + A @ x @ H.mT)
        if depth in depths:
            rows.append({**row, "depth": depth, "hfc_lfc": spectral.hfc_lfc(x).item()})
    return rows


def form_map(x: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Form the softmax map of tokens, (N, N)."""
    return ((x @ queries) @ (x @ keys).mT / x.shape[-1] ** 0.5).softmax(-1)


def judge_iteration(rows: list[dict[str, Any]]) -> str:
    """Return what an iteration did: its last HFC/LFC beside its first.

    >>> judge_iteration([{"depth": 0, "hfc_lfc": 3.0}, {"depth": 9, "hfc_lfc": 1e-9}])
    'smooths'
    """
    ordered = sorted(rows, key=lambda row: row["depth"])
    return "smooths" if ordered[-1]["hfc_lfc"] < 0.01 * ordered[0]["hfc_lfc"] else "sharpens"
