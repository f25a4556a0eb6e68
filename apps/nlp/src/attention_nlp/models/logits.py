"""A network as one function from token ids to logits, to count its operations and its speed."""

from typing import Any

import torch
from torch import Tensor, nn

from attention_nlp.tasks.code import CodeClassifier


class LogitsModel(nn.Module):
    """Compute logits from ids (B, N), or (B, functions, N), without padding.

    A head for masked words decodes all of them, and a decoder that generates a label its first
    token.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Compute the logits."""
        model: Any = self.model
        ids = ids.flatten(0, -2)  # (B functions, N)
        if isinstance(model, CodeClassifier):
            vectors = _encode_last(model.encoder_model, ids)
            return model.head(vectors.reshape(-1, model.num_functions * vectors.shape[-1]))
        config = getattr(model, "config", None)
        if not getattr(config, "is_encoder_decoder", False):
            is_causal = getattr(config, "model_type", "") == "gpt2"
            return model(
                input_ids=ids, attention_mask=_causal_mask(ids) if is_causal else None
            ).logits
        if hasattr(model, "classification_head"):
            return model.classification_head(_encode_last(model.base_model, ids))
        return model(input_ids=ids, **_decoder_inputs(ids[:, :1])).logits


def _encode_last(encoder: Any, ids: Tensor) -> Tensor:
    # a decoder reads the source again
    inputs = _decoder_inputs(ids) if encoder.config.is_encoder_decoder else {}
    return encoder(input_ids=ids, **inputs).last_hidden_state[:, -1]


def _decoder_inputs(ids: Tensor) -> dict[str, Any]:
    mask = _causal_mask(ids)
    return {"decoder_input_ids": ids, "decoder_attention_mask": mask, "use_cache": False}


def _causal_mask(ids: Tensor) -> Tensor:
    # (B, 1, N, N): transformers reads the values of a mask (B, N), which device "meta" has not
    size = ids.shape[1]
    return torch.ones_like(ids).bool()[:, None, None].expand(-1, 1, size, -1).tril()
