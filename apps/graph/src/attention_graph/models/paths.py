"""The bias that Graphormer adds to the logits of attention: distances, and the bonds between.

The bonds of a path are summed hop by hop, so that no path is stored. A chain i - u - j, with
messages m_1 of its first bond and m_2 of its second:

    hop 1:  S[i,u] = S[i,i] + m_1(i,u)  = m_1(i,u)
    hop 2:  S[i,j] = S[i,u] + m_2(u,j)  = m_1(i,u) + m_2(u,j)

If several u are one hop before j, S[i,j] is their mean, weighted by the numbers of their paths.
All pairs of a hop are computed at once. The gradient runs the same hops backwards.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attention_graph.encodings.batch import Batch
from attention_graph.encodings.paths import UPSTREAM_FAR, Variant


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


class Steps(NamedTuple):
    """The terms of the recursion, sorted by hop; `sizes` are the numbers of terms of each hop."""

    pair: Tensor
    parent: Tensor
    bond: Tensor
    weight: Tensor
    sizes: tuple[int, ...]


def sum_along_paths(messages: Tensor, steps: Steps, num_pairs: int) -> Tensor:
    r"""Average, over the shortest paths of each pair, the sum of the messages of their bonds.

    .. math:: S_{ij} = \sum_{u} \frac{\sigma_{iu}}{\sigma_{ij}}
        \bigl(S_{iu} + m_{d_{ij}}(u, j)\bigr), \qquad S_{ii} = 0

    over the neighbors u of j that are one hop nearer to i, with :math:`\sigma` the number of
    shortest paths. Hops beyond those that have messages add nothing. Memory is that of S; the
    features of one path of each pair would need as many times more as paths have hops.

    Shapes: messages (L, U, H), of hop and bond -> (pairs, H); `steps` of S terms, whose `parent`
    is `num_pairs` if there is none.

    Source: section 3.1.2 of https://arxiv.org/abs/2106.05234 (the sum, over one path)

    >>> one, two = torch.tensor([[1.0]]), torch.tensor([[10.0]])  # a chain of three atoms
    >>> steps = Steps(*(torch.tensor(t) for t in ([1, 2], [3, 1], [0, 0], [1.0, 1.0])), (1, 1))
    >>> sum_along_paths(torch.stack([one, two]), steps, num_pairs=3).flatten()
    tensor([ 0.,  1., 11.])
    """
    return _SumAlongPaths.apply(messages, steps, num_pairs)


class _SumAlongPaths(torch.autograd.Function):
    """The recursion in place, and its gradient by the same steps backwards."""

    @staticmethod
    def forward(messages: Tensor, steps: Steps, num_pairs: int) -> Tensor:
        total = messages.new_zeros(num_pairs + 1, messages.shape[2])  # the last is "no parent"
        for hop, part in enumerate(_split_hops(steps)):
            step = total[part.parent]
            if hop < len(messages):
                step += messages[hop, part.bond]
            total.index_add_(0, part.pair, step.mul_(_weight_column(part, step)))
        return total[:-1]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        messages, ctx.steps, _ = inputs
        ctx.shape = messages.shape

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        grad, total = g.new_zeros(ctx.shape), torch.cat([g, g.new_zeros(1, g.shape[1])])
        for hop, part in reversed(list(enumerate(_split_hops(ctx.steps)))):
            step = total[part.pair]
            step.mul_(_weight_column(part, step))
            total.index_add_(0, part.parent, step)
            if hop < len(grad):
                grad[hop].index_add_(0, part.bond, step)
        return grad, None, None


def _split_hops(steps: Steps) -> list[Steps]:
    *columns, sizes = steps
    split = (column.split(list(sizes)) for column in columns)
    return [Steps(p, q, b, w, ()) for p, q, b, w in zip(*split, strict=True)]


def _weight_column(part: Steps, like: Tensor) -> Tensor:
    return part.weight.to(like.dtype).unsqueeze(-1)  # (S, 1)
