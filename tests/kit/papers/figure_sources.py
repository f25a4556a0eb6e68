"""Made-up runs and tiny models that figures are drawn from."""

import json
from functools import cache
from pathlib import Path

import torch
from attention_core import GFSA, AttnScale, FeatScale, Plain, attach
from experiment_kit.papers.figures import DrawnModel
from timm.models.vision_transformer import VisionTransformer

from tests.kit.run_results import make_result

LAYERS, HEADS, DIM = 3, 2, 12


def write_run(
    folder: Path,
    app: str = "vision",
    method: str = "plain",
    data: str = "digits",
    backbone: str = "vit",
    seed: int = 0,
) -> Path:
    """Write the files of a finished run without a checkpoint; return its folder."""
    path = folder / app / f"{data}-{backbone}" / method / f"seed-{seed}-0123456789"
    path.mkdir(parents=True)
    names = {"app": app, "data": data, "backbone": backbone, "method": method, "seed": seed}
    (path / "result.json").write_text(json.dumps(make_result(**names, profile="smoke")))
    (path / "config.yaml").write_text("model: {}")
    return path


@cache
def make_model(method: str = "plain") -> DrawnModel:
    """Return a small ViT with a mechanism whose coefficients are not 0."""
    torch.manual_seed(0)
    network = VisionTransformer(
        img_size=16, patch_size=4, embed_dim=DIM, depth=LAYERS, num_heads=HEADS, num_classes=5
    )
    if method == "gfsa":
        attach(network, lambda heads: GFSA(heads, K=3, wK=0.5))
    elif method == "attnscale":
        attach(network, AttnScale)
    elif method == "featscale":
        attach(network, Plain, tokens=FeatScale)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return DrawnModel(method, network.eval(), torch.randn(2, 3, 16, 16))
