"""Decode encoder states: greedily by CTC, or by a beam search over CTC and attention scores."""

from dataclasses import dataclass

import torch
from attention_core import checks
from speechbrain import decoders
from torch import Tensor, nn

from attention_speech.features import length_mask
from attention_speech.models.recognizer import Recognizer
from attention_speech.tokenizer import BLANK, BOS, EOS


@dataclass(frozen=True)
class BeamSearchConfig:
    """Settings of the beam search; the defaults are the published ones.

    Args:
        beam_size: Hypotheses that are kept.
        ctc_weight: Weight of CTC beside attention.
        lm_weight: Weight of the language model where there is one.
        temperature: Divisor of the logits of attention and of the language model.
        min_decode_ratio: Least number of ids per state.
        max_decode_ratio: Greatest number of ids per state.
    """

    beam_size: int = 66
    ctc_weight: float = 0.4
    lm_weight: float = 0.6
    temperature: float = 1.15
    min_decode_ratio: float = 0.0
    max_decode_ratio: float = 1.0

    def __post_init__(self) -> None:
        key = "model.beam_search"
        checks.check_sizes(key, beam_size=self.beam_size)
        checks.check_probabilities(key, ctc_weight=self.ctc_weight)
        checks.check_nonnegative(key, lm_weight=self.lm_weight)
        checks.check_positive(key, temperature=self.temperature)
        least, most = self.min_decode_ratio, self.max_decode_ratio
        if not (0 <= least <= most <= 1 and most > 0):
            raise ValueError(
                f"{key}.min_decode_ratio and max_decode_ratio must be from 0 to 1, in order, and "
                f"not both 0, got {self.min_decode_ratio} and {self.max_decode_ratio}"
            )


def greedy_ctc_decode(logits: Tensor, lengths: Tensor) -> list[list[int]]:
    """Return the most likely id of each state, without repetitions and blanks.

    Shapes: logits (B, S, V), lengths (B,) in states.

    Source: https://www.cs.toronto.edu/~graves/icml_2006.pdf, section 3.2

    >>> logits = torch.eye(6)[torch.tensor([[4, 4, 0, 4, 5, 5]])]
    >>> greedy_ctc_decode(logits, torch.tensor([5]))
    [[4, 4, 5]]
    """
    best = logits.argmax(-1)
    differs = torch.ones_like(best, dtype=torch.bool)
    differs[:, 1:] = best[:, 1:] != best[:, :-1]
    keep = differs & (best != BLANK) & length_mask(lengths, best.shape[1])
    return [row[mask].tolist() for row, mask in zip(best, keep, strict=True)]


class _BeamSearcher(decoders.S2STransformerBeamSearcher):
    """speechbrain's search with at least one step, also for one or two states."""

    def change_max_decoding_length(self, least: int, most: int) -> tuple[int, int]:
        return least, max(1, most)


@torch.no_grad()
def beam_search(
    network: Recognizer,
    states: Tensor,
    lengths: Tensor,
    config: BeamSearchConfig,
    language_model: nn.Module | None = None,
) -> list[list[int]]:
    r"""Return the ids with the highest normalized score that a beam finds.

    .. math:: \frac{1}{|y|} \bigl( (1 - \lambda) \log p_\mathrm{att}(y) +
        \lambda \log p_\mathrm{ctc}(y) + \gamma \log p_\mathrm{lm}(y) \bigr)

    where :math:`\lambda` is `ctc_weight` and :math:`\gamma` is `lm_weight`, or 0 without a
    language model. The beam is at most as wide as the vocabulary; a wider one would hold finished
    hypotheses that continue none. As in speechbrain, an unfinished hypothesis loses its last id.

    Shapes: states (B, S, dim), lengths (B,) in states.

    Source: https://arxiv.org/abs/1609.06773
    """
    states = states[:, : int(lengths.max())]  # speechbrain reads relative lengths
    vocab_size: int = network.output.w.out_features
    scorers, weights = [], {}
    if language_model is not None and config.lm_weight:
        scorers.append(decoders.TransformerLMScorer(language_model, temperature=config.temperature))
        weights["transformerlm"] = config.lm_weight
    if config.ctc_weight:
        scorers.append(decoders.CTCScorer(network.ctc, BLANK, EOS))
        weights["ctc"] = config.ctc_weight
    searcher = _BeamSearcher(
        [network.transformer, network.output],
        temperature=config.temperature,
        bos_index=BOS,
        eos_index=EOS,
        min_decode_ratio=config.min_decode_ratio,
        max_decode_ratio=config.max_decode_ratio,
        beam_size=min(config.beam_size, vocab_size),
        using_eos_threshold=False,
        length_normalization=True,
        scorer=decoders.ScorerBuilder(weights, scorers) if scorers else None,
    )
    with torch.autocast(states.device.type, enabled=False):
        states = states.to(network.output.w.weight.dtype)
        ids, *_ = searcher(states, lengths / states.shape[1])
    return ids
