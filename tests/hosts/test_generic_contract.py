"""The contract of classes without an adapter: filtered exactly, as models of all, and restored."""

import copy
from functools import partial

import pytest
import torch
from attention_core import GFSA, AttnScale, Plain, attach, detach
from attention_core.hosts.known_classes import KNOWN_CLASSES, OLDER_CLASSES
from torch import Tensor, nn

from tests.hosts.generic_modules import MODULES
from tests.hosts.helpers import LEARNED, check_dense, difference, filtered_modules, randomize
from tests.hosts.transformers.forming_models import OTHERS, TEXTS, Case, N
from tests.hosts.transformers.models import FAMILIES, SLIDES, VOCAB, build, make_inputs

CASES = [*MODULES, *TEXTS, *OTHERS]
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
    assert tried == {*KNOWN_CLASSES} - {*OLDER_CLASSES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@torch.no_grad()  # TinyViT keeps what it computed, and could not be copied
def test_identity_copies_and_detach_keep_the_output(case):
    model, inputs = case.build(), case.make_inputs()
    exact = 1e-12 if case.dtype is torch.float64 else 1e-5
    expected, names = case.run(model, inputs), list(model.state_dict())
    classes = [type(module) for module in model.modules()]
    for filter in (Plain, AttnScale):  # GFSA is the dense one below
        assert difference(case.run(attach(model, filter), inputs), expected) < exact
        detach(model)
    randomize(attach(model, GFSA))
    assert case.class_name in {m.host_class.__name__ for m in filtered_modules(model).values()}
    filtered = case.run(model, inputs)
    assert difference(filtered, expected) > 1e-4
    assert difference(case.run(copy.deepcopy(model), inputs), filtered) == 0
    assert difference(case.run(detach(model), inputs), expected) <= 1e-12  # fused or not
    assert (list(model.state_dict()), [type(m) for m in model.modules()]) == (names, classes)


def make_adapted(name: str) -> Case:
    # where a window holds padding alone, transformers has no zero
    is_padded = name not in (*SLIDES, "vit", "wav2vec2")
    return Case(name, lambda _: build(name), None, partial(make_inputs, name, padded=is_padded))


ADAPTED = [make_adapted(name) for name in FAMILIES]


@pytest.mark.parametrize("case", [*CASES, *ADAPTED], ids=lambda case: case.name)
def test_the_filter_is_the_dense_one_in_output_and_gradients(case):
    model, inputs = case.build(), case.make_inputs()
    stock = copy.deepcopy(model)
    randomize(attach(model, LEARNED))
    given = [x for x in inputs.values() if x.requires_grad]
    limit = 1e-9 if case in MODULES else 10 * CAST
    has_own_backward = case.name.startswith("sew_d")  # its softmax
    check_dense(model, stock, partial(case.run, inputs=inputs), limit, given, not has_own_backward)


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


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: case.name)
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
