"""From states to pieces: greedily by CTC, or by a beam that CTC and attention score together."""

from dataclasses import dataclass

import torch
from speechbrain.decoders import (
    CTCScorer,
    S2STransformerBeamSearcher,
    ScorerBuilder,
    TransformerLMScorer,
)
from torch import Tensor, nn

from attention_speech.features import real
from attention_speech.models import Recogniser
from attention_speech.vocabulary import BLANK, BOS, EOS


@dataclass(frozen=True)
class Search:
    """Settings of the beam search; `shortest` and `longest` are ids per state.

    The temperature is of attention, and of the language model. Published are 66 beams, 0.4 and,
    with a language model, 0.6, at 1.15.

    Raises ValueError for a setting out of its range.

    >>> Search(ctc_weight=1.0)
    Traceback (most recent call last):
    ValueError: model.search: ctc_weight must be from 0 to below 1, got 1.0
    """

    beam: int = 66
    ctc_weight: float = 0.4
    lm_weight: float = 0.6
    temperature: float = 1.15
    shortest: float = 0.0
    longest: float = 1.0

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise ValueError(f"model.search: beam must be at least 1, got {self.beam}")
        if not 0 <= self.ctc_weight < 1:
            raise ValueError(
                f"model.search: ctc_weight must be from 0 to below 1, got {self.ctc_weight}"
            )
        if self.lm_weight < 0 or self.temperature <= 0:
            raise ValueError("model.search: lm_weight must not be negative, temperature positive")
        if not 0 <= self.shortest <= self.longest <= 1:
            raise ValueError(
                "model.search: shortest and longest must be from 0 to 1 and in order, got "
                f"{self.shortest} and {self.longest}"
            )


def greedy(logits: Tensor, lengths: Tensor) -> list[list[int]]:
    """The likeliest id of each state, repetitions and blanks left out.

    Shapes: logits (B, S, V), lengths (B,) in states.

    Source: https://www.cs.toronto.edu/~graves/icml_2006.pdf, section 3.2

    >>> logits = torch.eye(6)[torch.tensor([[4, 4, 0, 4, 5, 5]])]
    >>> greedy(logits, torch.tensor([5]))
    [[4, 4, 5]]
    """
    best = logits.argmax(-1)
    changed = torch.ones_like(best, dtype=torch.bool)
    changed[:, 1:] = best[:, 1:] != best[:, :-1]
    kept = changed & (best != BLANK) & real(lengths, best.shape[1])
    return [row[mask].tolist() for row, mask in zip(best, kept, strict=True)]


class _Searcher(S2STransformerBeamSearcher):
    """speechbrain's search, which takes a step even where a state or two allow for none."""

    def change_max_decoding_length(self, least: int, most: int) -> tuple[int, int]:
        return least, max(1, most)


@torch.no_grad()
def beam_search(
    network: Recogniser,
    states: Tensor,
    lengths: Tensor,
    search: Search,
    language_model: nn.Module | None = None,
) -> list[list[int]]:
    r"""The ids whose normalised score is the highest that a beam finds.

    .. math:: \frac{1}{|y|} \bigl( (1 - \lambda) \log p_\mathrm{att}(y) +
        \lambda \log p_\mathrm{ctc}(y) + \gamma \log p_\mathrm{lm}(y) \bigr)

    with :math:`\lambda` the weight of CTC and :math:`\gamma` that of the language model, left out
    where there is none. The beam is no wider than the vocabulary, or finished hypotheses that
    nothing has led to would fill it. An unfinished hypothesis loses its last id, as in the library.

    Shapes: states (B, S, width), lengths (B,) in states.

    Source: https://arxiv.org/abs/1609.06773
    """
    states = states[:, : int(lengths.max())]  # the library takes the longest for the size
    vocabulary: int = network.output.w.out_features
    scorers, weights = [], {}
    if language_model is not None and search.lm_weight:
        scorers.append(TransformerLMScorer(language_model, temperature=search.temperature))
        weights["transformerlm"] = search.lm_weight
    if search.ctc_weight:
        scorers.append(CTCScorer(network.ctc, BLANK, EOS))
        weights["ctc"] = search.ctc_weight
    searcher = _Searcher(
        [network.transformer, network.output],
        temperature=search.temperature,
        bos_index=BOS,
        eos_index=EOS,
        min_decode_ratio=search.shortest,
        max_decode_ratio=search.longest,
        beam_size=min(search.beam, vocabulary),
        using_eos_threshold=False,
        length_normalization=True,
        scorer=ScorerBuilder(weights, scorers) if scorers else None,
    )
    with torch.autocast(states.device.type, enabled=False):
        states = states.to(network.output.w.weight.dtype)
        found, *_ = searcher(states, lengths / states.shape[1])
    return found
