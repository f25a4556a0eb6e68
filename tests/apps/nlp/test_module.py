"""Every method acts on every architecture, and the data module has the model's weights."""

import json

import pytest
import torch
from attention_core import detach

from tests.apps.cases import NLP
from tests.apps.nlp.small import TINY


@pytest.mark.parametrize(("architecture", "method"), [
    *((architecture, "gfsa") for architecture in TINY),
    *(("bert", method) for method in ("gfsa_even", "attnscale", "contranorm", "centered")),
    ("albert", "contranorm"), ("roberta", "contranorm"),
])  # fmt: skip
def test_a_method_acts_on_an_architecture(architecture: str, method: str) -> None:
    arguments = [f"--model.options={json.dumps(TINY[architecture])}"]
    arguments += [f"--model.architecture={architecture}", "--data.init_args.vocab_size=53"]
    module = NLP.model(*arguments, method=method)
    torch.manual_seed(0)
    ids = torch.randint(3, 53, (4, 9))
    ids[:, -1] = 2  # BART pools the end of the sequence
    batch = [ids, torch.ones_like(ids).bool(), torch.zeros_like(ids), torch.tensor([0, 1, 0, 1])]
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    for _ in range(3):  # some methods start as the identity
        optimizer.zero_grad()
        module.task.compute_loss(module.model, batch).backward()
        optimizer.step()
    own = [p for n, p in module.model.named_parameters() if {"filter", "tokens"} & {*n.split(".")}]
    assert all(p.grad.abs().sum() > 0 for p in own if p.requires_grad)
    changed = module.task.predict(module.model, batch)
    detach(module.model)
    assert not torch.allclose(changed, module.task.predict(module.model, batch), atol=1e-6)
