"""What diagnose measures in models of every library equals literal computations in float64.

The maps are recorded in the stock model, from its own calls; the tokens by hooks on paths that each
case names.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from attention_core import GFSA, FeatScale, SelfAttention, attach, diagnose, spectral
from attention_core.diagnosis import Diagnosis
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._pytree import tree_map
from torchvision.models import MaxVit

from tests.core import reference
from tests.hosts import torch_models
from tests.hosts.helpers import (
    OwnAttention,
    check_unchanged,
    randomize,
    record_calls,
    replace_maps,
    take_snapshot,
)

timm_models = pytest.importorskip("tests.hosts.timm_models")
models = pytest.importorskip("tests.hosts.transformers.models")


class Block(nn.Module):
    """A pre-LN block that we own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(12), nn.LayerNorm(12)
        self.attn = SelfAttention(12, 3)
        self.mlp = nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 12))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = block(x, mask)
        return x


class Case(NamedTuple):
    """A model, a batch, and the steps, masks and weights of its blocks."""

    build: Callable[[], nn.Module]
    batch: Callable[[], Any]
    blocks: list[str]
    steps: dict[str, str]
    masks: Any
    weights: Callable[[Any], tuple[Tensor, Tensor]]


VALID = torch.arange(9).expand(2, 9) < torch.tensor([[9], [5]])
SHORT = torch.arange(7).expand(2, 7) < torch.tensor([[7], [5]])


def make_padded(name: str) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return models.make_inputs(name, padded=True)


def make_images() -> Tensor:
    torch.manual_seed(1)
    return timm_models.make_inputs()["x"].double()


def make_tokens() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"x": torch.randn(2, 7, 12).double(), "mask": SHORT}


# the value and output weights (D, H d) of a block
WEIGHTS: dict[str, Callable[[Any], tuple[Tensor, Tensor]]] = {
    "fused": lambda b: (b.attn.qkv.weight.chunk(3)[2], b.attn.proj.weight),
    "bert": lambda b: (b.attention.self.value.weight, b.attention.output.dense.weight),
    "gpt2": lambda b: (b.attn.c_attn.weight.chunk(3, 1)[2].T, b.attn.c_proj.weight.T),
    "t5": lambda b: (b.layer[0].SelfAttention.v.weight, b.layer[0].SelfAttention.o.weight),
    "torch": lambda b: (b.self_attn.in_proj_weight.chunk(3)[2], b.self_attn.out_proj.weight),
    "llama": lambda b: (
        b.self_attn.v_proj.weight.unflatten(0, (2, -1)).repeat_interleave(3, 0).flatten(0, 1),
        b.self_attn.o_proj.weight,
    ),
}
# the paths of the steps between the input and the output of a block; those after "<" are inputs
STEPS = {
    "bert": {
        "attention": "attention.output.dense",
        "residual": "<attention.output.LayerNorm",
        "norm": "attention",
        "mlp_residual": "<output.LayerNorm",
    },
    "torch": {"attention": "dropout1", "residual": "<norm1", "norm": "norm1",
              "mlp_residual": "<norm2"},
    "gpt2": {"attention": "attn", "residual": "<ln_2"},
    "t5": {"attention": "layer.0.SelfAttention", "residual": "layer.0"},
    "llama": {"residual": "<post_attention_layernorm"},
    "vit": {"attention": "ls1", "residual": "<norm2"},
    "swin": {"attention": "drop_path1", "residual": "<norm2"},
    "ours": {"attention": "attn", "residual": "<norm2"},
}  # fmt: skip


def make_case(name, blocks, masks, build, batch, weights="fused") -> Case:
    return Case(build, batch, blocks, STEPS[name], masks, WEIGHTS[weights])


def make_text_case(name, blocks, masks=(VALID, VALID)) -> Case:
    build, batch = partial(models.build, name), partial(make_padded, name)
    return make_case(name, blocks, masks, build, batch, name)


