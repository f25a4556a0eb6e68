"""Spectral measures of filters, and of tokens over depth: pure functions of tensors.

Shapes: x (..., N, D) are tokens, A and H (..., N, N) maps; mask (..., N) is True for valid tokens.
Results keep the leading axes (batch, heads), so that the caller chooses what to average.
DC is the mean over tokens, the lowest frequency of the DFT, and HC = x - DC.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_core.checks import (
    check_bools,
    check_callables,
    check_nonnegative,
    check_sizes,
    check_tensors,
)
from attention_core.operators import Diagonal, Operator, masked_mean

Filter = Callable[[Operator, Tensor], Tensor]


def matrix(filter: Filter, A: Operator) -> Tensor:
    r"""Form the map of a filter by filtering the identity.

    .. math:: H = H(A)\, I

    Shapes: A (B, H, N, N) as a tensor or any operator of attention_core -> (B, H, N, N).

    Source: eq. 3 of https://arxiv.org/abs/2312.04234

    >>> from attention_core import Plain
    >>> matrix(Plain(), torch.full((1, 2, 2), 0.5))
    tensor([[[0.5000, 0.5000],
             [0.5000, 0.5000]]])
    """
    check_callables("spectral.matrix", filter=filter)
    if isinstance(A, Tensor):
        check_tensors("spectral.matrix", 2, A=A)
        eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        return filter(A, eye.expand(*A.shape[:-2], -1, -1))
    return filter(A, A.eye())  # type: ignore[attr-defined]


def response(
    filter: Filter, eigenvalues: Tensor, num_heads: int = 1, dc: int | None = None
) -> Tensor:
    r"""Compute the response of a filter at eigenvalues of A, one row per head.

    .. math:: h(\lambda) = H(\mathrm{diag}(\lambda))\, 1

    Shapes: eigenvalues (N,) -> (num_heads, N). `dc` is the index of the eigenvalue whose
    eigenvector is constant, if there is one (AttnScale and centered attention need it).

    Source: eq. 14 of https://arxiv.org/abs/1211.0053

    >>> from attention_core import GFSA
    >>> response(GFSA(1, w0=-0.5), torch.tensor([0.0, 0.5, 1.0]))
    tensor([[-0.5000,  0.0000,  0.5000]], grad_fn=<SqueezeBackward1>)
    """
    check_callables("spectral.response", filter=filter)
    check_tensors("spectral.response", 1, eigenvalues=eigenvalues)
    check_sizes("spectral.response", num_heads=num_heads)
    ones = torch.ones(num_heads, eigenvalues.numel(), 1).to(eigenvalues)
    return filter(Diagonal(eigenvalues, dc), ones).squeeze(-1)


def dft_response(H: Tensor) -> Tensor:
    r"""Compute the gain of each output frequency: the row norms of the map's spectrum.

    .. math:: \|(F H F^{-1})_i\|_2, \qquad F_{kl} = e^{-2 \pi i k l / N} / \sqrt N

    Shapes: (..., N, N) -> (..., N), frequency 0 first.

    Source: appendix F.2 of https://arxiv.org/abs/2203.05962, its exponent's missing 1/N restored

    >>> dft_response(torch.full((2, 2), 0.5)).round()
    tensor([1., 0.])
    """
    check_tensors("spectral.dft_response", 2, H=H)
    H = H.to(torch.promote_types(H.dtype, torch.float32))
    spectrum = torch.fft.fft(torch.fft.ifft(H, dim=-1, norm="ortho"), dim=-2, norm="ortho")
    return spectrum.abs().square().sum(-1).sqrt()


def singular_values(H: Tensor) -> Tensor:
    r"""Compute the singular values of a map, largest first.

    .. math:: H = U \Sigma V^\top

    Shapes: (..., N, N) -> (..., N); half precision is computed in float32.

    Source: eq. 4 of https://arxiv.org/abs/2505.08516

    >>> singular_values(torch.diag(torch.tensor([1.0, 3.0])))
    tensor([3., 1.])
    """
    check_tensors("spectral.singular_values", 2, H=H)
    return torch.linalg.svdvals(H.to(torch.promote_types(H.dtype, torch.float32)))


def singular_response(A: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
    r"""Compute the response of a filter in the singular value domain of its map.

    .. math:: A = U \Sigma V^\top, \qquad g(\sigma_i) = u_i^\top H v_i

    Shapes: A, H (..., N, N) -> singular values and gains, both (..., N), largest value first.

    Source: eq. 5 of https://arxiv.org/abs/2505.08516

    >>> A = torch.diag(torch.tensor([2.0, 1.0]))
    >>> singular_response(A, A @ A)
    (tensor([2., 1.]), tensor([4., 1.]))
    """
    check_tensors("spectral.singular_response", 2, A=A, H=H)
    if A.shape != H.shape:
        raise ValueError(f"A and H must have one shape, got {tuple(A.shape)} and {tuple(H.shape)}")
    A, H = (M.to(torch.promote_types(M.dtype, torch.float32)) for M in (A, H))
    U, sigma, Vh = torch.linalg.svd(A)
    return sigma, torch.einsum("...ni,...nm,...im->...i", U, H, Vh)


def _check_tokens(function: str, x: Tensor, mask: Tensor | None) -> None:
    check_tensors(f"spectral.{function}", 2, x=x)
    if mask is None:
        return
    check_tensors(f"spectral.{function}", 1, mask=mask)
    if mask.shape[-1] != x.shape[-2] or mask.dtype != torch.bool:
        raise ValueError(
            f"spectral.{function} takes a boolean mask (..., {x.shape[-2]}) of its tokens, got "
            f"the shape {tuple(mask.shape)} of {mask.dtype}"
        )


def _norm_frequencies(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    keep = None if mask is None else mask.unsqueeze(-2)
    dc = masked_mean(x, keep).expand_as(x)
    hc = x - dc
    if mask is not None:
        dc, hc = dc * mask.unsqueeze(-1), hc * mask.unsqueeze(-1)
    return hc.flatten(-2).norm(dim=-1), dc.flatten(-2).norm(dim=-1)


def hfc_lfc(x: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Compute the ratio of the high to the low frequencies of tokens; 0 is fully smoothed.

    .. math:: \|\mathrm{HC}[x]\|_F / \|\mathrm{DC}[x]\|_F

    Shapes: (..., N, D) -> (...).

    Source: eq. 5 of https://arxiv.org/abs/2203.05962, figures 2-4 of https://arxiv.org/abs/2401.04301

    >>> hfc_lfc(torch.tensor([[1.0], [3.0]]))
    tensor(0.5000)
    """
    _check_tokens("hfc_lfc", x, mask)
    hc, dc = _norm_frequencies(x, mask)
    return hc / dc


