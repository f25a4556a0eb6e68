"""Labels and numbers: their metrics are the definitions; chunks change no gradient."""

import pytest
import torch
from attention_nlp.models.backbones import build_backbone
from attention_nlp.tasks import Classification, Regression, TextInfo
from attention_nlp.tasks.labels import split_by_length

from tests.apps.nlp.small import INFO, SLOTS, TINY


def test_parts_of_like_length_change_no_gradient() -> None:
    torch.manual_seed(0)
    model = build_backbone("bert", None, "labels", TINY["bert"], INFO, SLOTS).eval().double()
    mask = torch.arange(9) < torch.tensor([9, 3, 7, 2, 5])[:, None]
    ids = torch.randint(3, 53, (5, 9)).where(mask, torch.tensor(1))
    batch = [ids, mask, torch.zeros_like(ids), torch.tensor([0, 1, 2, 0, 1])]
    found = []
    for parts in (1, 2, 5):
        model.zero_grad()
        loss = Classification(num_chunks=parts).compute_loss(model, batch)
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for other in found[1:]:
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(found[0], other, strict=True))
    assert sum(share for _, share in split_by_length(batch, 2)) == pytest.approx(1.0)


def test_metrics_of_glue_are_the_definitions() -> None:
    guess, truth = torch.tensor([1, 1, 0, 1, 0, 0]), torch.tensor([1, 0, 0, 1, 0, 0])
    metrics = Classification().make_metrics(TextInfo(2, 9, 9, 0))
    for name in ("accuracy", "f1", "matthews"):
        metrics[name].update(guess, truth)
    found = {name: metrics[name].compute().item() for name in ("accuracy", "f1", "matthews")}
    assert found == pytest.approx({"accuracy": 5 / 6, "f1": 4 / 5, "matthews": 0.5**0.5})
    metrics = Regression().make_metrics(TextInfo(1, 9, 9, 0))
    metrics["spearman"].update(torch.tensor([1.0, 4.0, 9.0, 2.0]), torch.arange(4.0))
    assert Regression().compute_score(metrics).item() == pytest.approx(0.4)
    metrics = Classification("f1").make_metrics(TextInfo(3, 10, 8, 0))
    metrics["f1"].update(torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 2]))
    assert metrics["f1"].compute() == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)