CASES = {
    "vit": make_case("vit", [f"blocks.{i}" for i in range(3)], [None] * 3,
                     lambda: timm_models.build("vit").double(), make_images),
    "swin": make_case("swin", [f"layers.{i}.blocks.{j}" for i in range(2) for j in range(2)],
                      [None] * 4, lambda: timm_models.build("swin").double(), make_images),
    "bert": make_text_case("bert", [f"encoder.layer.{i}" for i in range(2)]),
    "gpt2": make_text_case("gpt2", [f"transformer.h.{i}" for i in range(2)]),
    "llama": make_text_case("llama", [f"model.layers.{i}" for i in range(2)]),
    "t5": make_text_case("t5", [f"{s}.block.{i}" for s in ("encoder", "decoder") for i in range(2)],
                         [VALID, VALID, None, None]),
    "torch": make_case("torch", [f"layers.{i}" for i in range(2)], [SHORT, SHORT],
                       torch_models.BUILDS["encoder"],
                       partial(torch_models.make_inputs, "encoder"), "torch"),
    "ours": make_case("ours", ["blocks.0", "blocks.1"], [SHORT, SHORT],
                      lambda: torch_models.enlarge(Stack()), make_tokens),
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def measured(request) -> tuple[Case, nn.Module, Diagnosis]:
    torch.manual_seed(0)
    case = CASES[request.param]
    model = case.build()
    return case, model, diagnose(model, case.batch(), mechanisms=[])


def call_model(model: nn.Module, batch: Any) -> Any:
    return model(**batch) if isinstance(batch, dict) else model(batch)


def record_maps(model: nn.Module, batch: Any) -> list[Tensor]:
    """Return the square maps that a stock model applies, from its own calls of torch."""
    with replace_maps([]) as maps:
        call_model(model, batch)
    return maps


def record_steps(model: nn.Module, case: Case) -> list[dict[str, Tensor]]:
    """Return the tokens (B, N, D) of the steps of each block, by hooks on the stock model."""
    found: list[dict[str, Tensor]] = [{} for _ in case.blocks]

    def keep(i: int, step: str, given: Any) -> None:
        x = given[0] if isinstance(given, tuple) else given
        found[i].setdefault(step, x.detach().flatten(1, -2))

    for i, path in enumerate(case.blocks):
        for step, inner in ({"input": "<"} | case.steps | {"mlp": ""}).items():
            module = model.get_submodule(f"{path}.{inner.removeprefix('<')}".strip("."))
            if inner.startswith("<"):
                module.register_forward_pre_hook(
                    lambda m, args, kw, i=i, step=step: keep(i, step, args or tuple(kw.values())),
                    with_kwargs=True,
                )
            else:
                module.register_forward_hook(lambda m, a, out, i=i, step=step: keep(i, step, out))
    call_model(model, case.batch())
    return found


def truncate(x: Tensor, mask: Tensor | None) -> list[Tensor]:
    return list(x) if mask is None else [y[valid] for y, valid in zip(x, mask, strict=True)]


def cut_maps(A: Tensor, mask: Tensor | None) -> list[Tensor]:
    if mask is None:
        return list(A)
    return [M[:, valid][..., valid] for M, valid in zip(A, mask, strict=True)]


def average(values: list[Any]) -> Tensor:
    return torch.stack([torch.as_tensor(value).double() for value in values]).mean(0)


def reference_tokens(x: Tensor) -> dict[str, Any]:
    """Return the measures of the tokens (N, D) of one sample, by their definitions."""
    mean = x.mean(0)
    high = (x - mean).square().sum().sqrt()
    low = math.sqrt(len(x)) * mean.square().sum().sqrt()
    first, second = torch.triu_indices(len(x), len(x), 1)
    cosines = F.cosine_similarity(x[first], x[second], dim=-1)
    return {
        "hfc_lfc": high / low,
        "hfc_share": high / x.square().sum().sqrt(),
        "token_cosine": cosines.abs().mean(),
        "signed_token_cosine": cosines.mean(),
        "effective_rank": reference.effective_rank(x),
        "high_frequency_norm": high,
    }


def test_tokens_of_every_step_equal_their_literal_measures(measured):
    case, model, report = measured
    steps = record_steps(model, case)
    counts: dict[str, int] = {}
    for layer in report.layers:  # encoder and decoder count from 0
        assert layer.index == counts.get(layer.stack, 0)
        counts[layer.stack] = layer.index + 1
    assert sum(counts.values()) == len(case.blocks)
    for layer, expected, mask in zip(report.layers, steps, case.masks, strict=True):
        assert set(expected) <= set(layer.steps)
        for step, x in expected.items():
            measures = [reference_tokens(sample) for sample in truncate(x, mask)]
            for name in measures[0]:
                wanted = average([sample[name] for sample in measures])
                assert_close(getattr(layer.steps[step], name), wanted.item(), rtol=1e-6, atol=1e-9)


def test_maps_of_every_head_equal_their_literal_measures(measured):
    case, model, report = measured
    maps = record_maps(model, case.batch())
    assert len(maps) == len(report.layers)
    for layer, A, mask in zip(report.layers, maps, case.masks, strict=True):
        cut = cut_maps(A, mask)
        entropy = average([torch.special.entr(M).sum(-1).mean(-1) for M in cut])
        assert_close(layer.attention_entropy, entropy.tolist())
        cosines = [[reference.cosine(head.T) for head in M] for M in cut]
        assert layer.map_cosine == pytest.approx(average(cosines).mean().item())
        flat = [F.normalize(M.flatten(1), dim=-1) for M in cut]
        pairs = [(x @ x.T)[*torch.triu_indices(len(x), len(x), 1)].mean() for x in flat]
        assert layer.head_cosine == pytest.approx(average(pairs).item())
        assert layer.is_causal == bool((A.triu(1) == 0).all())
        whole = [M for M in cut if M.shape[-1] == A.shape[-1]]
        if len(whole) == len(cut):
            gains = [[reference.dft_response(head) for head in M] for M in cut]
            gains = average([torch.stack(sample) for sample in gains])
            found = torch.tensor(layer.responses).double()
            assert_close(found, gains[:, : found.shape[-1]])


def test_weights_and_bounds_equal_their_literal_values(measured):
    case, model, report = measured
    maps = record_maps(model, case.batch())
    for layer, path, A, mask in zip(report.layers, case.blocks, maps, case.masks, strict=True):
        value, output = (w.detach() for w in case.weights(model.get_submodule(path)))
        heads = [slice(h * len(value) // A.shape[1], (h + 1) * len(value) // A.shape[1])
                 for h in range(A.shape[1])]  # fmt: skip
        products = torch.stack([value[h].T @ output[:, h].T for h in heads])  # W_V^h W_O^h
        H = torch.linalg.eigvals(products.mT)
        shares = [
            spectral.dominating_eigenvalue_shares(H, torch.linalg.eigvals(M), tolerance=1e-4)
            for M in cut_maps(A, mask)
        ]
        assert list(layer.eigenvalue_shares.values()) == pytest.approx(average(shares).tolist())
        spectrum = torch.tensor(layer.value_output_spectrum, dtype=torch.complex128)
        assert_close(spectrum.abs().amax(-1), H.abs().amax(-1), rtol=1e-6, atol=1e-6)
        whole = torch.linalg.cond(products.sum(0)).item()
        assert layer.condition_number == pytest.approx(whole, rel=1e-3) or whole > 1e10
        norms = torch.linalg.matrix_norm(products, 2)
        rates = []
        for M in cut_maps(A, mask):
            J = torch.full_like(M, 1 / M.shape[-1])
            rates.append((torch.linalg.matrix_norm(M - J @ M, 2) * norms).sum())
        assert layer.bounds["map"] == pytest.approx(average(rates).item())
        assert 0 < layer.bounds["measured"] <= layer.bounds["map"]
        hides_pairs = min(M.min().item() for M in cut_maps(A, mask)) < 1e-37
        assert hides_pairs == ("attention" not in layer.bounds)
        if not hides_pairs:
            assert layer.bounds["map"] <= layer.bounds["attention"]
            assert layer.bounds["residual"] == 1 + layer.bounds["attention"]


def test_the_growth_of_high_frequencies_is_that_of_the_attention():
    model, batch = CASES["vit"].build(), make_images()
    calls = record_calls([model.blocks[1].attn], lambda: call_model(model, batch))
    report = diagnose(model, batch)
    x, y = (spectral.high_frequency_norm(t.detach()) for t in (calls[0][0][0], calls[0][1]))
    assert report.layers[1].bounds["measured"] == pytest.approx((y / x).mean().item())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_model_is_as_it_was_also_after_an_error(case):
    model, batch = case.build().train(), case.batch()
    next(model.parameters()).requires_grad_(False)
    model.get_submodule(case.blocks[-1]).eval()
    model.register_buffer("seen", seen := torch.zeros(0))  # an observer writes it
    model.settings = type("ReadOnly", (dict,), {"update": lambda *_: 1 / 0})(depth=2)
    model.register_forward_hook(lambda *_: (seen.resize_(2).fill_(1), None)[1])
    before, state = take_snapshot(model), torch.get_rng_state()
    diagnose(model, batch)
    check_unchanged(model, before)
    with pytest.raises(ValueError, match="names layer 9"):
        diagnose(model, batch, layers=9)
    check_unchanged(model, before)
    hook = model.get_submodule(case.blocks[-1]).register_forward_hook(lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        diagnose(model, batch)
    hook.remove()
    check_unchanged(model, before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["vit", "bert", "gpt2", "torch"])
def test_filtered_models_are_measured_with_their_filters(name):
    case = CASES[name]
    model = case.build()
    A = record_maps(model, case.batch())[0]
    randomize(attach(model, GFSA, layers=[0]))
    batch, before = case.batch(), take_snapshot(model)
    first, second = diagnose(model, batch).layers[:2]
    check_unchanged(model, before)
    w0, w1, wK = (w for _, w in sorted(first.coefficients.items()))
    assert not second.coefficients
    gains = []
    for sample in cut_maps(A, case.masks[0])[:1]:  # the one without padding
        terms = zip(sample, w0, w1, wK, strict=True)
        H = [a * torch.eye(len(M)) + b * M + c * (M + 2 * (M @ M - M)) for M, a, b, c in terms]
        gains.append(torch.stack([reference.dft_response(M) for M in H]))
    report = diagnose(model, tree_map(lambda x: x[:1], case.batch()), layers=0)
    found = torch.tensor(report.layers[0].responses).double()
    assert_close(found, gains[0][:, : found.shape[-1]], rtol=1e-6, atol=1e-6)


def check_same(report: Any, other: Any) -> None:
    """Compare the measures of two reports, those of tokens as far as the other has any."""
    for mine, theirs in zip(report.layers, other.layers, strict=True):
        assert mine.steps.keys() == theirs.steps.keys()
        for step, tokens in mine.steps.items():
            for name, value in vars(theirs.steps[step]).items():
                found = vars(tokens)[name]
                if name == "samples":
                    found, value = found["hfc_lfc"], value["hfc_lfc"]
                found = found[: len(value)] if isinstance(value, list) else found
                assert found == pytest.approx(value, rel=1e-6, abs=1e-9)
        for name in ("attention_entropy", "relative_entropy", "map_cosine", "head_cosine", "bounds",
                     "eigenvalue_shares"):  # fmt: skip
            assert getattr(mine, name) == pytest.approx(getattr(theirs, name))


def test_labels_that_are_padded_are_a_mask_of_the_decoder():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    model = hf.T5ForConditionalGeneration(hf.T5Config(**sizes, decoder_start_token_id=0)).eval()
    batch = {"input_ids": torch.ones(2, 9).long(), "labels": SHORT * 101 - 100}
    found, wanted = (diagnose(model, batch, mask=x, mechanisms=[]) for x in (None, SHORT))
    assert found.layers == wanted.layers


def test_slices_of_a_batch_are_averaged(monkeypatch):
    model, batch = CASES["bert"].build(), make_padded("bert")
    whole = diagnose(model, batch)
    monkeypatch.setattr("attention_core.diagnosis.run.MAX_MAP_ENTRIES", 1)
    sliced = diagnose(model, batch)
    check_same(sliced, whole)
    assert sliced.num_samples == 2


def test_layers_are_selected_in_the_order_of_the_calls():
    model, batch = CASES["vit"].build(), make_images()
    whole, part = diagnose(model, batch), diagnose(model, batch, layers="1:")
    assert [layer.index for layer in part.layers] == [1, 2]
    first, second = (replace(x, map_similarity=None) for x in (part.layers[0], whole.layers[1]))
    assert first == second
    assert part.layers[1] == whole.layers[2]


def test_sequence_first_tokens_are_measured_as_tokens():
    model, batch = torch_models.BUILDS["encoder-first"](), torch_models.make_inputs("encoder-first")
    report = diagnose(model, batch)
    assert (report.num_samples, report.num_tokens) == (2, 7)
    samples = [reference_tokens(sample) for sample in truncate(batch["src"].transpose(0, 1), SHORT)]
    found = report.layers[0].steps["input"].hfc_lfc
    assert found == pytest.approx(average([sample["hfc_lfc"] for sample in samples]).item())


@pytest.mark.parametrize(("dim", "count"), [(12, 4), (4, 3)])
def test_images_are_samples_if_a_window_has_as_many_tokens_or_channels(dim, count):
    sizes = {"image_size": 16, "patch_size": 2, "window_size": 2, "embed_dim": dim}
    model = hf.SwinModel(hf.SwinConfig(**sizes, depths=[2], num_heads=[2]))
    report = diagnose(model, {"pixel_values": torch.randn(count, 3, 16, 16)}, mechanisms=[])
    assert (report.num_samples, report.num_tokens) == (count, 64)


@pytest.mark.parametrize(("build", "kind", "channels"), [
    (lambda: timm_models.timm.models.DaVit(3, (1,), (16,), (2,)), "SpatialBlock", 1),
    (lambda: timm_models.timm.create_model("maxvit_pico_rw_256", img_size=64, embed_dim=(32,),
                                           depths=(2,)), "PartitionAttentionCl", 3),
    # as many windows as tokens of a window and channels
    (lambda: MaxVit((64, 64), 16, 4, [16], [2], 8, 0.0), "PartitionAttentionLayer", 1),
])  # fmt: skip
def test_blocks_of_tokens_or_windows_between_convolutions_are_measured(build, kind, channels):
    model, x = build().double().eval(), torch.randn(2, 3, 64, 64).double()
    blocks = [block for block in model.modules() if type(block).__name__ == kind]
    calls = record_calls(blocks, lambda: model(x))
    layers = diagnose(model, x, mechanisms=[]).layers[: len(blocks)]
    for layer, (_, y) in zip(layers, calls, strict=False):
        wanted = spectral.hfc_lfc(y.detach().movedim(channels, -1).flatten(1, 2)).mean().item()
        assert layer.output.hfc_lfc == pytest.approx(wanted)
        assert layer.responses


def test_the_values_of_a_generic_host_are_not_needed():
    class Attention(OwnAttention):
        def forward(self, x: Tensor) -> Tensor:
            q = self.qkv(x)[..., :12].unflatten(-1, (3, 4)).transpose(1, 2)
            return F.scaled_dot_product_attention(q, q, q.sin()).transpose(1, 2).flatten(2)

    layer = diagnose(Attention(), torch.randn(2, 5, 12), where="Attention").layers[0]
    assert (layer.eigenvalue_shares, layer.condition_number, layer.bounds) == (None, None, {})
    assert len(layer.attention_entropy) == 3


def test_tokens_attached_to_a_model_are_coefficients():
    layer = diagnose(attach(CASES["vit"].build(), tokens=FeatScale), make_images()).layers[0]
    assert [name.split(".")[-1] for name in layer.coefficients] == ["s", "t"]


def test_tokens_of_a_library_that_puts_the_sequence_first():
    forming = pytest.importorskip("tests.hosts.transformers.forming_models")
    (case,) = (case for case in forming.TEXTS if case.family == "xlnet")
    report = diagnose(case.build().float(), case.make_inputs())
    assert (report.num_samples, report.num_tokens) == (2, 9)
    assert len(report.layers[0].steps["input"].singular_values) == 9


@pytest.mark.parametrize("encoder", ["transformer", "conformer"])
@pytest.mark.parametrize("kind", ["regularMHA", "RelPosMHAXL"])
def test_recognizers_of_speechbrain_are_measured_without_their_padding(encoder, kind):
    speech = pytest.importorskip("tests.hosts.speechbrain_models")
    model, batch = speech.build(encoder, kind), speech.make_inputs()
    report = diagnose(model, batch, mechanisms=[])
    layer = report.layers[0]
    assert [(x.stack, x.index) for x in report.layers[:2]] == [("encoder", 0), ("encoder", 1)]
    assert [*layer.steps][:3] == ["input", "attention", "residual"]
    assert layer.eigenvalue_shares is not None
    batch = {name: x[1:] for name, x in batch.items()}
    other = batch | {"src": batch["src"].clone()}
    other["src"][:, 7:] = 50.0  # the padding
    padded, changed = (diagnose(model, x, mechanisms=[]).layers[0] for x in (batch, other))
    assert padded.map_cosine == pytest.approx(changed.map_cosine, rel=1e-5)
    ratios = (x.steps["residual"].hfc_lfc for x in (padded, changed))
    assert next(ratios) == pytest.approx(next(ratios), rel=1e-4)


def test_half_precision_is_measured_in_single():
    model = timm_models.build("vit")
    whole = diagnose(model, make_images().float(), mechanisms=[])
    half = diagnose(model.bfloat16(), make_images().bfloat16(), mechanisms=[])
    for mine, theirs in zip(half.layers, whole.layers, strict=True):
        assert mine.steps.keys() == theirs.steps.keys()
        assert mine.steps["mlp"].hfc_lfc == pytest.approx(theirs.steps["mlp"].hfc_lfc, rel=0.05)
        assert mine.eigenvalue_shares is not None


BACKBONE = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "out_indices": [2]}
FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
FALCON |= {"num_key_value_heads": 2, "mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8}
DETR = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_queries": 5}
DETR |= {"encoder_layers": 2, "decoder_layers": 2, "use_timm_backbone": False, "backbone": None}
RT_DETR = {"d_model": 32, "encoder_hidden_dim": 32, "decoder_in_channels": [32] * 3}
RT_DETR |= {"decoder_layers": 2, "num_queries": 5, "num_denoising": 0}


@pytest.mark.parametrize(("build", "batch", "expected"), [
    # the map of Mamba-2's chunks is the first of each layer, and has sums and lengths of its own
    (lambda: hf.FalconH1ForCausalLM(hf.FalconH1Config(**FALCON, mamba_chunk_size=2)),
     {"input_ids": torch.arange(24).view(2, 12)}, [("model", "self_attn")] * 2),
    (lambda: hf.PvtV2Model(hf.PvtV2Config(image_size=64, depths=[1] * 4)),  # with pooled keys
     {"pixel_values": torch.rand(2, 3, 64, 64)}, [("model", "attention")] * 4),
    # queries that start at 0 have no tokens before the first cross-attention
    (lambda: hf.DetrModel(hf.DetrConfig(**DETR, backbone_config=hf.ResNetConfig(**BACKBONE))),
     {"pixel_values": torch.rand(2, 3, 64, 64)},
     [*[("encoder", "self_attn")] * 2, ("decoder", "self_attn")]),
    (lambda: hf.RTDetrModel(hf.RTDetrConfig(**RT_DETR)),  # its boxes are sums of maps' outputs
     {"pixel_values": torch.rand(2, 3, 64, 64)}, [("model", "self_attn")] * 3),
])  # fmt: skip
def test_layers_are_those_of_the_stream_of_tokens(build, batch, expected):
    report = diagnose(build().eval(), batch, mechanisms=[])
    assert report.num_samples == 2
    assert [(x.stack, x.name.rpartition(".")[2]) for x in report.layers] == expected
