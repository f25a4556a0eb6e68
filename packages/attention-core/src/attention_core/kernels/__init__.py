"""What an attention map is, beyond softmax: kernels (q, k, x, mask) -> Operator, one file each."""

from attention_core.kernels.agf import AGF, GraphSVD, orthogonality

__all__ = ["AGF", "GraphSVD", "orthogonality"]
