"""A user's script passes mypy --strict, which finds a misspelled keyword."""

from pathlib import Path

from mypy import api

ROOT = Path(__file__).parents[1]
SCRIPT = """
import torch
from attention_core import GFSA, AttnScale, attach, detach, diagnose, save_mechanism
from attention_core import trainable_parameters
from torch import nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def classify(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.encoder(x)).mean(1)


model = attach(Classifier(), GFSA, layers=":", position="attention")
scores: torch.Tensor = model.classify(torch.randn(2, 5, 16))
optimizer = torch.optim.AdamW(trainable_parameters(model).values(), lr=1e-2)
save_mechanism(model, "gfsa")
print(diagnose(model, torch.randn(2, 5, 16)))
attach(detach(model), filter=AttnScale)
"""
SKIPPED = "sympy.*,torch._dynamo.*,torch._inductor.*,torch.distributed.*,torch.fx.*"
WRONG = 'attach(model, GFSA, layer="6:")\n'


def test_a_script_passes_and_a_misspelled_keyword_is_found(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MYPYPATH", str(ROOT / "packages/attention-core/src"))
    (tmp_path / "config").write_text(f"[mypy]\n[mypy-{SKIPPED}]\nfollow_imports = skip\n")
    options = ["--strict", "--follow-imports=silent", f"--config-file={tmp_path / 'config'}"]
    text, _, _ = api.run([*options, f"--cache-dir={tmp_path}", "-c", SCRIPT + WRONG])
    assert 'Unexpected keyword argument "layer" for "attach"; did you mean "layers"?' in text
    assert text.count("error:") == 1
