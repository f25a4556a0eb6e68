"""Eigenvalue reparameterisation (Dovonon et al. 2024), https://arxiv.org/abs/2401.04301v2

Attention updates tokens by A x W_V W_O: its eigenvalues are those of A times those of
H = (W_V W_O)^T. Here W_O is a function of W_V that gives H the eigenvalues of our choice.
"""

from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from attention_core.checks import check_choices, check_nonnegative, check_sizes
from attention_core.mechanism import Mechanism

Kind = Literal["sharpening", "smoothing", "band-pass"]
Form = Literal["inverse", "transpose"]
Init = Literal["he", "orthogonal"]
Clamp = Literal["hard", "straight_through"]
Layout = Literal["interleaved", "concatenated"]

_RANGES = {"sharpening": (-1.0, 0.0), "smoothing": (0.0, 1.0)}


class EigenSpectrum(Mechanism):
    r"""The output projection of a layer, as a function of its value projection and d eigenvalues.

    .. math:: W_V = V, \qquad W_O = \Lambda V^{-1}

    (tokens are rows: x W). Head g contributes H_g = (V_{:g} \Lambda_g V^{-1}_{g:})^T, whose
    eigenvalues are exactly those of head g and zeros. They come from the parameter psi:

    .. math::
        \Lambda_{sharpening} = \mathrm{clip}(\psi, [-1, 0]), \quad
        \Lambda_{smoothing} = \mathrm{clip}(\psi, [0, 1]), \quad
        \Lambda_{band-pass} = (|\psi|, -|\psi|, \max|\psi|, -\max|\psi| - \epsilon)

    ("-", "+" and "~" in the paper). Band-pass learns epsilon. psi starts as N(0, std^2), half of it
    outside the clip.

    `tie` applies it to a layer; V remains the weight of the value projection. Shapes: psi (d,), or
    ((d - 2) / 2,) for band-pass -> weight (d, d).

    Source: section 4 of https://arxiv.org/abs/2401.04301v2

    Args:
        kind: Signs of the eigenvalues.
        form: `inverse`, or the `transpose` of footnote 3, W_O = Lambda V^T, which keeps the signs
            of the eigenvalues, but their range only if V is orthogonal.
        init: `orthogonal` V, or the paper's `he`, whose condition number is 1e3 and more: W_O is so
            large that in a ViT all three kinds make tokens almost equal (docs/evidence.md).
        clamp: `hard`, the paper's, keeps clipped eigenvalues at 0, because no gradient reaches
            them; `straight_through` passes the gradient.
        std: Standard deviation of psi at the start.
        eps: Start of epsilon: our choice, because the paper gives no value.
        layout: `interleaved` puts the two signs of a value side by side, so that a head has as many
            of each; `concatenated`, as printed, gives the first heads the positive ones.

    >>> qkv, proj = nn.Linear(6, 18), nn.Linear(6, 6)
    >>> spectrum = EigenSpectrum(6, init="orthogonal").tie(qkv, proj, slice(12, 18))
    >>> H = proj.weight @ qkv.weight[12:]
    >>> found = torch.linalg.eigvals(H).real.sort().values
    >>> torch.allclose(found, spectrum.eigenvalues().sort().values, atol=1e-4)
    True
    """

    def __init__(
        self,
        dim: int,
        kind: Kind = "sharpening",
        form: Form = "inverse",
        init: Init = "orthogonal",
        clamp: Clamp = "hard",
        std: float = 0.1,
        eps: float = 0.01,
        layout: Layout = "interleaved",
    ) -> None:
        super().__init__()
        self.init_args = {"eps": eps}
        check_sizes("EigenSpectrum", dim=dim)
        check_choices("EigenSpectrum", kind=(kind, Kind), form=(form, Form))
        check_choices("EigenSpectrum", init=(init, Init), clamp=(clamp, Clamp))
        check_choices("EigenSpectrum", layout=(layout, Layout))
        check_nonnegative("EigenSpectrum", std=std, eps=eps)
        if kind == "band-pass" and (dim < 4 or dim % 2):
            raise ValueError(f"band-pass needs an even dim of at least 4, got {dim}")
        self.dim, self.kind, self.form, self.init = dim, kind, form, init
        self.clamp, self.std, self.layout = clamp, std, layout
        self.eps = nn.Parameter(torch.tensor([float(eps)])) if kind == "band-pass" else None
        # a tuple: modules in it do not become children, so the host keeps their names
        self.tied: tuple[nn.Module, ...] = ()
        self.rows, self.name = slice(0), "weight"

    def tie(
        self, value: nn.Module, output: nn.Linear, rows: slice = slice(None), name: str = "weight"
    ) -> Self:
        """Draw V into `rows` of the value projection, and derive the output projection from it.

        `name` is that of the value's weight. The output's weight becomes psi,
        `parametrizations.weight.original` in a state dict; biases stay. `untie` makes it an
        ordinary weight again.
        """
        shape = tuple(getattr(value, name)[rows].shape)
        if {shape, tuple(output.weight.shape)} != {(self.dim, self.dim)}:
            raise ValueError(
                f"an EigenSpectrum of dim {self.dim} ties two ({self.dim}, {self.dim}) weights, "
                f"got {shape} for the value and {tuple(output.weight.shape)} for the output"
            )
        if self.tied or is_parametrized(value, name) or is_parametrized(output, "weight"):
            raise ValueError("a weight is parametrised already, or the EigenSpectrum tied already")
        self.tied, self.rows, self.name = (value, output), rows, name
        V = torch.empty(self.dim, self.dim, device=self.value.device)
        if self.init == "he":
            nn.init.kaiming_normal_(V)
        else:
            nn.init.orthogonal_(V)
        count = self.dim if self.eps is None else (self.dim - 2) // 2
        with torch.no_grad():
            self.value.copy_(V)
        output.weight = nn.Parameter(self.std * torch.randn(count).to(output.weight))
        self.to(output.weight.device)
        # unsafe=True: psi does not have the shape of the weight
        register_parametrization(output, "weight", self, unsafe=True)
        return self

    def untie(self) -> None:
        """Make the output projection an ordinary layer again, with the weight that it has now.

        torch's `remove_parametrizations` would break deep copies of the layer, which share the
        class that it changes.
        """
        output: Any = self.tied[1]
        weight, trained = output.weight.detach(), output.weight.requires_grad
        parametrizations: Any = output.parametrizations
        if len(parametrizations) == 1:
            output.__class__ = parametrize.type_before_parametrizations(output)
            del output.parametrizations
            output.register_parameter("weight", nn.Parameter(weight, trained))
            # behind the weight again: optimizers tell parameters by their order
            output._parameters["bias"] = output._parameters.pop("bias")
        else:
            parametrize.remove_parametrizations(output, "weight")
        self.tied = ()

    def forward(self, psi: Tensor) -> Tensor:
        """Compute the weight of the output projection, (d, d), as a Linear stores it: W_O^T."""
        V = self.value
        # at least float32: half precision has no inverse, and autocast changes neither operation
        wide = V.to(torch.promote_types(V.dtype, torch.float32))
        right = torch.linalg.inv(wide) if self.form == "inverse" else wide.mT
        return (right * self._compute_spectrum(psi)).to(V.dtype)

    @property
    def value(self) -> Tensor:
        """V, the rows of the value projection, (d, d)."""
        return getattr(self.tied[0], self.name)[self.rows]

    @property
    def psi(self) -> nn.Parameter:
        """The parameter of the eigenvalues, which is the output projection's."""
        return self.tied[1].get_parameter("parametrizations.weight.original")

    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues of the layer, (d,), in the order of the heads."""
        return self._compute_spectrum(self.psi)

    def _compute_spectrum(self, psi: Tensor) -> Tensor:
        if self.eps is not None:
            size = psi.abs()
            top = size.amax(0, keepdim=True)
            last = -top - self.eps.to(psi.dtype)
            if self.layout == "concatenated":
                return torch.cat([size, -size, top, last])
            return torch.stack([torch.cat([size, top]), torch.cat([-size, last])], 1).flatten()
        clipped = psi.clamp(*_RANGES[self.kind])
        if self.clamp == "hard":
            return clipped
        return clipped.detach() + (psi - psi.detach())  # equals the clipped value exactly


def find_spectrum(output: nn.Module) -> EigenSpectrum | None:
    """Return the spectrum that derives the weight of an output projection, None if it has none."""
    if not is_parametrized(output, "weight"):
        return None
    parts: Any = output.parametrizations
    return next((part for part in parts.weight if isinstance(part, EigenSpectrum)), None)