def hfc_share(x: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Compute the share of high frequencies in tokens, from 0 (all equal) to 1 (mean zero).

    .. math:: \|\mathrm{HC}[x]\|_F / \|x\|_F

    Shapes: (..., N, D) -> (...).

    Source: appendix G.3 (figure 11) of https://arxiv.org/abs/2203.05962

    >>> hfc_share(torch.tensor([[-1.0], [1.0]]))
    tensor(1.)
    """
    _check_tokens("hfc_share", x, mask)
    hc, dc = _norm_frequencies(x, mask)
    return hc / torch.hypot(hc, dc)


def token_cosine(x: Tensor, mask: Tensor | None = None, signed: bool = False) -> Tensor:
    r"""Compute the mean cosine of pairs of tokens; 1 is fully smoothed.

    .. math:: \frac{2}{n (n - 1)} \sum_{i < j} |\cos(x_i, x_j)|

    With `signed`, the cosine has no absolute value, as ContraNorm measures it.

    Shapes: (..., N, D) -> (...).

    Source: eq. 76 of https://arxiv.org/abs/2203.05962; https://arxiv.org/abs/2303.06562

    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    >>> token_cosine(x), token_cosine(x, signed=True)
    (tensor(0.3333), tensor(-0.3333))
    """
    _check_tokens("token_cosine", x, mask)
    check_bools("spectral.token_cosine", signed=signed)
    unit = F.normalize(x, dim=-1)
    cosine = unit @ unit.mT
    cosine = cosine if signed else cosine.abs()
    n = x.shape[-2]
    pairs = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
    if mask is not None:
        pairs = pairs & mask.unsqueeze(-1) & mask.unsqueeze(-2)
    return (cosine * pairs).sum((-2, -1)) / pairs.sum((-2, -1)).clamp(min=1)


def map_cosine(A: Tensor) -> Tensor:
    r"""Compute the mean absolute cosine of pairs of columns of a map, averaged over heads.

    .. math:: \frac{2}{n (n - 1) H} \sum_h \sum_{i < j} |\cos(A^h_{:,i}, A^h_{:,j})|

    Shapes: (..., H, N, N) -> (...).

    Source: eq. 75 of https://arxiv.org/abs/2203.05962

    >>> map_cosine(torch.eye(3).unsqueeze(0))
    tensor(0.)
    """
    check_tensors("spectral.map_cosine", 3, A=A)
    return token_cosine(A.mT).mean(-1)


def effective_rank(x: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Compute the number of directions that tokens use: the exponential of an entropy.

    .. math:: \exp\Big(-\sum_i p_i \log p_i\Big), \qquad p_i = \sigma_i / \sum_j \sigma_j

    Shapes: (..., N, D) -> (...), between 1 and min(N, D).

    Source: Roy and Vetterli 2007, as used by https://arxiv.org/abs/2303.06562

    >>> effective_rank(torch.eye(4))
    tensor(4.)
    """
    _check_tokens("effective_rank", x, mask)
    if mask is not None:
        x = x * mask.unsqueeze(-1)  # rows of zeros do not change the singular values
    sigma = singular_values(x)
    p = sigma / sigma.sum(-1, keepdim=True)
    return torch.special.entr(p).sum(-1).exp()


def dominating_eigenvalue_shares(
    H: Tensor, A: Tensor, tolerance: float = 1e-4, count_zeros: bool = True
) -> Tensor:
    r"""Compute the shares of cases that smooth, sharpen and tie, by their dominating eigenvalue.

    .. math:: \max_{j, i} |1 + \lambda^H_j \lambda^A_i|, \qquad H = (W_V W_O)^\top

    is the growth of a layer x + A x W_V W_O. A case smooths if the maximum is at the Perron value
    of A, 1, the eigenvalue of equal tokens (the paper's lambda_n), and sharpens if it is at any
    other (its lambda_1); these two shares are the paper's columns. Eigenvalues of softmax maps
    are complex, which the paper does not discuss: here moduli are compared, and the eigenvalue
    closest to 1 is the Perron value. A case ties if both are equal up to a relative `tolerance`,
    for example if H has zeros and no pair exceeds |1 + 0|; such a layer is no low-pass filter
    (theorem 3.5, case 3). Without `count_zeros`, eigenvalues of H that are 0 up to the tolerance
    are left out, as they must be for the printed shares, which sum to 1 without ties.

    Shapes: eigenvalues of H (..., d), with its zeros, and of A (..., N), whose leading axes
    broadcast to the cases -> (3,), with a sum of 1.

    Source: definition 3.2 and table 1 of https://arxiv.org/abs/2401.04301v2

    >>> A = torch.tensor([1.0, 0.5, -0.5])
    >>> dominating_eigenvalue_shares(torch.tensor([[0.5], [-0.5]]), A)
    tensor([0.5000, 0.5000, 0.0000])
    >>> dominating_eigenvalue_shares(torch.tensor([-0.5, 0.0]), A.abs())
    tensor([0., 0., 1.])
    >>> dominating_eigenvalue_shares(torch.tensor([-0.5, 0.0]), A.abs(), count_zeros=False)
    tensor([0., 1., 0.])
    """
    check_tensors("spectral.dominating_eigenvalue_shares", 1, H=H, A=A)
    check_nonnegative("spectral.dominating_eigenvalue_shares", tolerance=tolerance)
    if not count_zeros:  # the largest in place of a zero: it wins anyway
        size, place = H.abs(), H.abs().argmax(-1, keepdim=True)
        largest, limit = H.gather(-1, place), tolerance * size.gather(-1, place)
        H = torch.where(size <= limit, largest, H)
    growth = (1 + H.unsqueeze(-1) * A.unsqueeze(-2)).abs().amax(-2)  # (..., N)
    perron = (A - 1).abs().argmin(-1, keepdim=True).expand(*growth.shape[:-1], 1)
    smooth = growth.gather(-1, perron).squeeze(-1)
    sharp = growth.scatter(-1, perron, -torch.inf).amax(-1)
    smooths, sharpens = smooth > sharp * (1 + tolerance), sharp > smooth * (1 + tolerance)
    cases = torch.stack([smooths, sharpens, ~(smooths | sharpens)])
    return cases.reshape(3, -1).to(growth.dtype).mean(1)
