"""Functions of tokens after attention: x -> x, one file each."""

from attention_core.tokens.contranorm import ContraNorm
from attention_core.tokens.featscale import FeatScale
from attention_core.tokens.layerscale import LayerScale
