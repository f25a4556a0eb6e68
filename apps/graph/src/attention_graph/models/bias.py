"""What Graphormer adds to the logits of attention: distances, and the bonds between."""

import torch
from torch import Tensor, nn

from attention_graph.encodings import FAR, Batch, Fidelity
from attention_graph.models.paths import Steps, accumulate


class AttentionBias(nn.Module):
    r"""The additive bias of every layer, of spatial and edge encoding and the virtual node.

    .. math:: B_{ij} = b_{d_{ij}} + \frac{1}{\min(d_{ij}, L)} S_{ij}, \qquad
        m_k(u, j) = e(u, j) W_k, \quad k \le L

    with S the mean over all shortest paths of the sum of the messages m of their first L bonds
    (`accumulate`), e a bond's embedded features, and t for all pairs of the virtual node, which is
    token 0. Keys that are padding get :math:`-\infty`. Pairs without a path share row 0 of b, and
    the greatest distances its last one.

    `released` keeps what upstream's initialisation does: row 0 of the bond table, which stands
    for hops that a path does not have, is random and never learns, so that it adds
    :math:`\sum_{k > n} e_0 W_k / \min(d, L)` for a path of n hops. Upstream also
    adds the mask of padding twice, which changes nothing: it holds 0 and :math:`-\infty`.

    Shapes: a `Batch` of N atoms at most -> (B, H, N + 1, N + 1).

    Raises ValueError for hops that the table has no matrix for; and for an unreachable pair that
    the table of distances has no row for, as released.

    Source: section 3.1 of https://arxiv.org/abs/2106.05234
    """

    def __init__(
        self,
        heads: int,
        bond_rows: int,
        distances: int,
        max_hops: int,
        hop_rows: int,
        fidelity: Fidelity = "right",
    ) -> None:
        super().__init__()
        if not 1 <= max_hops <= hop_rows:
            text = f"must be from 1 to model.hop_rows, {hop_rows}, got {max_hops}"
            raise ValueError(f"model.max_hops {text}")
        self.heads, self.max_hops, self.fidelity = heads, max_hops, fidelity
        self.bond = nn.Embedding(bond_rows, heads, padding_idx=0)
        self.hop = nn.Embedding(hop_rows, heads * heads)
        self.distance = nn.Embedding(distances, heads)
        self.virtual = nn.Embedding(1, heads)

    def forward(self, batch: Batch) -> Tensor:
        """Bias the logits of a batch."""
        B, N = batch.mask.shape
        pairs = self._spatial(batch.hops) + self._edges(batch)
        bias = self.virtual.weight.view(1, -1, 1, 1).expand(B, -1, N + 1, N + 1).clone()
        bias[:, :, 1:, 1:] = pairs.permute(0, 3, 1, 2)
        padding = nn.functional.pad(~batch.mask, (1, 0))[:, None, None, :]
        return bias.masked_fill(padding, -torch.inf)

    def _spatial(self, hops: Tensor) -> Tensor:
        last = self.distance.num_embeddings - 1
        if self.fidelity == "released" and last <= FAR and (hops == FAR).any():
            raise ValueError(
                f"as released, a pair of atoms without a path takes row {FAR + 1} of the "
                f"table of distances, which has {last + 1} (model.distances): fidelity right "
                "gives such pairs a row of their own"
            )
        return self.distance((hops + 1).clamp(max=last))

    def _edges(self, batch: Batch) -> Tensor:
        W = self.hop.weight.view(-1, self.heads, self.heads)[: self.max_hops]
        messages = self.bond(batch.bonds).mean(-2) @ W  # (L, U, H)
        steps = Steps(batch.pair, batch.parent, batch.bond, batch.weight, batch.sizes)
        if self.fidelity == "right":
            S = accumulate(messages, steps, batch.hops.numel())
        else:  # all L hops are padding, but for those that a path has
            padding = self.bond.weight[0].detach() @ W  # (L, H)
            S = accumulate(messages - padding.unsqueeze(1), steps, batch.hops.numel())
            S = S + padding.sum(0)
        hops = batch.hops.clamp(1, self.max_hops).unsqueeze(-1)
        return S.view(*batch.hops.shape, -1) / hops
