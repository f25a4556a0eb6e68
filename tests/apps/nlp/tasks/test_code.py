"""Defects, clones and labels that are generated as words: against the equations, and learned."""

import pytest
import torch
import torch.nn.functional as F
from attention_nlp.tasks.base import TextInfo
from attention_nlp.tasks.code import Clone, Defect, GenerateLabel
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from tests.apps.nlp.small import TINY

INFO = TextInfo(num_labels=2, vocab_size=19, max_length=13, pad_token_id=1, eos_token_id=2)
LENGTHS = (7, 4, 11, 5)
WORDS = torch.tensor([[0, 7, 2], [8, 2, -100]])  # "false" and "true", of 3 and 2 tokens


def make_config(architecture: str):
    special = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    special |= {"decoder_start_token_id": 1} if architecture == "t5" else {}
    return AutoConfig.for_model(architecture, vocab_size=19, **special, **TINY[architecture])


def batch(count: int = 4):
    """Texts <s> ... </s>, padded on the right."""
    texts = [torch.randint(5, 19, (length,)) for length in LENGTHS[:count]]
    for text in texts:
        text[0], text[-1] = 0, 2
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=1)
    mask = torch.arange(ids.shape[1]) < torch.tensor(LENGTHS[:count]).unsqueeze(1)
    return ids, mask, torch.zeros_like(ids)


def reference_vector(whole, text: torch.Tensor) -> torch.Tensor:
    """The vector of one text without padding, from the states of a model with its own head."""
    if not whole.config.is_encoder_decoder:
        return whole(text[None], output_hidden_states=True).hidden_states[-1][0, 0]
    states = whole(text[None], labels=text[None], output_hidden_states=True).decoder_hidden_states
    return states[-1][0, (text == 2).nonzero().max()]


@pytest.mark.parametrize("architecture", ["roberta", "t5", "bart", "plbart"])
@pytest.mark.parametrize("task", [Defect(), Clone()], ids=["defect", "clone"])
def test_logits_are_those_of_each_code_by_itself(architecture, task) -> None:
    """As CodeT5 writes it, labels = source; and so padding and the rest of a batch say nothing."""
    kind = AutoModelForSeq2SeqLM if architecture != "roberta" else AutoModelForMaskedLM
    whole = kind.from_config(make_config(architecture)).double().eval()
    bare = AutoModel.from_config(make_config(architecture)).double().eval()
    own = whole.base_model.state_dict() if whole.base_model is not whole else whole.state_dict()
    bare.load_state_dict({k: v for k, v in own.items() if k in bare.state_dict()}, strict=False)
    model = task.wrap_backbone(bare, INFO).double().eval()
    ids, mask, types = batch()
    v = torch.stack([reference_vector(whole, row[:n]) for row, n in zip(ids, LENGTHS, strict=True)])
    if isinstance(task, Defect):
        expected = v @ model.head.weight.T + model.head.bias
    else:
        inner, outer = model.head[1], model.head[4]
        both = torch.tanh(torch.cat([v[0::2], v[1::2]], -1) @ inner.weight.T + inner.bias)
        expected = both @ outer.weight.T + outer.bias
    found = task.predict(model, [ids, mask, types])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def make_batch(count: int):
    """A text of one token, 5 or 6, and whether it is 6."""
    labels = torch.arange(count) % 2
    ids = torch.stack([torch.zeros_like(labels), 5 + labels, torch.full_like(labels, 2)], 1)
    return [ids, torch.ones_like(ids).bool(), torch.zeros_like(ids), labels,
            WORDS.expand(count, -1, -1)]  # fmt: skip


def score(task, model, parts) -> dict[str, float]:
    metrics = task.make_metrics(INFO)
    with torch.no_grad():
        task.update_metrics(metrics, model, parts)
    return {name: metric.compute().item() for name, metric in metrics.items()}


@pytest.mark.parametrize("architecture", ["t5", "bart"])
def test_a_model_learns_to_write_its_labels(architecture) -> None:
    model = AutoModelForSeq2SeqLM.from_config(make_config(architecture))
    task, parts = GenerateLabel(beams=3), make_batch(5)
    assert score(task, model.eval(), parts) == {"accuracy": 0.0, "f1": 0.0, "written": 0.0}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        task.compute_loss(model.train(), parts).backward()
        optimizer.step()
    for way in (task, GenerateLabel("likelihood"), GenerateLabel(beams=1)):
        assert score(way, model.eval(), parts) == {"accuracy": 1.0, "f1": 1.0, "written": 1.0}


def test_what_is_no_label_is_wrong(monkeypatch) -> None:
    task, parts = GenerateLabel(), make_batch(4)  # labels 0 1 0 1
    says = torch.tensor([[False, False], [False, True], [False, True], [False, False]])
    monkeypatch.setattr(task, "exact_matches", lambda *_: says)
    found = score(task, None, parts)  # right: the second alone; one hit, two false, one missed
    assert found == {"accuracy": 0.25, "f1": pytest.approx(2 / 5), "written": 0.5}


def test_likelihoods_are_the_products_over_the_tokens_of_each_word() -> None:
    model = AutoModelForSeq2SeqLM.from_config(make_config("t5")).double().eval()
    parts = make_batch(3)
    found = GenerateLabel().predict(model, parts)
    for i, j in ((0, 0), (1, 1), (2, 1)):
        word = WORDS[j][WORDS[j] >= 0]
        start = torch.cat([torch.tensor([1]), word[:-1]])
        logits = model(input_ids=parts[0][i : i + 1], decoder_input_ids=start[None]).logits[0]
        expected = F.log_softmax(logits, -1)[torch.arange(len(word)), word].sum()
        torch.testing.assert_close(found[i, j], expected, rtol=1e-9, atol=1e-11)
