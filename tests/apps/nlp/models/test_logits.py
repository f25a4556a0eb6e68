"""What a network costs is counted for every kind of data set, without its texts."""

from typing import Any

import pytest
from attention_nlp import tasks
from attention_nlp.data import BigCloneBench, Corpus, Devign, Glue, Pretraining
from attention_nlp.module import LanguageModule
from experiment_kit.training.efficiency import count_macs

from tests.apps.nlp.small import CRAMMED, TINY

pytestmark = pytest.mark.filterwarnings("ignore:.*starts from random weights")
LENGTH, WORDS = 11, 263
KINDS = {
    "labels": (Glue, "cola", tasks.Classification),
    "number": (Glue, "stsb", tasks.Regression),
    "causal": (Corpus, "wikitext-2-v1", tasks.CausalLanguage),
    "defect": (Devign, "devign", tasks.Defect),
    "clone": (BigCloneBench, "bigclonebench", tasks.Clone),
    "generate": (Devign, "devign", tasks.GenerateLabel),
    "masked": (Pretraining, "python_docs", tasks.MaskedLanguage),
}


def measure_macs(kind: str, architecture: str) -> int:
    data_kind, name, task = KINDS[kind]
    extra: dict[str, Any] = {"label_words": ["no", "yes"]} if kind == "generate" else {}
    settings = {"architecture": architecture, "vocab_size": WORDS, "max_length": LENGTH} | extra
    data: Any = data_kind(name, **settings)
    info = [getattr(data, name) for name in data.LINKED_SIZES]
    options = (TINY | {"crammed": CRAMMED})[architecture]
    module = LanguageModule(*info, architecture=architecture, options=options, task=task())
    network, inputs = module.efficiency_network(), module.example_inputs(data, 3)
    assert len(inputs[0]) == 3
    assert network(*inputs).requires_grad
    return count_macs(network, module.example_inputs(data, 1))


@pytest.mark.parametrize(("kind", "architecture"), [
    ("labels", "bert"), ("labels", "crammed"), ("labels", "gpt2"), ("labels", "bart"),
    ("number", "bert"), ("causal", "gpt2"), ("defect", "roberta"), ("defect", "bart"),
    ("defect", "t5"), ("clone", "roberta"), ("clone", "t5"), ("generate", "t5"),
    ("generate", "bart"), ("masked", "crammed"), ("masked", "bert"),
])  # fmt: skip
def test_every_kind_of_data_set_is_counted(kind: str, architecture: str) -> None:
    assert measure_macs(kind, architecture) > LENGTH * 12**2


def test_counts_are_those_of_a_hand() -> None:
    def attention(dim: int) -> int:
        return 4 * LENGTH * dim**2 + 2 * LENGTH**2 * dim

    block = attention(12) + LENGTH * 12 * 10 + LENGTH * 5 * 12
    assert measure_macs("masked", "crammed") == 3 * block + LENGTH * 12 * WORDS
    block = attention(24) + 2 * LENGTH * 24 * 3072
    head = 2 * 24 * 24 + 24 * 2  # both vectors
    assert measure_macs("clone", "roberta") == 2 * 2 * block + head
    block = attention(24) + 8 * LENGTH * 24**2
    assert measure_macs("causal", "gpt2") == 2 * block + LENGTH * 24 * WORDS
