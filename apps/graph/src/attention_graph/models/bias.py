"""The bias that Graphormer adds to the logits of attention: distances, and the bonds between."""

import torch
from torch import Tensor, nn

from attention_graph.encodings import UPSTREAM_FAR, Batch, Variant
from attention_graph.models.paths import Steps, sum_along_paths


class AttentionBias(nn.Module):
    r"""The additive bias of all layers: spatial encoding, edge encoding and the virtual node.

    .. math:: B_{ij} = b_{d_{ij}} + \frac{1}{\min(d_{ij}, L)} S_{ij}, \qquad
        m_k(u, j) = e(u, j) W_k, \quad k \le L

    with S the mean over all shortest paths of the sum of the messages m of their first L bonds
    (`sum_along_paths`), e a bond's embedded features, and one value for all pairs of the virtual
    node, which is token 0. Keys that are padding get :math:`-\infty`. Pairs without a path share
    row 0 of b, and the greatest distances its last row.

    Variant `upstream` keeps what upstream's initialization does: row 0 of the bond table, which
    stands for hops that a path does not have, is random and never learns, so that it adds
    :math:`\sum_{k > n} e_0 W_k / \min(d, L)` for a path of n hops. Upstream also
    adds the mask of padding twice, which changes nothing: it contains 0 and :math:`-\infty`.

    Shapes: a `Batch` of N atoms at most -> (B, H, N + 1, N + 1).

    Raises ValueError for hops without a matrix in the table; and in variant `upstream` for an
    unreachable pair without a row in the table of distances.

    Source: section 3.1 of https://arxiv.org/abs/2106.05234
    """

    def __init__(
        self,
        num_heads: int,
        bond_rows: int,
        distances: int,
        max_hops: int,
        hop_rows: int,
        variant: Variant = "corrected",
    ) -> None:
        super().__init__()
        if not 1 <= max_hops <= hop_rows:
            text = f"must be from 1 to model.hop_rows, {hop_rows}, got {max_hops}"
            raise ValueError(f"model.max_hops {text}")
        self.num_heads, self.max_hops, self.variant = num_heads, max_hops, variant
        self.bond = nn.Embedding(bond_rows, num_heads, padding_idx=0)
        self.hop = nn.Embedding(hop_rows, num_heads * num_heads)
        self.distance = nn.Embedding(distances, num_heads)
        self.virtual = nn.Embedding(1, num_heads)

    def forward(self, batch: Batch) -> Tensor:
        """Compute the bias of a batch."""
        B, N = batch.mask.shape
        pairs = self._encode_distances(batch.hops) + self._encode_edges(batch)  # (B, N, N, H)
        bias = self.virtual.weight.view(1, -1, 1, 1).expand(B, -1, N + 1, N + 1).clone()
        bias[:, :, 1:, 1:] = pairs.permute(0, 3, 1, 2)
        padding = nn.functional.pad(~batch.mask, (1, 0))[:, None, None, :]
        return bias.masked_fill(padding, -torch.inf)

    def _encode_distances(self, hops: Tensor) -> Tensor:
        last = self.distance.num_embeddings - 1
        if self.variant == "upstream" and last <= UPSTREAM_FAR and (hops == UPSTREAM_FAR).any():
            raise ValueError(
                f"in variant upstream, a pair of atoms without a path takes row {UPSTREAM_FAR + 1} "
                f"of the table of distances, which has {last + 1} (model.distances): variant "
                "corrected gives such pairs a row of their own"
            )
        return self.distance((hops + 1).clamp(max=last))

    def _encode_edges(self, batch: Batch) -> Tensor:
        W = self.hop.weight.view(-1, self.num_heads, self.num_heads)[: self.max_hops]
        messages = self.bond(batch.bonds).mean(-2) @ W  # (L, U, H)
        steps = Steps(batch.pair, batch.parent, batch.bond, batch.weight, batch.sizes)
        if self.variant == "corrected":
            S = sum_along_paths(messages, steps, batch.hops.numel())
        else:  # upstream pads each path to L hops, and padding has a message too
            padding = self.bond.weight[0].detach() @ W  # (L, H)
            S = sum_along_paths(messages - padding.unsqueeze(1), steps, batch.hops.numel())
            S = S + padding.sum(0)
        hops = batch.hops.clamp(1, self.max_hops).unsqueeze(-1)
        return S.view(*batch.hops.shape, -1) / hops
