"""Files of language models."""

import pytest
import torch
from attention_speech.models import lm
from attention_speech.tokenizer import Tokenizer, train_tokenizer
from experiment_kit.errors import UserError


def test_a_file_is_loaded_with_its_own_tokenizer_alone(tmp_path) -> None:
    config = lm.LanguageModelConfig(dim=8, num_heads=2, num_layers=1, ffn_dim=8)
    tokenizer = Tokenizer(train_tokenizer(["ABCD"], 20, "char", tmp_path))
    model = lm.build_language_model(config, tokenizer.vocab_size).eval()
    path = tmp_path / "language.pt"
    torch.save(lm.pack_language_model(model, config, tokenizer), path)
    ids = torch.tensor([[1, 5, 6]])
    torch.testing.assert_close(lm.load_language_model(path, tokenizer)(ids), model(ids))
    other = Tokenizer(train_tokenizer(["ABCE"], 20, "char", tmp_path))
    with pytest.raises(UserError, match="vocabulary of 9 pieces, which is not the recognizer's"):
        lm.load_language_model(path, other)
    path.write_text("text")
    with pytest.raises(UserError, match="no language model"):
        lm.load_language_model(path, tokenizer)
