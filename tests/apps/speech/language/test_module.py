"""Training a language model of transcripts, and its file."""

import pytest
import torch
from attention_speech.audio import Utterance
from attention_speech.data import SpeechData
from attention_speech.language import APP, LanguageModel, Transcripts
from attention_speech.models import lm
from attention_speech.tokenizer import Tokenizer, train_tokenizer
from experiment_kit.app_cli import AppCLI
from experiment_kit.errors import UserError

from tests.apps.speech.corpora import train_as_speechbrain
from tests.apps.speech.recognizers import TEXTS, Utterances, make_module, make_trainer


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
    assert metrics["test/perplexity"] < 2.5  # over 13 tokens
    loaded = lm.load_language_model(tmp_path / "language_model.pt", tokenizer)
    ids = torch.tensor([[1, *tokenizer.encode("ONE")]])
    torch.testing.assert_close(loaded(ids), model.eval().network(ids))


@pytest.mark.parametrize(("name", "layers", "data"), [
    ("language", 2, "synthetic"), ("language_librispeech", 12, "librispeech_960h"),
])  # fmt: skip
def test_the_shipped_configs_parse(name, layers, data) -> None:
    fit = AppCLI(APP, ["fit", "-c", name]).config.fit
    assert fit.model.network.num_layers == layers
    assert fit.data.init_args.speech.init_args.dataset_name == data


@pytest.mark.parametrize("prefix", ["", "module."])
def test_the_weights_of_speechbrain_are_loaded_with_its_tokenizer_alone(prefix, tmp_path) -> None:
    tokenizer = Tokenizer(train_as_speechbrain(tmp_path))
    config = lm.LanguageModelConfig(dim=128, num_heads=2, num_layers=2, ffn_dim=24)
    model = lm.build_language_model(config, tokenizer.vocab_size).eval()
    weights = {f"{prefix}{name}": value for name, value in model.state_dict().items()}
    weights[f"{prefix}positional_encoding.pe"] = torch.zeros(1, 9, 128)  # another version's
    path = tmp_path / "lm.ckpt"
    torch.save(weights, path)
    drawn = torch.get_rng_state()
    loaded = lm.load_language_model(path, tokenizer)
    assert torch.equal(torch.get_rng_state(), drawn)
    ids = torch.tensor([[1, *tokenizer.encode("ONE TWO NINE")]])
    torch.testing.assert_close(loaded(ids), model(ids))
    other = Tokenizer(train_tokenizer(["ABCD"], 20, "char", tmp_path))
    with pytest.raises(UserError, match=r"pieces, which is not .*: pass speechbrain's tokenizer"):
        lm.load_language_model(path, other)
    del weights[f"{prefix}output_proj.layers.2.w.bias"]
    torch.save(weights, path)
    with pytest.raises(UserError, match=r"does not fit: .*output_proj.layers.2.w.bias"):
        lm.load_language_model(path, tokenizer)


def test_a_model_of_another_vocabulary_is_refused_before_training(tokenizer_file, tmp_path) -> None:
    config = lm.LanguageModelConfig(dim=8, num_heads=2, num_layers=1, ffn_dim=8)
    other = Tokenizer(train_tokenizer(["ABCE"], 20, "char", tmp_path))
    content = lm.pack_language_model(lm.build_language_model(config, 9), config, other)
    torch.save(content, tmp_path / "lm.pt")
    module = make_module(tokenizer_file, language_model=str(tmp_path / "lm.pt"))
    with pytest.raises(UserError, match="train both on the same data"):
        make_trainer(tmp_path, max_epochs=1).fit(module, datamodule=Utterances(tokenizer_file))
