"""Each step of a BERT layer is found, and padding does not count."""

import pytest
import torch
from attention_core import spectral
from transformers import BertConfig, BertModel

from benchmarks.evidence import minilm


class Tokenizer:
    """Words as numbers, padded with zeros."""

    def __call__(self, sentences, padding, return_tensors):
        lengths = [len(sentence.split()) for sentence in sentences]
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        return {"input_ids": torch.ones_like(mask).long(), "attention_mask": mask.long()}


@pytest.fixture
def tiny_bert(monkeypatch):
    torch.manual_seed(0)
    config = BertConfig(vocab_size=9, hidden_size=6, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=7)  # fmt: skip
    model = BertModel(config, add_pooling_layer=False)
    monkeypatch.setattr(minilm, "resolve_weights", lambda name: name)
    monkeypatch.setattr(minilm.AutoModel, "from_pretrained", lambda *_, **__: model)
    monkeypatch.setattr(minilm.AutoTokenizer, "from_pretrained", lambda _: Tokenizer())
    return model


def test_every_step_of_every_layer_is_measured(tiny_bert):
    rows = minilm.measure_layers(seed=None, num_sentences=2)
    assert [(row["depth"], row["step"]) for row in rows] == [
        (0, "input"), *((depth, step) for depth in (1, 2) for step in minilm.STEPS)
    ]  # fmt: skip
    batch = Tokenizer()(minilm.load_sentences(2), True, "pt")
    last = tiny_bert(**batch).last_hidden_state.double()
    expected = spectral.hfc_lfc(last, batch["attention_mask"].bool()).mean().item()
    assert rows[-1]["hfc_lfc"] == pytest.approx(expected, rel=1e-5)
    assert rows[0]["smoothing_share"] is None
    assert 0 <= rows[-1]["smoothing_share"] <= 1
    assert not tiny_bert.encoder.layer[0].output._forward_hooks


def test_random_weights_have_a_seed(tiny_bert):
    first, second, other = (minilm.measure_layers(seed, 2) for seed in (1, 1, 2))
    assert first == second != other
    assert {row["weights"] for row in first} == {"random"}
