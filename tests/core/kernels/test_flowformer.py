"""Flowformer against its flows, token by token."""

import pytest
import torch
from attention_core.kernels import Flowformer

from tests.core.kernels import cases
from tests.core.kernels.cases import DIM, MASKS, H

EPS = 1e-6


def literal(features, clamp, eps):
    def map_of(q, k, valid, h):
        """One head of one sample: the real tokens alone, then their rows and columns put back."""
        real = [i for i in range(len(q)) if valid[i]]
        phi = {"sigmoid": lambda t: 1 / (1 + (-t).exp()), "relu": lambda t: t.clamp(min=0) + 1e-6}
        sinks = [phi[features](q[i]) for i in real]
        sources = [phi[features](k[j]) for j in real]
        n = m = len(real)
        incoming = [1 / ((s + eps) @ (sum(sources) + eps)) for s in sinks]
        outgoing = [1 / ((s + eps) @ (sum(sinks) + eps)) for s in sources]
        carried = sum(s * o for s, o in zip(sources, outgoing, strict=True))
        taken = sum(s * i for s, i in zip(sinks, incoming, strict=True))
        sink = [(s + eps) @ (carried + eps) for s in sinks]
        source = [(s + eps) @ (taken + eps) for s in sources]
        source = [s.clamp(-1, 1) for s in source] if clamp else source
        competition = [s.exp() / sum(t.exp() for t in source) * m for s in source]
        A = torch.zeros(len(q), len(k)).double()
        for a, i in enumerate(real):
            allocation = 1 / (1 + (-sink[a] * n / m).exp())
            for b, j in enumerate(real):
                A[i, j] = allocation * incoming[a] * (sinks[a] @ sources[b]) * competition[b]
        return A

    return map_of


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("clamp", "eps"), [(False, EPS), (True, EPS), (False, 0.3)])
@pytest.mark.parametrize("features", ["sigmoid", "relu"])
def test_is_its_equation(features, clamp, eps, mask):
    kernel = Flowformer(DIM, H, features, clamp, eps)
    cases.assert_is(kernel, literal(features, clamp, eps), MASKS[mask]())
