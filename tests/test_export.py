"""A ViT with each mechanism is exported, also to ONNX, and quantised, as docs/export.md says."""

from functools import partial

import pytest
import timm
import torch
from attention_core import attach, detach, filters, kernels, tokens
from attention_core.reparam import EigenSpectrum

FIXED_BATCH = ("Reformer",)
NO_ONNX = (*FIXED_BATCH, "Primalformer", "SOFT")  # which inverts a matrix


def list_mechanisms(module) -> list[type]:
    return [v for v in vars(module).values() if hasattr(v, "forward")]


MECHANISMS = [
    *({"filter": mechanism} for mechanism in list_mechanisms(filters)),
    *({"kernel": kernel} for kernel in list_mechanisms(kernels)),
    {"tokens": tokens.FeatScale},
    {"tokens": partial(tokens.ContraNorm, scale=0.2), "position": "norms"},
    {"tokens": tokens.LayerScale, "position": "branches"},
    {"reparam": EigenSpectrum},
]


def name_mechanism(options) -> str:
    factory = next(iter(options.values()))
    return getattr(factory, "func", factory).__name__


@pytest.mark.robustness
@pytest.mark.parametrize("options", MECHANISMS, ids=name_mechanism)
@torch.no_grad()
def test_a_mechanism_leaves_torch(options, tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=32).eval()
    attach(model, **options).eval()
    for weight in model.parameters():
        if not weight.any():  # a coefficient at identity: let it act
            torch.nn.init.normal_(weight, std=0.3)
    if "reparam" in options:
        detach(model)
    images, name = torch.randn(2, 3, 32, 32), name_mechanism(options)
    expected = model(images)
    sizes = None if name in FIXED_BATCH else ({0: torch.export.Dim("batch")},)
    program = torch.export.export(model, (images,), dynamic_shapes=sizes)
    torch.testing.assert_close(program.module()(images), expected)
    quantised = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
    torch.testing.assert_close(quantised(images), expected, rtol=0, atol=0.1)
    if name not in NO_ONNX:
        onnxruntime, path = pytest.importorskip("onnxruntime"), tmp_path / "model.onnx"
        pytest.importorskip("onnxscript")
        with torch.enable_grad():
            torch.onnx.export(model, (images,), path, dynamo=True, dynamic_shapes=sizes)
        session = onnxruntime.InferenceSession(path)
        (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-4)
