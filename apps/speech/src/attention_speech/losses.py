"""The two losses whose weighted sum trains a recognizer."""

import math

import torch.nn.functional as F
from torch import Tensor

from attention_speech.tokenizer import BLANK, EOS


def ctc_loss(logits: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor) -> Tensor:
    r"""Compute the CTC loss in float32, summed over states and averaged over utterances.

    .. math:: -\frac{1}{B} \sum_b \log \sum_{\pi \to y_b} \prod_s p(\pi_s | x_b)

    An utterance with fewer states than its tokens need has loss 0.

    Shapes: logits (B, S, V), lengths (B,) in states, tokens (B, U), token_lengths (B,).

    Source: https://www.cs.toronto.edu/~graves/icml_2006.pdf

    >>> import torch
    >>> one = torch.ones(1, dtype=torch.long)
    >>> round(ctc_loss(torch.zeros(1, 1, 4), one, one[None] * 3, one).exp().item(), 3)
    4.0
    """
    log_probs = F.log_softmax(logits.float(), dim=-1).transpose(0, 1)
    total = F.ctc_loss(
        log_probs, tokens, lengths, token_lengths, BLANK, reduction="sum", zero_infinity=True
    )
    return total / len(tokens)


def label_smoothed_kl(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    r"""Compute the divergence from smoothed targets in float32, averaged over utterances.

    .. math:: \frac{1}{B} \sum_{b,u} \mathrm{KL}(q_{bu} \| p_{bu}), \qquad
        q_{bu}(v) = \begin{cases} 1 - \epsilon & v = y_{bu} \\ \epsilon / (V - 1) \end{cases}

    Targets that are 0 do not count.

    Shapes: logits (B, U, V), targets (B, U).

    Source: https://arxiv.org/abs/1512.00567, section 7

    >>> import torch
    >>> round(label_smoothed_kl(torch.zeros(1, 2, 4), torch.tensor([[3, 0]]), 0.0).exp().item(), 3)
    4.0
    """
    log_probs = F.log_softmax(logits.float(), dim=-1)
    others = logits.shape[-1] - 1
    rest = smoothing / others
    true = log_probs.gather(-1, targets[..., None])[..., 0]
    cross_entropy = (1 - smoothing - rest) * true + rest * log_probs.sum(-1)
    masses = ((1 - smoothing, 1), (smoothing, others))  # for the true token, and for all others
    entropy = sum(p * math.log(p / n) for p, n in masses if p)
    return ((entropy - cross_entropy) * (targets != BLANK)).sum() / len(targets)


def append_eos(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Append the end token to each row of tokens (B, U), and pad with 0 to (B, U + 1)."""
    return F.pad(tokens, (0, 1)).scatter(1, lengths[:, None], EOS)
