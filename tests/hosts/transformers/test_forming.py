"""Models of transformers that form their maps themselves: filtered exactly, masks kept."""

import copy
from functools import partial

import pytest
import torch
import transformers as hf
from attention_core import GFSA, AttnScale, Plain, Polynomial, attach, detach
from attention_core.hosts.known_classes import TRANSFORMERS_CLASSES
from torch import Tensor, nn

from tests.hosts.helpers import filtered_modules, filters, randomize, replace_maps, share_weights
from tests.hosts.transformers.forming_models import OTHERS, TEXTS, N
from tests.hosts.transformers.models import VOCAB

all_cases = pytest.mark.parametrize("case", TEXTS + OTHERS, ids=lambda case: case.attention)
text_cases = pytest.mark.parametrize("case", TEXTS, ids=lambda case: case.attention)
CAUSAL = ["bark", "bloom", "codegen", "ctrl", "falcon", "gpt_neo", "gptj"]
CAUSAL += ["gpt_neox_japanese", "imagegpt", "mpt", "openai", "xglm"]
# convolutions over tokens do not keep padding apart
SEPARATE = {case.family for case in TEXTS} - {"convbert", "mobilebert"}
CAST = 1e-6  # some models form their maps in float32


def difference(given: list[Tensor], other: list[Tensor]) -> float:
    """Return the largest difference between outputs, in units of the largest value."""
    pairs = zip(given, other, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


def test_every_known_class_is_tried():
    tried = {
        f"{module.host_class.__module__}.{module.host_class.__name__}"
        for case in TEXTS + OTHERS
        for module in filtered_modules(attach(case.build(), GFSA)).values()
        if module.__class__.__module__.endswith("generic")
    }
    assert tried == set(TRANSFORMERS_CLASSES)


@all_cases
def test_identity_and_detach_keep_the_output_and_the_mode(case):
    model, inputs = case.build(), case.make_inputs()
    exact = 1e-12 if case.dtype is torch.float64 else 1e-5
    with torch.no_grad():
        expected, names = case.run(model, inputs), list(model.state_dict())
        for filter in (Plain, AttnScale, partial(Polynomial, K=3, basis="jacobi")):
            assert difference(case.run(attach(model, filter), inputs), expected) < exact
            detach(model)
        randomize(attach(model, GFSA))
        assert case.class_name in {m.host_class.__name__ for m in filtered_modules(model).values()}
        assert difference(case.run(model, inputs), expected) > 1e-4
        assert difference(case.run(detach(model), inputs), expected) == 0
        expected = case.run(model.train(), inputs)
        assert difference(case.run(attach(model, Plain), inputs), expected) < CAST
        assert all(module.training for module in filtered_modules(model).values())
    assert list(detach(model).state_dict()) == names


@all_cases
def test_the_filter_is_the_dense_one_in_output_and_gradients(case):
    model, inputs = case.build(), case.make_inputs()
    stock = copy.deepcopy(model)
    randomize(attach(model, GFSA))
    weights = share_weights(model)
    y = case.run(model, inputs)
    with replace_maps(weights, case.dtype):
        expected = case.run(stock, inputs)
    assert difference(y, expected) < 10 * CAST
    if case.family == "sew_d":  # its softmax has a backward pass of its own
        return
    probes = [torch.randn_like(x) for x in expected]
    for outputs in (y, expected):
        pairs = zip(outputs, probes, strict=True)
        sum((out * probe).sum() for out, probe in pairs if out.requires_grad).backward()
    grads = {
        name: w.grad.nan_to_num() for name, w in stock.named_parameters() if w.grad is not None
    }
    largest = max(float(grad.abs().max()) for grad in grads.values())
    for name, grad in grads.items():
        other = model.get_parameter(name).grad.nan_to_num()  # LED gives NaN beside its window
        assert (other - grad).abs().max() < 10 * CAST * largest
    # the queries of DETR's first decoder layer are all equal: no filter changes them
    assert filters(model)[-1].wK.grad.abs().max() > 0


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


@pytest.mark.parametrize("family", ["bloom", "falcon", "gptj", "gpt_neo"])
def test_a_cache_is_refused_in_a_sentence(family):
    case = next(case for case in TEXTS if case.family == family)
    causal_class = getattr(hf, case.model_class.__name__.replace("Model", "ForCausalLM"))
    model = randomize(attach(causal_class(case.config).eval(), GFSA))
    ids = case.make_inputs()["input_ids"]
    with pytest.raises(ValueError, match=r"use no cache \(use_cache=False\)"):
        model.generate(ids, max_new_tokens=3, do_sample=False)
    assert model.generate(ids, max_new_tokens=3, do_sample=False, use_cache=False).shape == (2, 12)
