"""The contract of classes without an adapter of their own: filtered exactly, and restored."""

import copy
from functools import partial

import pytest
import torch
from attention_core import GFSA, AttnScale, Plain, Polynomial, attach, detach
from attention_core.hosts.known_classes import (
    CALLING_CLASSES,
    FORMING_CLASSES,
    TRANSFORMERS_CLASSES,
)
from torch import Tensor, nn

from tests.core.reference import gfsa
from tests.hosts.generic_modules import MODULES
from tests.hosts.helpers import (
    difference,
    filtered_modules,
    filters,
    randomize,
    replace_maps,
    share_weights,
)
from tests.hosts.transformers.forming_models import OTHERS, TEXTS, N
from tests.hosts.transformers.models import VOCAB

CASES = [*MODULES, *TEXTS, *OTHERS]
all_cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
text_cases = pytest.mark.parametrize("case", TEXTS, ids=lambda case: case.name)
CAUSAL = ["bark", "bloom", "codegen", "ctrl", "falcon", "gpt_neo", "gptj"]
CAUSAL += ["gpt_neox_japanese", "imagegpt", "mpt", "openai", "xglm"]
# convolutions over tokens do not keep padding apart
SEPARATE = {case.family for case in TEXTS} - {"convbert", "mobilebert"}
CAST = 1e-6  # some models form their maps in float32


def test_every_known_class_is_tried():
    tried = {
        f"{module.host_class.__module__}.{module.host_class.__name__}"
        for case in CASES
        for module in filtered_modules(attach(case.build(), GFSA)).values()
        if module.__class__.__module__.endswith("generic")
    }
    assert tried == {*CALLING_CLASSES, *FORMING_CLASSES, *TRANSFORMERS_CLASSES}


@all_cases
@torch.no_grad()  # TinyViT keeps what it computed, and could not be copied
def test_identity_copies_and_detach_keep_the_output(case):
    model, inputs = case.build(), case.make_inputs()
    exact = 1e-12 if case.dtype is torch.float64 else 1e-5
    expected, names = case.run(model, inputs), list(model.state_dict())
    classes = [type(module) for module in model.modules()]
    for filter in (Plain, GFSA, AttnScale, partial(Polynomial, K=3, basis="jacobi")):
        assert difference(case.run(attach(model, filter), inputs), expected) < exact
        detach(model)
    randomize(attach(model, GFSA))
    assert case.class_name in {m.host_class.__name__ for m in filtered_modules(model).values()}
    filtered = case.run(model, inputs)
    assert difference(filtered, expected) > 1e-4
    assert difference(case.run(copy.deepcopy(model), inputs), filtered) == 0
    assert difference(case.run(detach(model), inputs), expected) <= 1e-12  # fused or not
    assert (list(model.state_dict()), [type(m) for m in model.modules()]) == (names, classes)


def run_literally(case, stock: nn.Module, inputs, weights: list[Tensor]) -> list[Tensor]:
    if not hasattr(stock, "talking_head2"):
        with replace_maps(weights, case.dtype):
            return case.run(stock, inputs)
    w = [weight.view(-1, 1, 1) for weight in weights]  # the map is what talking_head2 returns
    stock.talking_head2.register_forward_hook(lambda _, inputs, A: gfsa(A, A, w, K=3))
    return case.run(stock, inputs)


@all_cases
def test_the_filter_is_the_dense_one_in_output_and_gradients(case):
    model, inputs = case.build(), case.make_inputs()
    limit = 1e-9 if case in MODULES else 10 * CAST
    stock = copy.deepcopy(model)
    randomize(attach(model, GFSA))
    weights = share_weights(model)
    y, expected = case.run(model, inputs), run_literally(case, stock, inputs, weights)
    assert difference(y, expected) < limit
    if case.name.startswith("sew_d"):  # its softmax has a backward pass of its own
        return
    probes, grads = [torch.randn_like(x) for x in expected], []
    names = [name for name, weight in stock.named_parameters() if weight.requires_grad]
    given = [x for x in inputs.values() if x.requires_grad]
    for owner, outputs in ((model, y), (stock, expected)):
        pairs = zip(outputs, probes, strict=True)
        total = sum((out * probe).sum() for out, probe in pairs if out.requires_grad)
        leaves = [*given, *map(owner.get_parameter, names)]
        found = torch.autograd.grad(total, leaves, retain_graph=True, materialize_grads=True)
        grads.append([grad.nan_to_num() for grad in found])  # LED gives NaN beside its window
        # the queries of DETR's first decoder layer are all equal: no filter changes them
        if owner is model:
            assert torch.autograd.grad(total, filters(model)[-1].wK)[0].abs().max() > 0
    largest = max(float(grad.abs().max()) for grad in grads[1])
    for ours, theirs in zip(*grads, strict=True):
        assert (ours - theirs).abs().max() < limit * largest


def make_pair(kind: str, ids: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return inputs whose outputs agree up to the last tokens: padded and cut, or changed."""
    if kind == "future":
        other = ids.clone()
        other[:, -3:] = (ids[:, -3:] + 5) % (VOCAB - 3) + 3
        return {"input_ids": ids}, {"input_ids": other}
    mask = torch.ones_like(ids)
    mask[:, -3:] = 0
    padded = {"input_ids": ids, "attention_mask": mask}
    return padded, {name: x[:, :-3] for name, x in padded.items()}


@text_cases
@pytest.mark.parametrize("kind", ["padding", "future"])
def test_neither_padding_nor_the_future_leaks(case, kind):
    model, pair = case.build(), make_pair(kind, case.make_inputs()["input_ids"])
    limit = CAST if kind == "padding" else 1e-12

    def leaks(model: nn.Module) -> bool:
        y, z = (case.run(model, x)[0][:, : N - 3] for x in pair)
        return difference([y], [z]) > limit

    with torch.no_grad():
        stock_leaks = leaks(model)
        assert stock_leaks == (case.family not in (CAUSAL if kind == "future" else SEPARATE))
        if not stock_leaks:
            assert not leaks(randomize(attach(model, GFSA)))
