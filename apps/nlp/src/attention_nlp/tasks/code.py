"""Classify functions of source code, alone or in pairs, as the scripts of CodeT5 do."""

from typing import Any

import torch
from torch import Tensor, nn

from attention_nlp.tasks.base import Output, TextInfo, call_backbone
from attention_nlp.tasks.labels import Classification


def encode_functions(encoder: nn.Module, ids: Tensor, valid_mask: Tensor, types: Tensor) -> Tensor:
    r"""Encode each function as one vector (B, D): the state of its first or its last token.

    GPT-2's first token sees only itself, so its last state is the vector. An encoder-decoder reads
    the source again in its decoder, shifted to the right, and the decoder's last state, at the end
    of sequence, is the vector:

    .. math:: v = h_{n-1}, \quad h = \mathrm{decoder}((s, x_0, \dots, x_{n-2}), \mathrm{encoder}(x))

    s is the configuration's `decoder_start_token_id`, or the last token if it has none, as in
    PLBART. Texts are padded on the right.

    Source: https://github.com/salesforce/CodeT5
    """
    config: Any = encoder.config
    last, rows = valid_mask.sum(1) - 1, torch.arange(len(ids), device=ids.device)
    if not config.is_encoder_decoder:
        states = call_backbone(encoder, ids, valid_mask, types).last_hidden_state  # (B, N, D)
        return states[rows, last] if config.model_type == "gpt2" else states[:, 0]
    start = getattr(config, "decoder_start_token_id", None)
    first = ids[rows, last] if start is None else torch.full_like(last, start)
    decoder = {
        "decoder_input_ids": torch.cat([first[:, None], ids[:, :-1]], dim=1),
        "decoder_attention_mask": valid_mask,
        "use_cache": False,
    }
    output = call_backbone(encoder, ids, valid_mask, types, **decoder)
    return output.last_hidden_state[rows, last]


class CodeClassifier(nn.Module):
    """A head on the vectors of `num_functions` functions, in consecutive rows of a batch.

    The vectors (B num_functions, D) are concatenated to (B, num_functions D). Rows at the end that
    make no whole sample are encoded and not classified: the monitor may cut a batch anywhere.
    """

    def __init__(self, encoder: Any, head: nn.Module, num_functions: int = 1) -> None:
        super().__init__()
        self.encoder_model, self.head, self.num_functions = encoder, head, num_functions
        self.config = encoder.config
        if hasattr(encoder, "pooler"):  # RoBERTa's, which is not used
            encoder.pooler = None

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Output:
        """Compute logits (B, C) from ids, mask and types (B num_functions, N)."""
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        vectors = encode_functions(self.encoder_model, input_ids, attention_mask, types)
        whole = len(vectors) // self.num_functions * self.num_functions
        samples = vectors[:whole].reshape(-1, self.num_functions * vectors.shape[-1])
        return Output(self.head(samples))


class Defect(Classification):
    r"""Predict if a function is faulty (1) or not (0); accuracy selects the epoch.

    .. math:: p = \mathrm{softmax}(W v + b)

    with the vector v (D) of :func:`encode_functions`. F1 is of the faulty functions.

    Source: https://github.com/microsoft/CodeXGLUE, Code-Code/Defect-detection
    """

    head = "encoder"

    def wrap_backbone(self, backbone: nn.Module, info: TextInfo) -> nn.Module:
        """Add the linear head."""
        config: Any = backbone.config
        return CodeClassifier(backbone, nn.Linear(config.hidden_size, info.num_labels))


class Clone(Classification):
    r"""Predict if two functions do the same (1) or not (0); F1 selects the epoch.

    .. math:: p = \mathrm{softmax}(W_2 \tanh(W_1 [v_1, v_2] + b_1) + b_2)

    with the vectors v (D) of :func:`encode_functions`, W1 (D, 2D) and W2 (2, D). A batch of B pairs
    has ids, mask and types (2B, N), the two functions of a pair in consecutive rows, and target
    (B,). The head of CodeT5 and GFSA has no `dropout`; CodeXGLUE's has 0.1 before each product.

    Source: https://github.com/microsoft/CodeXGLUE, Code-Code/Clone-detection-BigCloneBench
    """

    head = "encoder"

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__("f1")
        if not 0 <= dropout < 1:
            raise ValueError(f"model.task.dropout must be in [0, 1), got {dropout}")
        self.dropout = dropout

    def wrap_backbone(self, backbone: nn.Module, info: TextInfo) -> nn.Module:
        """Add the head of two layers."""
        config: Any = backbone.config
        dim, dropout = config.hidden_size, nn.Dropout(self.dropout)
        inner, outer = nn.Linear(2 * dim, dim), nn.Linear(dim, info.num_labels)
        head = nn.Sequential(dropout, inner, nn.Tanh(), dropout, outer)
        return CodeClassifier(backbone, head, num_functions=2)
