"""Training a language model of transcripts."""

import torch
from attention_speech.audio import Utterance
from attention_speech.data import SpeechData
from attention_speech.language import APP, LanguageModel, Transcripts
from attention_speech.models.lm import LanguageModelConfig, load_language_model
from attention_speech.tokenizer import Tokenizer
from experiment_kit.cli import AppCLI

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
    config = LanguageModelConfig(dim=16, num_heads=2, num_layers=1, ffn_dim=16)
    optimizer = lambda p: torch.optim.AdamW(p, lr=0.02)  # noqa: E731
    tokenizer = Tokenizer(tokenizer_file)
    model = LanguageModel(tokenizer.vocab_size, tokenizer_file, network=config, optimizer=optimizer)
    data = Transcripts(SilentSpeech(tokenizer_file), batch_size=2)
    trainer = make_trainer(tmp_path, max_epochs=30, limit_val_batches=0, callbacks=[])
    trainer.fit(model, datamodule=data)
    (metrics,) = trainer.test(model, datamodule=data, verbose=False)
    assert metrics["test/perplexity"] < 2.5  # of 13 tokens
    loaded = load_language_model(tmp_path / "language_model.pt", tokenizer)
    ids = torch.tensor([[1, *tokenizer.encode("ONE")]])
    torch.testing.assert_close(loaded(ids), model.eval().network(ids))


def test_the_shipped_config_parses() -> None:
    fit = AppCLI(APP, ["fit", "-c", "apps/speech/configs/language.yaml"]).config.fit
    assert fit.model.network.num_layers == 2
    assert fit.data.init_args.speech.init_args.dataset_name == "synthetic"
