"""Causal language modelling: predict the next token; scored by perplexity."""

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from attention_nlp.tasks.base import IGNORED, Batch, Task, TextInfo


def token_nll(logits: Tensor, target: Tensor) -> Tensor:
    r"""Compute the negative log-likelihood of each token (B, N) from the logits (B, N, V).

    .. math:: \mathrm{nll}_i = -\log \mathrm{softmax}(\mathrm{logits}_{i-1})_{\mathrm{target}_i}

    It is 0 where the target is -100, and for the first token, which has no context.

    >>> import torch
    >>> token_nll(torch.zeros(1, 3, 8), torch.tensor([[4, 5, -100]])).exp()
    tensor([[1., 8., 1.]])
    """
    # shift the targets, not the logits: that would copy (B, N, V) numbers
    following = F.pad(target[:, 1:], (0, 1), value=IGNORED)
    flat = logits.float().flatten(0, 1)  # (B N, V)
    nll = F.cross_entropy(flat, following.flatten(), ignore_index=IGNORED, reduction="none")
    return nll.view_as(target).roll(1, dims=1)


class Perplexity(Metric):
    r"""The exponential of a mean negative log-likelihood, over tokens or words.

    .. math:: \exp\Bigl(\sum \mathrm{nll} \Big/ \sum \mathrm{count}\Bigr)

    Unlike `torchmetrics.text.Perplexity` it sums in float64, is exact for batches of any size, and
    counts words too. Source: https://huggingface.co/docs/transformers/perplexity

    >>> import torch
    >>> metric = Perplexity()
    >>> metric.update(torch.tensor(8.0).log() * 3, torch.tensor(3))
    >>> metric.compute()
    tensor(8.)
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    totals: list[Tensor]
    counts: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        # kept by batch: a float32 sum of 10^6 nats has one decimal, and not every device has
        # float64
        for name in ("totals", "counts"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, nll: Tensor, count: Tensor) -> None:
        """Add the summed negative log-likelihood of `count` tokens or words."""
        self.totals.append(nll.detach().float())
        self.counts.append(count)

    def compute(self) -> Tensor:
        """Compute the perplexity; nan if nothing was counted."""
        total, count = (
            dim_zero_cat(part).cpu().double().sum() for part in (self.totals, self.counts)
        )
        return (total / count).exp().float()


class CausalLanguage(Task):
    r"""Predict the next token; the mean cross-entropy is the loss, the perplexity the score.

    A batch may have a target (B, N) behind its ids, mask and types, with -100 for tokens that are
    not scored; without it all valid tokens but the first are. A batch for metrics has it, and
    behind it the number of words (B,) of each text's target.

    GFSA's released script averages the mean losses of its blocks; they have equally many tokens,
    so that this equals the mean over tokens.
    """

    head = "causal"
    num_labels = range(2)

    def make_metrics(self, info: TextInfo) -> dict[str, Metric]:
        """Make perplexities by token, which depends on the tokenizer, and by word."""
        return {"perplexity": Perplexity(), "word_perplexity": Perplexity()}

    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute the mean over all scored tokens of the batch."""
        count = (_get_target(batch)[:, 1:] != IGNORED).sum()
        return self.predict(model, batch).sum() / count.clamp(min=1)

    def update_metrics(self, metrics: Mapping[str, Any], model: nn.Module, batch: Batch) -> None:
        """Add the summed losses of a batch."""
        total = self.predict(model, batch).sum()
        metrics["perplexity"].update(total, (_get_target(batch)[:, 1:] != IGNORED).sum())
        metrics["word_perplexity"].update(total, batch[4].sum())

    def compute_score(self, metrics: Mapping[str, Any]) -> Tensor:
        """Compute the negative perplexity by token."""
        return -metrics["perplexity"].compute()

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute the negative log-likelihood of each scored token (B, N)."""
        # no token types: GPT-2 would look them up as words and add those
        ids, valid_mask = batch[:2]
        logits = model(input_ids=ids, attention_mask=valid_mask, use_cache=False).logits
        return token_nll(logits, _get_target(batch))


def _get_target(batch: Batch) -> Tensor:
    ids, valid_mask = batch[:2]
    return batch[3] if len(batch) > 3 else ids.masked_fill(~valid_mask, IGNORED)
