"""Weights fill the whole network below its head, or are refused; and heads fit their network."""

from pathlib import Path

import pytest
import torch
from attention_core import GFSA, attach
from attention_nlp.models.backbones import HEADS, TRANSFORMERS, build_backbone
from attention_nlp.module import LanguageModule
from attention_nlp.tasks import CausalLanguage, Classification, GenerateLabel, Regression
from attention_nlp.tasks.code import encode_functions
from experiment_kit.data import download as hub
from experiment_kit.errors import UserError
from safetensors.torch import load_file, save_file

from tests.apps.nlp.small import INFO, SLOTS, TINY

MADE = {
    "labels": [*TRANSFORMERS],
    "causal": ["bert", "roberta", "gpt2", "bart", "plbart"],
    "masked": ["bert", "roberta", "albert", "bart"],
    "seq2seq": ["bart", "plbart", "t5"],
    "encoder": [*TRANSFORMERS],
}
PAIRS = [(name, head) for head in HEADS for name in TRANSFORMERS]


def build_tiny(architecture: str, head: str = "labels", slots=SLOTS):
    return build_backbone(architecture, None, head, TINY[architecture], INFO, slots)


@pytest.mark.parametrize(("architecture", "head"), PAIRS)
def test_a_folder_fills_every_network_that_it_can(architecture: str, head: str, tmp_path) -> None:
    base = build_tiny(architecture, "encoder")
    base.save_pretrained(tmp_path)
    if architecture not in MADE[head]:
        with pytest.raises(UserError, match=rf"{architecture} has no head of kind '{head}'"):
            build_backbone(architecture, str(tmp_path), head, None, INFO, SLOTS)
        return
    if head == "causal" and "bart" in architecture:  # whose file names the embedding it shares
        with pytest.raises(UserError, match=r"lacks 1 weights .* model\.decoder\.embed_tokens"):
            build_backbone(architecture, str(tmp_path), head, None, INFO, SLOTS)
        return
    model = build_backbone(architecture, str(tmp_path), head, None, INFO, SLOTS | {"filter": GFSA})
    assert all(part.training for part in model.modules())  # with dropout
    found = model.state_dict()
    for name, weight in base.state_dict().items():
        if "pooler" not in name:  # language models have none
            (same,) = {key for key in found if key == name or key.endswith(f".{name}")}
            assert torch.equal(found[same], weight), name


def rename_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    save_file({f"other.{k}": v for k, v in load_file(file).items()}, file, {"format": "pt"})


@pytest.mark.parametrize(("change", "options", "sentence"), [
    (None, {"num_hidden_layers": 3}, r"lacks \d+ weights of the network .* such as bert\."),
    (None, {"hidden_size": 12}, r"lacks \d+ weights of the network .* such as bert\."),
    (rename_weights, {}, "weights of the network"),
    (lambda folder: attach(build_tiny("bert"), GFSA).save_pretrained(folder), {},
     "was saved with filters or tokens, which would be lost"),
])  # fmt: skip
def test_weights_of_another_network_are_refused(change, options, sentence, tmp_path) -> None:
    build_tiny("bert").save_pretrained(tmp_path)
    if change:
        change(tmp_path)
    with pytest.raises(UserError, match=sentence):
        build_backbone("bert", str(tmp_path), "labels", options, INFO, SLOTS)


def test_a_head_for_other_labels_is_made_anew_but_not_tokens(tmp_path) -> None:
    other = INFO._replace(num_labels=INFO.num_labels + 1)
    build_backbone("bert", None, "labels", TINY["bert"], other, SLOTS).save_pretrained(tmp_path)
    model = build_backbone("bert", str(tmp_path), "labels", None, INFO, SLOTS)
    assert model.classifier.out_features == INFO.num_labels
    with pytest.raises(UserError, match=r"tokenizer has 54 tokens, and model.weights 53: give"):
        build_backbone("bert", str(tmp_path), "labels", None, INFO._replace(vocab_size=54), SLOTS)


@pytest.mark.parametrize(("head", "warned"), [("masked", True), ("labels", False)])
def test_a_language_model_says_that_its_head_is_random(head, warned, tmp_path, recwarn) -> None:
    build_tiny("bert", "encoder").save_pretrained(tmp_path)
    recwarn.clear()
    build_backbone("bert", str(tmp_path), head, None, INFO, SLOTS)
    reason = "has no cls.predictions.bias: the head of the language model is random"
    found = [str(w.message) for w in recwarn if "the head of the lang" in str(w.message)]
    assert found == [f"model.weights {tmp_path} {reason}"] * warned


@pytest.mark.parametrize(
    ("task", "labels", "said"),
    [(Regression, 2, "2"), (Classification, 1, "no"), (CausalLanguage, 2, "2"),
     (GenerateLabel, 3, "3")],
)  # fmt: skip
def test_a_task_for_other_data_is_refused(task, labels: int, said: str) -> None:
    sentence = f"model.task {task.__name__} does not fit this data, which has {said} labels"
    with pytest.raises(ValueError, match=sentence):
        LanguageModule(labels, 53, 32, 1, options=TINY["bert"], task=task())


@pytest.mark.parametrize("architecture", MADE["causal"])
@pytest.mark.parametrize("filter", [SLOTS["filter"], GFSA], ids=["plain", "gfsa"])
def test_a_causal_language_model_does_not_see_what_it_guesses(architecture, filter) -> None:
    model = build_tiny(architecture, "causal", SLOTS | {"filter": filter}).eval().double()
    ids = torch.randint(3, 53, (2, 9))
    other = ids.clone()
    other[:, 4:] = torch.randint(3, 53, (2, 5))
    a, b = (model(input_ids=x, attention_mask=torch.ones_like(ids)).logits for x in (ids, other))
    assert torch.allclose(a[:, :4], b[:, :4], atol=1e-10)
    assert not torch.allclose(a[:, 4:], b[:, 4:], atol=1e-3)


def test_the_vector_of_a_causal_network_has_read_the_code() -> None:
    network = build_tiny("gpt2", "encoder").eval()
    ids = torch.randint(3, 53, (2, 6))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    before = encode_functions(network, ids, mask, torch.zeros_like(ids))
    for place, changed in ((3, [True, True]), (5, [True, False])):
        other = ids.clone()
        other[:, place] = 1 + ids[:, place] % 50
        after = encode_functions(network, other, mask, torch.zeros_like(ids))
        assert [not torch.allclose(*pair) for pair in zip(after, before, strict=True)] == changed


@pytest.mark.parametrize(("options", "sentence"), [
    ({"n_layer": 1}, "has no n_layer, or the data "),
    ({"vocab_size": 9}, "has no vocab_size, or the data "),
    ({"num_hidden_layers": "two"}, "options of bert: .*num_hidden_layers"),
])  # fmt: skip
def test_an_option_that_the_network_cannot_have_is_named(options: dict, sentence: str) -> None:
    with pytest.raises((UserError, ValueError), match=sentence):
        build_backbone("bert", None, "labels", options, INFO, SLOTS)


def test_minilm_starts_from_its_own_weights(tmp_path) -> None:
    pytest.importorskip(hub.WEIGHT_PACKAGES["minilm"])
    info = INFO._replace(vocab_size=30522, max_length=128, pad_token_id=0)
    model = build_backbone("bert", "minilm", "labels", None, info, SLOTS)
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (6, 384)
    assert model.bert.embeddings.word_embeddings.weight.std() > 0.03
    with pytest.raises(UserError, match=r"is of architecture bert, but model.architecture is"):
        build_backbone("roberta", "minilm", "labels", None, info, SLOTS)
