"""The next token: causal language modelling, scored by its perplexity."""

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from attention_nlp.tasks.base import Batch, Facts, Task

IGNORED = -100  # in a target: nothing is asked of this token


def token_nll(logits: Tensor, target: Tensor) -> Tensor:
    r"""What each token (B, N) costs, from the logits (B, N, V) of the token before it.

    .. math:: \mathrm{nll}_i = -\log \mathrm{softmax}(\mathrm{logits}_{i-1})_{\mathrm{target}_i}

    Zero where the target is -100, and for the first token, which nothing comes before.

    >>> import torch
    >>> token_nll(torch.zeros(1, 3, 8), torch.tensor([[4, 5, -100]])).exp()
    tensor([[1., 8., 1.]])
    """
    # targets are shifted and not logits, of which that would make another copy
    following = F.pad(target[:, 1:], (0, 1), value=IGNORED)
    flat = logits.float().flatten(0, 1)
    nll = F.cross_entropy(flat, following.flatten(), ignore_index=IGNORED, reduction="none")
    return nll.view_as(target).roll(1, dims=1)


class Perplexity(Metric):
    r"""The exponential of a mean, of costs that are added up by batch.

    .. math:: \exp\Bigl(\sum \mathrm{nll} \Big/ \sum \mathrm{count}\Bigr)

    Over tokens or over words, whichever are counted; exact for batches of any size.
    Source: https://huggingface.co/docs/transformers/perplexity

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
        # kept by batch, since a sum of 10^6 nats has one decimal in float32, and not every device
        # has float64
        for name in ("totals", "counts"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, nll: Tensor, count: Tensor) -> None:
        """Add the summed cost of a batch, and how many tokens or words it is of."""
        self.totals.append(nll.detach().float())
        self.counts.append(count)

    def compute(self) -> Tensor:
        """The perplexity; nan where nothing was counted."""
        total, count = (
            dim_zero_cat(part).cpu().double().sum() for part in (self.totals, self.counts)
        )
        return (total / count).exp().float()


class CausalLanguage(Task):
    r"""The next token, learned by the mean cross-entropy; the perplexity chooses the epoch.

    A batch may have a target (B, N) after its ids, mask and types, with -100 where nothing is
    asked; without it all real tokens but the first are. One that is scored has it, and behind it
    how many words (B,) each text's target stands for.

    GFSA's released script averages the mean costs of its blocks, which all have as many tokens:
    the same as the mean over tokens here.

    >>> CausalLanguage().metrics(Facts(1, 10, 8, 0)).keys()
    dict_keys(['perplexity', 'word_perplexity'])
    """

    head = "causal"
    labels = range(2)

    def metrics(self, facts: Facts) -> dict[str, Metric]:
        """Perplexity by token, which depends on the tokenizer, and by word, which does not."""
        return {"perplexity": Perplexity(), "word_perplexity": Perplexity()}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean over all tokens of the batch that are asked for."""
        count = (_target(batch)[:, 1:] != IGNORED).sum()
        return self.predict(model, batch).sum() / count.clamp(min=1)

    def update(self, metrics: Mapping[str, Any], model: nn.Module, batch: Batch) -> None:
        """Add up what the tokens cost."""
        total = self.predict(model, batch).sum()
        metrics["perplexity"].update(total, (_target(batch)[:, 1:] != IGNORED).sum())
        metrics["word_perplexity"].update(total, batch[4].sum())

    def score(self, metrics: Mapping[str, Any]) -> Tensor:
        """The negative perplexity by token."""
        return -metrics["perplexity"].compute()

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """What each token (B, N) that is asked for costs, in nats."""
        # no token types: GPT-2 would look them up among its words, and add those
        ids, mask = batch[:2]
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits  # (B, N, V)
        return token_nll(logits, _target(batch))


def _target(batch: Batch) -> Tensor:
    ids, mask = batch[:2]
    return batch[3] if len(batch) > 3 else ids.masked_fill(~mask, IGNORED)
