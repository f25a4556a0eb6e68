"""What a network costs is counted for every kind of data set, without its texts."""

from typing import Any

import pytest
from attention_nlp.data import BigCloneBench, Corpus, Devign, Glue, Pretraining
from attention_nlp.module import LanguageModule
from attention_nlp.tasks import (
    CausalLanguage,
    Classification,
    Clone,
    Defect,
    GenerateLabel,
    MaskedLanguage,
    Regression,
)
from experiment_kit.diagnostics.efficiency import count_macs

WIDTH, LENGTH, WORDS = 8, 11, 263
BERT = {"hidden_size": WIDTH, "num_attention_heads": 2, "num_hidden_layers": 1,
        "intermediate_size": 12}  # fmt: skip
GPT = {"n_layer": 1, "n_embd": WIDTH, "n_head": 2, "n_positions": 16}
T5 = {"num_layers": 1, "num_decoder_layers": 1, "d_model": WIDTH, "num_heads": 2, "d_kv": 4,
      "d_ff": 12}  # fmt: skip
BART = {"encoder_layers": 1, "decoder_layers": 1, "d_model": WIDTH, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12}  # fmt: skip
CRAMMED = {"num_layers": 1, "dim": WIDTH, "num_heads": 2, "ffn_dim": 12, "num_positions": 16}
NAMED = {"bert": BERT, "roberta": BERT, "gpt2": GPT, "t5": T5, "bart": BART, "crammed": CRAMMED}
KINDS = {
    "labels": (Glue, "cola", Classification),
    "number": (Glue, "stsb", Regression),
    "causal": (Corpus, "wikitext-2-v1", CausalLanguage),
    "defect": (Devign, "devign", Defect),
    "clone": (BigCloneBench, "bigclonebench", Clone),
    "generate": (Devign, "devign", GenerateLabel),
    "masked": (Pretraining, "python_docs", MaskedLanguage),
}


def measure_macs(kind: str, architecture: str) -> int:
    data_kind, name, task = KINDS[kind]
    extra: dict[str, Any] = {"label_words": ["no", "yes"]} if kind == "generate" else {}
    settings = {"architecture": architecture, "vocab_size": WORDS, "max_length": LENGTH} | extra
    data: Any = data_kind(name, **settings)
    info = [getattr(data, name) for name in data.LINKED_SIZES]
    options = NAMED[architecture]
    module = LanguageModule(*info, architecture=architecture, options=options, task=task())
    network, inputs = module.efficiency_network(), module.example_inputs(data, 3)
    assert len(inputs[0]) == 3
    assert network(*inputs).requires_grad
    return count_macs(network, module.example_inputs(data, 1))[0]


@pytest.mark.filterwarnings("ignore:.*starts from random weights")
@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("labels", "bert"), ("labels", "crammed"), ("labels", "gpt2"), ("labels", "bart"),
        ("number", "bert"), ("causal", "gpt2"), ("defect", "roberta"), ("defect", "bart"),
        ("defect", "t5"), ("clone", "roberta"), ("clone", "t5"), ("generate", "t5"),
        ("generate", "bart"), ("masked", "crammed"), ("masked", "bert"),
    ],
)  # fmt: skip
def test_every_kind_of_data_set_is_counted(kind: str, architecture: str) -> None:
    assert measure_macs(kind, architecture) > LENGTH * WIDTH**2


@pytest.mark.filterwarnings("ignore:.*starts from random weights")
def test_counts_are_those_of_a_hand() -> None:
    attention = 4 * LENGTH * WIDTH**2 + 2 * LENGTH**2 * WIDTH
    block = attention + LENGTH * WIDTH * 12 + LENGTH * 6 * WIDTH
    assert measure_macs("masked", "crammed") == block + LENGTH * WIDTH * WORDS
    block = attention + 2 * LENGTH * WIDTH * 12
    head = 2 * WIDTH * WIDTH + WIDTH * 2  # of both vectors
    assert measure_macs("clone", "roberta") == 2 * block + head
    block = 4 * LENGTH * WIDTH**2 + 2 * LENGTH**2 * WIDTH + 8 * LENGTH * WIDTH**2
    assert measure_macs("causal", "gpt2") == block + LENGTH * WIDTH * WORDS
