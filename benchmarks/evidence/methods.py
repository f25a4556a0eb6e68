"""Mechanisms that are compared, and their coefficients."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import attention_core
from attention_core import SelfAttention
from torch import nn


@dataclass(frozen=True)
class Method:
    """One attention layer: what is in which slot of `SelfAttention`, and how it starts."""

    label: str = ""
    slot: str = "filter"
    mechanism: str = "Plain"
    init_args: Mapping[str, Any] = field(default_factory=dict)
    start: Mapping[str, float] = field(default_factory=dict)  # parameters that start elsewhere
    residual: bool = False  # in the task, where it is the reference

    def describe_layer(self) -> dict[str, Any]:
        """Return all that can change a result: the label cannot."""
        return {key: value for key, value in asdict(self).items() if key != "label"}

    def build_attention(self, dim: int, num_heads: int) -> SelfAttention:
        """Build the layer; another method has the same weights under the same seed."""

        def build_mechanism(*sizes: int) -> nn.Module:
            module = getattr(attention_core, self.mechanism)(*sizes, **self.init_args)
            for name, value in self.start.items():
                nn.init.constant_(module.get_parameter(name), value)
            return module

        return SelfAttention(dim, num_heads, **{self.slot: build_mechanism})


# no released file has trained coefficients of GFSA, AttnScale or FeatScale, and their figures have
# no values that can be read: we chose the size, and both signs for GFSA
_HIGH_PASS = {f"theta.{k}": (-0.5) ** k for k in range(4)}  # theorem 2 of AGF

PLAIN = Method("plain")
GFSA_NEGATIVE = Method("GFSA, $w_K = -0.5$", mechanism="GFSA", init_args={"K": 3, "wK": -0.5})
ATTNSCALE = Method("AttnScale, $\\omega = 1$", mechanism="AttnScale", start={"omega": 1.0})
CENTERED = Method("centered", mechanism="CenteredAttention")
POLYNOMIAL = Method(
    "polynomial, $\\theta_k = (-1/2)^k$",
    mechanism="Polynomial",
    init_args={"K": 3},
    start=_HIGH_PASS,
)
CONTRANORM = Method(
    "ContraNorm, $s = 0.1$",
    slot="tokens",
    mechanism="ContraNorm",
    init_args={"scale": 0.1, "identity": True, "norm": False},
)
FEATSCALE = Method("FeatScale, $t = 1$", slot="tokens", mechanism="FeatScale", start={"t": 1.0})
AGF = Method("AGF", slot="kernel", mechanism="AGF")

STACKED = {
    "plain": PLAIN,
    "gfsa_negative": GFSA_NEGATIVE,
    "gfsa_positive": Method("GFSA, $w_K = +0.5$", mechanism="GFSA", init_args={"K": 3, "wK": 0.5}),
    "attnscale": ATTNSCALE,
    "centered": CENTERED,
    "polynomial": POLYNOMIAL,
    "featscale": FEATSCALE,
    "contranorm": CONTRANORM,
    "agf": AGF,
}
TRAINED = {
    "residual": Method("plain, with residual", residual=True),
    "plain": PLAIN,
    "gfsa_released": Method("GFSA, from $w_K = 0$", mechanism="GFSA"),
    "gfsa_negative": GFSA_NEGATIVE,
    "attnscale": ATTNSCALE,
    "centered": CENTERED,
    "polynomial": POLYNOMIAL,
    "contranorm": Method(
        "ContraNorm, $s = 0.9$",
        slot="tokens",
        mechanism="ContraNorm",
        init_args={"scale": 0.9},  # released scales are at most 0.1
    ),
    "agf": AGF,
}
