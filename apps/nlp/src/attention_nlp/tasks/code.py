"""Is this function faulty, are these two clones? Vectors of code, as CodeT5's scripts make them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attention_nlp.tasks.base import Facts, forward
from attention_nlp.tasks.labels import Classification


class Logits(NamedTuple):
    """What a classifier says, under the name that transformers gives it."""

    logits: Tensor


def vectors(encoder: nn.Module, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
    r"""One vector (B, D) of each code: of its first token, or of its end where states see no later.

    GPT-2's last token has read the code, its first one itself alone. Where there are an encoder and
    a decoder, the decoder reads the source again, shifted to the right, and its last state at the
    source's last token, the end of sequence, is the vector:

    .. math:: v = h_{n-1}, \quad h = \mathrm{decoder}((s, x_0, \dots, x_{n-2}), \mathrm{encoder}(x))

    s is the configuration's `decoder_start_token_id`, and the last token itself where it has none,
    as PLBART has it. Texts are padded on the right.

    Source: https://github.com/salesforce/CodeT5
    """
    config: Any = encoder.config
    last, rows = mask.sum(1) - 1, torch.arange(len(ids), device=ids.device)
    if not config.is_encoder_decoder:
        states = forward(encoder, ids, mask, types).last_hidden_state  # (B, N, D)
        return states[rows, last] if config.model_type == "gpt2" else states[:, 0]
    start = getattr(config, "decoder_start_token_id", None)
    first = ids[rows, last] if start is None else torch.full_like(last, start)
    again = torch.cat([first[:, None], ids[:, :-1]], dim=1)
    decoder = {"decoder_input_ids": again, "decoder_attention_mask": mask, "use_cache": False}
    return forward(encoder, ids, mask, types, **decoder).last_hidden_state[rows, last]


class CodeClassifier(nn.Module):
    """A head on the vectors of one code or of several, which lie in consecutive rows of a batch.

    `codes` vectors (B codes, D) are laid side by side, (B, codes D). Rows at the end that make no
    whole sample are encoded and not judged: a monitor may cut a batch anywhere.
    """

    def __init__(self, encoder: Any, head: nn.Module, codes: int = 1) -> None:
        super().__init__()
        self.encoder_model, self.head, self.codes = encoder, head, codes
        self.config = encoder.config
        if hasattr(encoder, "pooler"):  # of RoBERTa, which no vector passes
            encoder.pooler = None

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Logits:
        """Logits (B, C) of ids, mask and types (B codes, N)."""
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        found = vectors(self.encoder_model, input_ids, attention_mask, types)
        whole = len(found) // self.codes * self.codes
        return Logits(self.head(found[:whole].reshape(-1, self.codes * found.shape[-1])))


class Defect(Classification):
    r"""Is a function faulty (1) or not (0)? Accuracy chooses the epoch; F1 is of the faulty.

    .. math:: p = \mathrm{softmax}(W v + b)

    with one vector v (D) a function, :func:`vectors`.

    Source: https://github.com/microsoft/CodeXGLUE, Code-Code/Defect-detection

    >>> Defect().metrics(Facts(2, 10, 8, 0)).keys()
    dict_keys(['accuracy', 'f1', 'matthews', 'loss'])
    """

    head = "encoder"

    def wrap(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Put the head around a backbone."""
        config: Any = model.config
        return CodeClassifier(model, nn.Linear(config.hidden_size, facts.num_labels))


class Clone(Classification):
    r"""Do two functions do the same (1) or not (0)? F1 chooses the epoch.

    .. math:: p = \mathrm{softmax}(W_2 \tanh(W_1 [v_1, v_2] + b_1) + b_2)

    with the vectors v (D) of both, :func:`vectors`, W1 (D, 2D) and W2 (2, D). A batch of B pairs
    has ids, mask and types (2B, N), the two functions of a pair in consecutive rows, and target
    (B,). CodeT5's head, GFSA's too, has no `dropout`; CodeXGLUE's own has 0.1 before each product.

    Source: https://github.com/microsoft/CodeXGLUE, Code-Code/Clone-detection-BigCloneBench

    >>> Clone().chosen_by
    'f1'
    """

    head = "encoder"

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__("f1")
        if not 0 <= dropout < 1:
            raise ValueError(f"model.task.dropout must be in [0, 1), got {dropout}")
        self.dropout = dropout

    def wrap(self, model: nn.Module, facts: Facts) -> nn.Module:
        """Put the head around a backbone."""
        config: Any = model.config
        width, drop = config.hidden_size, nn.Dropout(self.dropout)
        inner, outer = nn.Linear(2 * width, width), nn.Linear(width, facts.num_labels)
        return CodeClassifier(model, nn.Sequential(drop, inner, nn.Tanh(), drop, outer), codes=2)
