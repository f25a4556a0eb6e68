"""A user's script, which mypy of `make check` reads as --strict: it finds a misspelled keyword."""

import torch
from attention_core import (
    GFSA,
    AttnScale,
    attach,
    detach,
    diagnose,
    save_mechanism,
    trainable_parameters,
)
from torch import nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def classify(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.encoder(x)).mean(1)


def run_script() -> None:
    model = attach(Classifier(), GFSA, layers=":", position="attention")
    scores: torch.Tensor = model.classify(torch.randn(2, 5, 16))
    optimizer = torch.optim.AdamW(trainable_parameters(model).values(), lr=1e-2)
    save_mechanism(model, "gfsa")
    print(diagnose(model, torch.randn(2, 5, 16)), scores, optimizer)
    attach(detach(model), filter=AttnScale)
    attach(model, GFSA, layer="6:")  # type: ignore[call-arg]
