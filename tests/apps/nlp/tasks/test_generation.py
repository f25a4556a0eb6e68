"""Labels that are generated as words."""

import pytest
import torch
import torch.nn.functional as F
from attention_nlp.tasks.generation import GenerateLabel
from transformers import AutoModelForSeq2SeqLM

from tests.apps.nlp.tasks.test_code import INFO, make_config

WORDS = torch.tensor([[0, 7, 2], [8, 2, -100]])  # "false" and "true", of 3 and 2 tokens


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
