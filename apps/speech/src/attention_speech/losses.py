"""The two losses of a recogniser, of which its own is a mean with weights."""

import math

import torch.nn.functional as F
from torch import Tensor

from attention_speech.vocabulary import BLANK, EOS


def alignment(logits: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor) -> Tensor:
    r"""CTC of a batch: the mean over utterances of what all alignments of their tokens cost.

    .. math:: -\frac{1}{B} \sum_b \log \sum_{\pi \to y_b} \prod_s p(\pi_s | x_b)

    Utterances of too few states for their tokens cost nothing. In single precision.

    Shapes: logits (B, S, V), lengths (B,) in states, tokens (B, U), token_lengths (B,).

    Source: https://www.cs.toronto.edu/~graves/icml_2006.pdf

    >>> import torch
    >>> one = torch.ones(1, dtype=torch.long)
    >>> round(alignment(torch.zeros(1, 1, 4), one, one[None] * 3, one).exp().item(), 3)
    4.0
    """
    log_probs = F.log_softmax(logits.float(), dim=-1).transpose(0, 1)
    total = F.ctc_loss(
        log_probs, tokens, lengths, token_lengths, BLANK, reduction="sum", zero_infinity=True
    )
    return total / len(tokens)


def divergence(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    r"""Divergence of what follows each token from what should, summed over an utterance.

    .. math:: \frac{1}{B} \sum_{b,u} \mathrm{KL}(q_{bu} \| p_{bu}), \qquad
        q_{bu}(v) = \begin{cases} 1 - \epsilon & v = y_{bu} \\ \epsilon / (V - 1) \end{cases}

    where a target is 0, nothing is asked. In single precision.

    Shapes: logits (B, U, V), targets (B, U).

    Source: https://arxiv.org/abs/1512.00567, section 7

    >>> import torch
    >>> round(divergence(torch.zeros(1, 2, 4), torch.tensor([[3, 0]]), 0.0).exp().item(), 3)
    4.0
    """
    log_probs = F.log_softmax(logits.float(), dim=-1)
    rest = smoothing / (logits.shape[-1] - 1)
    true = log_probs.gather(-1, targets[..., None])[..., 0]
    cross = (1 - smoothing - rest) * true + rest * log_probs.sum(-1)
    entropy = sum(p * math.log(p / n) for p, n in _parts(smoothing, logits.shape[-1]) if p)
    return ((entropy - cross) * (targets != BLANK)).sum() / len(targets)


def _parts(smoothing: float, size: int) -> tuple[tuple[float, int], ...]:
    """The probability of the true one, and that which all others share, with their number."""
    return (1 - smoothing, 1), (smoothing, size - 1)


def ended(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Tokens (B, U) with the end behind each utterance's, then 0: (B, U + 1).

    >>> import torch
    >>> ended(torch.tensor([[5, 6, 0]]), torch.tensor([2]))
    tensor([[5, 6, 2, 0]])
    """
    return F.pad(tokens, (0, 1)).scatter(1, lengths[:, None], EOS)
