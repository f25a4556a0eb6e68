"""The literal dense equations in float64: slow, obvious, and independent of attention_core.

A and J are (..., n, n) maps, c the coefficients of a filter, each (heads, 1, 1).
"""

from collections.abc import Sequence
from math import comb, prod

import torch
from numpy.polynomial import Polynomial as Poly
from numpy.polynomial.chebyshev import cheb2poly
from numpy.polynomial.legendre import leg2poly
from torch import Tensor
from torch.linalg import matrix_power

# maps


def allowed(q: Tensor, k: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """Return True for each pair of a query and a key that it may attend to, (B, H, n, m)."""
    pairs = torch.ones(*q.shape[:-1], k.shape[-2], dtype=torch.bool)
    if is_causal:
        pairs = pairs.tril()
    if mask is not None:
        pairs = pairs & (mask if mask.dtype == torch.bool else mask > -1e30)
    return pairs


def softmax_map(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """exp(q k^T scale + bias) over its row sums; a row that may attend to nothing is zero."""
    logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None and mask.dtype != torch.bool:
        logits = logits + mask
    weights = logits.exp() * allowed(q, k, mask, is_causal)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)


def uniform(pairs: Tensor) -> Tensor:
    """J: the same weight for every key that a query may attend to."""
    return pairs.double() / pairs.sum(-1, keepdim=True).clamp(min=1)


# filters: (A, J, c) -> H


def plain(A: Tensor, J: Tensor, c: Sequence[Tensor]) -> Tensor:
    return A


def gfsa(A: Tensor, J: Tensor, c: Sequence[Tensor], K: int) -> Tensor:
    w0, w1, wK = c
    return w0 * torch.eye(A.shape[-1]).double() + w1 * A + wK * (A + (K - 1) * (A @ A - A))


def attnscale(A: Tensor, J: Tensor, c: Sequence[Tensor]) -> Tensor:
    (omega,) = c
    low, high = J, A - J
    return low + (1 + omega) * high


def centered(A: Tensor, J: Tensor, c: Sequence[Tensor]) -> Tensor:
    return A - J


def polynomial(
    A: Tensor, J: Tensor, c: Sequence[Tensor], basis: str, a: float = 1.0, b: float = 1.0
) -> Tensor:
    powers = [matrix_power(A, i) for i in range(len(c))]
    terms = [
        sum(m * power for m, power in zip(monomials(basis, k, a, b), powers, strict=False))
        for k in range(len(c))
    ]
    return sum(theta * term for theta, term in zip(c, terms, strict=True))


def reattention(
    A: Tensor,
    theta: Tensor,
    bias: Tensor,
    gain: Tensor,
    shift: Tensor,
    scale: float,
    running: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """One head at a time: mix (theta (heads, heads)), normalise over all samples and pairs."""
    maps = []
    for h in range(len(bias)):
        mixed = bias[h] + sum(theta[h, g] * A[:, g] for g in range(len(bias)))
        mean = mixed.sum() / mixed.numel() if running is None else running[0][h]
        var = ((mixed - mean) ** 2).sum() / mixed.numel() if running is None else running[1][h]
        maps.append(scale * (gain[h] * (mixed - mean) / (var + 1e-5).sqrt() + shift[h]))
    return torch.stack(maps, 1)


# bases


def monomials(basis: str, k: int, a: float = 1.0, b: float = 1.0) -> list[float]:
    """Coefficients of the basis polynomial of degree k at 1, x, .., x^k; no recurrence."""
    if basis == "jacobi":
        return jacobi(k, a, b)
    unit = [0.0] * k + [1.0]
    if basis == "chebyshev":  # Jacobi's normalisation: P_k(1) = C(2k, k) / 4^k instead of 1
        return list(cheb2poly(unit) * comb(2 * k, k) / 4**k)
    return list(leg2poly(unit)) if basis == "legendre" else unit


def jacobi(k: int, a: float, b: float) -> list[float]:
    """The explicit sum, https://dlmf.nist.gov/18.5.E8; it holds for any a, b."""
    low, high = Poly([-0.5, 0.5]), Poly([0.5, 0.5])
    ways = [choose(k + a, k - i) * choose(k + b, i) for i in range(k + 1)]
    terms = (way * low**i * high ** (k - i) for i, way in enumerate(ways))
    coefficients = list(sum(terms, Poly([0.0])).coef)
    return coefficients + [0.0] * (k + 1 - len(coefficients))


def choose(x: float, k: int) -> float:
    """The binomial coefficient of any x over a whole k."""
    return prod((x - i) / (i + 1) for i in range(k))


# attentive graph filter


def agf(
    q: Tensor, k: Tensor, s: Tensor, theta: Sequence[Tensor], bases: list[list[float]], v: Tensor
) -> Tensor:
    """One head of one sample, token by token: y_t = sum_j U_tj g_tj (sum_u V_uj v_u)."""
    tokens = range(len(q))
    columns = sum(k[t].exp() for t in tokens)
    memory = sum(torch.outer(k[t].exp() / columns, v[t]) for t in tokens)
    out = []
    for t in tokens:
        u = q[t].exp() / q[t].exp().sum()
        g = sum(w * evaluate(basis, s[t]) for w, basis in zip(theta, bases, strict=True))
        out.append((u * g) @ memory)
    return torch.stack(out)


def evaluate(coefficients: list[float], x: Tensor) -> Tensor:
    return sum(c * x**i for i, c in enumerate(coefficients))


# tokens: x (n, D)


def featscale(z: Tensor, s: Tensor, t: Tensor, gain: int = 1) -> Tensor:
    n = len(z)
    dc = torch.full((n, n), 1 / n).double() @ z
    return dc * (1 + gain * s) + (z - dc) * (1 + gain * t)


def contranorm(
    x: Tensor,
    scale: float,
    temperature: float = 1.0,
    dual: bool = False,
    identity: bool = False,
    pre_norm: bool = False,
    c: Tensor | None = None,
) -> Tensor:
    """Compute the input of the final LayerNorm; c is the learned scale of each channel."""
    unit = torch.stack([row / max(row.norm(), 1e-12) for row in x])
    x = unit if pre_norm else x
    exp = (unit @ unit.T / temperature).exp()
    W = exp / exp.sum(1, keepdim=True)
    if dual:
        W = W + exp / exp.sum(0, keepdim=True)
    if c is not None:
        return c * x - c * (W @ x) if identity else x - c * (W @ x)
    return (1 + scale) * x - scale * (W @ x) if identity else x - scale * (W @ x)


# eigenvalues: V (D, D), one value a column, in the order of the heads


def eigenvalues(psi: Tensor, kind: str, eps: Tensor | None = None) -> Tensor:
    if kind == "band-pass":
        top = max(abs(p) for p in psi)
        values = [sign * abs(p) for p in psi for sign in (1, -1)] + [top, -top - eps.squeeze()]
    else:
        low, high = {"sharpening": (-1, 0), "smoothing": (0, 1)}[kind]
        values = [p if low <= p <= high else 0 * p + (low if p < low else high) for p in psi]
    return torch.stack(list(values))


def tied(x: Tensor, A: Tensor, V: Tensor, eigenvalues: Tensor, form: str) -> Tensor:
    """sum_g A_g x V_:g Lambda_g (V^-1)_g: for one sample x (n, D) and its maps A (heads, n, n)."""
    back = torch.linalg.solve(V, torch.eye(len(V)).double()) if form == "inverse" else V.T
    y, width = torch.zeros_like(x), len(V) // len(A)
    for h in range(len(A)):
        for i in range(h * width, (h + 1) * width):
            y = y + A[h] @ x @ torch.outer(V[:, i], eigenvalues[i] * back[i])
    return y


# diagnostics: x (n, D), A (n, n)


def cosine(x: Tensor, signed: bool = False) -> float:
    """Mean over pairs i < j of the cosine of rows."""
    pairs = [(x[i], x[j]) for i in range(len(x)) for j in range(i + 1, len(x))]
    values = [float(a @ b / (a.norm() * b.norm())) for a, b in pairs]
    return sum(value if signed else abs(value) for value in values) / len(values)


def effective_rank(x: Tensor) -> float:
    sigma = torch.linalg.eigvalsh(x @ x.T).clamp(min=0).sqrt()
    p = sigma[sigma > 1e-7] / sigma.sum()
    return float((-(p * p.log()).sum()).exp())


def dft(n: int) -> Tensor:
    """F_kl = exp(-2 pi i k l / n) / sqrt(n)."""
    grid = torch.outer(torch.arange(n), torch.arange(n)).double()
    return torch.exp(-2j * torch.pi * grid / n) / n**0.5


def dft_response(H: Tensor) -> Tensor:
    F = dft(len(H))
    return (F @ H.to(F.dtype) @ F.conj().T).norm(dim=-1)
