"""Training a language model of transcripts, and its file."""

import pytest
import torch
from attention_speech.audio import Utterance
from attention_speech.data import SpeechData
from attention_speech.language import APP, LanguageModel, Transcripts
from attention_speech.models import lm
from attention_speech.tokenizer import Tokenizer, train_tokenizer
from experiment_kit.cli import AppCLI
from experiment_kit.errors import UserError

from tests.apps.speech.recognizers import TEXTS, make_trainer


class SilentSpeech(SpeechData):
    """The texts in all splits, without audio."""

    DATASETS = ("silent",)

    def __init__(self, tokenizer_file: str) -> None:
        super().__init__("silent", token_type="char", num_tokens=40)
        self.tokenizer_file = tokenizer_file

    def read_utterances(self) -> dict[str, list[Utterance]]:
        utterances = [Utterance(text, ("",), 1.0, text, "me") for text in TEXTS]
        return {split: list(utterances) for split in ("train", "val", "test")}


def test_a_language_model_learns_the_transcripts(tokenizer_file, tmp_path) -> None:
    config = lm.LanguageModelConfig(dim=16, num_heads=2, num_layers=1, ffn_dim=16)
    optimizer = lambda p: torch.optim.AdamW(p, lr=0.02)  # noqa: E731
    tokenizer = Tokenizer(tokenizer_file)
    model = LanguageModel(tokenizer.vocab_size, tokenizer_file, network=config, optimizer=optimizer)
    data = Transcripts(SilentSpeech(tokenizer_file), batch_size=2)
    trainer = make_trainer(tmp_path, max_epochs=30, limit_val_batches=0, callbacks=[])
    trainer.fit(model, datamodule=data)
    (metrics,) = trainer.test(model, datamodule=data, verbose=False)
    assert metrics["test/perplexity"] < 2.5  # of 13 tokens
    loaded = lm.load_language_model(tmp_path / "language_model.pt", tokenizer)
    ids = torch.tensor([[1, *tokenizer.encode("ONE")]])
    torch.testing.assert_close(loaded(ids), model.eval().network(ids))


def test_the_shipped_config_parses() -> None:
    fit = AppCLI(APP, ["fit", "-c", "apps/speech/configs/language.yaml"]).config.fit
    assert fit.model.network.num_layers == 2
    assert fit.data.init_args.speech.init_args.dataset_name == "synthetic"


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
