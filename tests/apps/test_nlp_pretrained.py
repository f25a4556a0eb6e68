"""Weights fill the whole network below its head, or are refused; and heads fit their network."""

import json
from pathlib import Path

import pytest
import torch
from attention_core import GFSA, attach
from attention_nlp.backbones import HEADS, PARTS, build
from attention_nlp.module import LanguageModule
from attention_nlp.tasks import CausalLanguage, Classification, Regression
from attention_nlp.tasks.code import vectors
from experiment_kit.errors import UserError
from safetensors.torch import load_file, save_file

from tests.apps.test_nlp import FACTS, SLOTS, TINY

MADE = {
    "labels": [*PARTS],
    "causal": ["bert", "roberta", "gpt2", "bart", "plbart"],
    "masked": ["bert", "roberta", "albert", "bart"],
    "seq2seq": ["bart", "plbart", "t5"],
    "encoder": [*PARTS],
}
PAIRS = [(name, head) for head in HEADS for name in PARTS]


@pytest.mark.parametrize(("architecture", "head"), PAIRS)
def test_a_folder_fills_every_network_that_it_can(architecture: str, head: str, tmp_path) -> None:
    base = build(architecture, None, "encoder", TINY[architecture], FACTS, SLOTS)
    base.save_pretrained(tmp_path)
    if architecture not in MADE[head]:
        with pytest.raises(UserError, match=rf"{architecture} has no head of the kind '{head}'"):
            build(architecture, str(tmp_path), head, None, FACTS, SLOTS)
        return
    if head == "causal" and "bart" in architecture:  # whose file names the embedding it shares
        with pytest.raises(UserError, match=r"lacks 1 weights .* model\.decoder\.embed_tokens"):
            build(architecture, str(tmp_path), head, None, FACTS, SLOTS)
        return
    model = build(architecture, str(tmp_path), head, None, FACTS, SLOTS)
    found = {name: weight for name, weight in model.state_dict().items()}
    for name, weight in base.state_dict().items():
        if "pooler" not in name:  # language models have none
            (same,) = {key for key in found if key == name or key.endswith(f".{name}")}
            assert torch.equal(found[same], weight), name


@pytest.mark.parametrize(
    "options",
    [{"num_hidden_layers": 3}, {"hidden_size": 12}, {"intermediate_size": 31}],
    ids=lambda options: next(iter(options)),
)
def test_weights_of_a_smaller_or_another_network_are_refused(options: dict, tmp_path) -> None:
    build("bert", None, "labels", TINY["bert"], FACTS, SLOTS).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"lacks \d+ weights of the network .* such as bert\."):
        build("bert", str(tmp_path), "labels", options, FACTS, SLOTS)


def test_weights_under_other_names_are_refused(tmp_path) -> None:
    build("bert", None, "labels", TINY["bert"], FACTS, SLOTS).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({f"other.{k}": v for k, v in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(UserError, match="weights of the network"):
        build("bert", str(tmp_path), "labels", None, FACTS, SLOTS)


def test_a_head_for_other_labels_is_made_anew(tmp_path) -> None:
    other = FACTS._replace(num_labels=FACTS.num_labels + 1)
    build("bert", None, "labels", TINY["bert"], other, SLOTS).save_pretrained(tmp_path)
    model = build("bert", str(tmp_path), "labels", None, FACTS, SLOTS)
    assert model.classifier.out_features == FACTS.num_labels


@pytest.mark.parametrize(("head", "warned"), [("masked", True), ("labels", False)])
def test_a_language_model_says_that_its_head_is_random(head, warned, tmp_path, recwarn) -> None:
    build("bert", None, "encoder", TINY["bert"], FACTS, SLOTS).save_pretrained(tmp_path)
    recwarn.clear()
    build("bert", str(tmp_path), head, None, FACTS, SLOTS)
    assert [str(w.message) for w in recwarn if "the head of the lang" in str(w.message)] == [
        f"model.weights {tmp_path} has no cls.predictions.bias: "
        "the head of the language model is random"
    ] * warned


def test_filters_in_a_folder_are_not_dropped_unseen(tmp_path) -> None:
    model = build("bert", None, "labels", TINY["bert"], FACTS, SLOTS)
    attach(model, GFSA).save_pretrained(tmp_path)
    assert "attention_core" in json.loads(Path(tmp_path, "config.json").read_text())
    with pytest.raises(UserError, match="was saved with filters or tokens, which would be lost"):
        build("bert", str(tmp_path), "labels", None, FACTS, SLOTS)


def test_an_option_of_the_wrong_kind_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"options of bert: .*'num_hidden_layers' expected int"):
        build("bert", None, "labels", {"num_hidden_layers": "two"}, FACTS, SLOTS)


@pytest.mark.parametrize(
    ("task", "labels", "said"),
    [(Regression, 2, "2"), (Classification, 1, "no"), (CausalLanguage, 2, "2")],
)
def test_a_task_for_other_data_is_refused(task, labels: int, said: str) -> None:
    sentence = f"model.task {task.__name__} is not for this data, which has {said} labels"
    with pytest.raises(ValueError, match=sentence):
        LanguageModule(labels, 53, 32, 1, options=TINY["bert"], task=task())


@pytest.mark.parametrize("architecture", MADE["causal"])
@pytest.mark.parametrize("filter", [SLOTS["filter"], GFSA], ids=["plain", "gfsa"])
def test_a_causal_language_model_does_not_see_what_it_guesses(architecture, filter) -> None:
    slots = SLOTS | {"filter": filter}
    model = build(architecture, None, "causal", TINY[architecture], FACTS, slots).eval().double()
    ids = torch.randint(3, 53, (2, 9))
    other = ids.clone()
    other[:, 4:] = torch.randint(3, 53, (2, 5))
    mask = torch.ones_like(ids)
    a, b = (model(input_ids=x, attention_mask=mask).logits for x in (ids, other))
    assert torch.allclose(a[:, :4], b[:, :4], atol=1e-10)
    assert not torch.allclose(a[:, 4:], b[:, 4:], atol=1e-3)


def test_the_vector_of_a_causal_network_has_read_the_code() -> None:
    network = build("gpt2", None, "encoder", TINY["gpt2"], FACTS, SLOTS).eval()
    ids = torch.randint(3, 53, (2, 6))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    before = vectors(network, ids, mask, torch.zeros_like(ids))
    for place, changed in ((3, [True, True]), (5, [True, False])):
        other = ids.clone()
        other[:, place] = 1 + ids[:, place] % 50
        after = vectors(network, other, mask, torch.zeros_like(ids))
        assert [not torch.allclose(*pair) for pair in zip(after, before, strict=True)] == changed
