"""Spectral measures of maps and filters.

Shapes: A and H (..., N, N) are maps; mask (B, N) is True for valid tokens. Results keep the leading
axes (batch, heads), so that the caller chooses what to average.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from attention_core.checks import check_nonnegative, check_sizes, check_tensors
from attention_core.operators import Diagonal, Operator, identity_like
from attention_core.spectral.tokens import prepare_tokens, token_cosine

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
    if isinstance(A, Tensor):
        check_tensors("spectral.matrix", 2, A=A)
        return filter(A, identity_like(A, A.shape[-1]))
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
    check_tensors("spectral.response", 1, eigenvalues=eigenvalues)
    check_sizes("spectral.response", num_heads=num_heads)
    ones = torch.ones(num_heads, eigenvalues.numel(), 1).to(eigenvalues)
    return filter(Diagonal(eigenvalues, dc), ones).squeeze(-1)


def dft_response(H: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Compute the gain of each output frequency: the row norms of the map's spectrum.

    .. math:: \|(F H F^{-1})_i\|_2, \qquad F_{kl} = e^{-2 \pi i k l / N} / \sqrt N

    With a mask (B, N) of the valid tokens of H (B, ..., N, N), F is the transform of a sample's
    valid tokens, and its gains, at fewer frequencies, are interpolated to those of N tokens.

    Shapes: (..., N, N) -> (..., N), frequency 0 first.

    Source: appendix F.2 of https://arxiv.org/abs/2203.05962, its exponent's missing 1/N restored

    >>> dft_response(torch.full((2, 2), 0.5)).round()
    tensor([1., 0.])
    """
    H = prepare_tokens("dft_response", H, mask)
    if mask is not None:
        samples = zip(H, mask, strict=True)
        return torch.stack([_transform_valid(sample, valid) for sample, valid in samples])
    spectrum = torch.fft.fft(torch.fft.ifft(H, dim=-1, norm="ortho"), dim=-2, norm="ortho")
    return spectrum.abs().square().sum(-1).sqrt()


def _transform_valid(H: Tensor, valid: Tensor) -> Tensor:
    if not valid.any():
        return H.new_zeros(H.shape[:-1])
    gains = dft_response(H[..., valid, :][..., valid])
    place = torch.arange(H.shape[-1], device=H.device) * gains.shape[-1] / H.shape[-1]
    below = place.long()
    above = (below + 1) % gains.shape[-1]  # frequencies are periodic
    return torch.lerp(gains[..., below], gains[..., above], (place - below).to(gains))


def restrict_map(H: Tensor, mask: Tensor) -> Tensor:
    """Set rows and columns of a map (..., N, N) to 0 where the mask (..., N) is False."""
    H = prepare_tokens("restrict_map", H, mask)
    return H.where(mask.unsqueeze(-1) & mask.unsqueeze(-2), 0.0)  # padding may be NaN


def singular_values(H: Tensor) -> Tensor:
    r"""Compute the singular values of a map, largest first.

    .. math:: H = U \Sigma V^\top

    Shapes: (..., N, N) -> (..., N); half precision is computed in float32.

    Source: eq. 4 of https://arxiv.org/abs/2505.08516

    >>> singular_values(torch.diag(torch.tensor([1.0, 3.0])))
    tensor([3., 1.])
    """
    return torch.linalg.svdvals(prepare_tokens("singular_values", H, None))


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


def map_cosine(A: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Compute the mean absolute cosine of pairs of columns of a map, averaged over heads.

    .. math:: \frac{2}{n (n - 1) H} \sum_h \sum_{i < j} |\cos(A^h_{:,i}, A^h_{:,j})|

    Shapes: (..., H, N, N) and a mask of valid tokens (..., N) -> (...).

    Source: eq. 75 of https://arxiv.org/abs/2203.05962

    >>> map_cosine(torch.eye(3).unsqueeze(0))
    tensor(0.)
    """
    check_tensors("spectral.map_cosine", 3, A=A)
    if mask is None:
        return token_cosine(A.mT).mean(-1)
    A, heads = restrict_map(A, mask.unsqueeze(-2)), (*A.shape[:-2], A.shape[-1])
    return token_cosine(A.mT, mask.unsqueeze(-2).expand(heads)).mean(-1)


def dominating_eigenvalue_shares(
    H: Tensor, A: Tensor, tolerance: float = 1e-4, count_zeros: bool = True
) -> Tensor:
    r"""Compute the shares of cases that smooth, sharpen and tie, by their dominating eigenvalue.

    .. math:: \max_{j, i} |1 + \lambda^H_j \lambda^A_i|, \qquad H = (W_V W_O)^\top

    is the growth of a layer x + A x W_V W_O. Each index of the leading axes is one case, such as a
    head of a layer on a sample. A case smooths if the maximum is at the Perron value of A, the
    eigenvalue closest to 1 (the paper's lambda_n), sharpens if it is at any other (its lambda_1),
    and ties if both are equal up to a relative `tolerance`. Moduli are compared, as eigenvalues of
    softmax maps are complex.

    A zero of H, of which a head of rank D has d - D, grows by 1 at every eigenvalue of A, so that a
    case whose other pairs stay below 1 ties. Without `count_zeros`, zeros are left out, as they
    must be for the printed shares, which sum to 1 without ties.

    Shapes: eigenvalues of H (..., d), with its zeros, and of A (..., N), whose leading axes
    broadcast to the cases -> (3,): smooth, sharp and tied, with a sum of 1.

    Source: definition 3.2 and table 1 of https://arxiv.org/abs/2401.04301v2

    >>> A = torch.tensor([1.0, 0.5, -0.5])
    >>> dominating_eigenvalue_shares(torch.tensor([[0.5], [-0.5]]), A)
    tensor([0.5000, 0.5000, 0.0000])
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
