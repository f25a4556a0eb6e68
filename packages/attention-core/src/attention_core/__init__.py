"""Attention mechanisms as functions of the attention map: filters, kernels, spectral measures."""

from attention_core import spectral, theory
from attention_core.attention import SelfAttention, penalties
from attention_core.diagnosis import diagnose
from attention_core.filters import (
    GFSA,
    AttnScale,
    CenteredAttention,
    Plain,
    Polynomial,
    ReAttention,
)
from attention_core.hosts.attach import attach, detach, trainable_parameters
from attention_core.hosts.saving import load_mechanism, save_mechanism
from attention_core.kernels import AGF
from attention_core.operators import Diagonal, Host, LowRank, Operator, Softmax
from attention_core.reparam import EigenSpectrum
from attention_core.tokens import ContraNorm, FeatScale, LayerScale

__version__ = "0.1.0"

__all__ = [
    "AGF",
    "GFSA",
    "AttnScale",
    "CenteredAttention",
    "ContraNorm",
    "Diagonal",
    "EigenSpectrum",
    "FeatScale",
    "Host",
    "LayerScale",
    "LowRank",
    "Operator",
    "Plain",
    "Polynomial",
    "ReAttention",
    "SelfAttention",
    "Softmax",
    "attach",
    "detach",
    "diagnose",
    "load_mechanism",
    "penalties",
    "save_mechanism",
    "spectral",
    "theory",
    "trainable_parameters",
]
