"""Attention maps other than softmax: kernels (q, k, x, mask) -> Operator, one file each."""

from attention_core.kernels.agf import AGF, GraphSVD, orthogonality_penalty
from attention_core.kernels.cosformer import Cosformer
from attention_core.kernels.flowformer import Flowformer
from attention_core.kernels.linear import LinearAttention
from attention_core.kernels.linformer import Linformer
from attention_core.kernels.longformer import Longformer
from attention_core.kernels.nystromformer import Nystromformer
from attention_core.kernels.performer import Performer
from attention_core.kernels.primalformer import Primalformer
from attention_core.kernels.reformer import Reformer
from attention_core.kernels.singularformer import Singularformer
from attention_core.kernels.soft import SOFT
from attention_core.kernels.yoso import YOSO
