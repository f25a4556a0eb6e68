"""`python -m attention_nlp.efficiency`: what the model of a config costs, without texts."""

from typing import Any

import torch
from experiment_kit.efficiency import Parts, main
from torch import Tensor, nn

from attention_nlp.__main__ import APP
from attention_nlp.data import LanguageData
from attention_nlp.module import LanguageModule
from attention_nlp.tasks.code import CodeClassifier


class Answering(nn.Module):
    """A network as one function of token ids (B, N), or (B, codes, N), that are not padded.

    A head on masked words decodes all of them, and a decoder that writes a label writes its first
    token.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """The logits."""
        model: Any = self.model
        ids = ids.flatten(0, -2)
        if isinstance(model, CodeClassifier):
            vectors = _last(model.encoder_model, ids)
            return model.head(vectors.reshape(-1, model.codes * vectors.shape[-1]))
        config = getattr(model, "config", None)
        if not getattr(config, "is_encoder_decoder", False):
            causal = getattr(config, "model_type", "") == "gpt2"
            return model(input_ids=ids, attention_mask=_before(ids) if causal else None).logits
        if hasattr(model, "classification_head"):
            return model.classification_head(_last(model.base_model, ids))
        return model(input_ids=ids, **_decoder(ids[:, :1])).logits


def _last(encoder: Any, ids: Tensor) -> Tensor:
    # a decoder reads the source again
    again = _decoder(ids) if encoder.config.is_encoder_decoder else {}
    return encoder(input_ids=ids, **again).last_hidden_state[:, -1]


def _decoder(ids: Tensor) -> dict[str, Any]:
    mask = _before(ids)
    return {"decoder_input_ids": ids, "decoder_attention_mask": mask, "use_cache": False}


def _before(ids: Tensor) -> Tensor:
    # (B, 1, N, N): of a mask (B, N) transformers looks at the values, which "meta" has not
    size = ids.shape[1]
    return torch.ones_like(ids).bool()[:, None, None].expand(-1, 1, size, -1).tril()


def parts(module: LanguageModule, data: LanguageData) -> Parts:
    """The network of a module, and texts of the greatest length."""
    high, codes = data.vocab_size, getattr(module.model, "codes", 1)
    shape = (data.max_length,) if codes == 1 else (codes, data.max_length)
    return Answering(module.model), lambda b: (torch.randint(high, (b, *shape)),)


if __name__ == "__main__":
    main(APP, parts)
