"""A refused attach leaves a model of any host as it was: classes, attributes, hooks, outputs."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from attention_core import GFSA, EigenSpectrum, FeatScale, LayerScale, SelfAttention, attach, detach
from attention_core.hosts.adapter import Filtered
from torch import Tensor, nn
from torch.testing import assert_close

from tests.hosts.helpers import filtered_modules
from tests.hosts.test_contract import CASES, Case, run

pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")
OWN = Case(lambda: SelfAttention(12, 3).eval(), lambda: {"x": torch.randn(2, 7, 12)}, 0)
REFUSED = (TypeError, ValueError, RuntimeError)


def fail_late(make: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """Return a factory that makes `calls` parts and then raises."""
    counter = count(1)

    def make_or_fail(*sizes: int) -> Any:
        if next(counter) > calls:
            raise RuntimeError("no more parts")
        return make(*sizes)

    return make_or_fail


def share_spectrum() -> Callable[[int], Any]:
    """Return a factory that gives all layers one spectrum, which can be tied to the first alone."""
    made: list[Any] = []
    return lambda dim: made[0] if made else made.append(EigenSpectrum(dim)) or made[0]


# by the number of the last layer; made anew for each model, since some count their calls
REFUSALS: dict[str, Callable[[int], dict[str, Any]]] = {
    "filter-none": lambda last: {"make_filter": lambda heads: None},
    "filter-tokens": lambda last: {"make_filter": FeatScale},
    "filter-late": lambda last: {"make_filter": fail_late(GFSA, last)},
    "kernel-filter": lambda last: {"kernel": GFSA},
    "tokens-none": lambda last: {"make_filter": GFSA, "tokens": lambda dim: None},
    "tokens-late": lambda last: {"make_filter": GFSA, "tokens": fail_late(LayerScale, last)},
    "reparam-none": lambda last: {"reparam": lambda dim: None},
    "reparam-shared": lambda last: {"make_filter": GFSA, "reparam": share_spectrum()},
    "reparam-width": lambda last: {"reparam": lambda dim: EigenSpectrum(dim + 1)},
    "reparam-late": lambda last: {"reparam": fail_late(EigenSpectrum, last)},
    "layers-empty": lambda last: {"make_filter": GFSA, "layers": "99:"},
    "where-absent": lambda last: {"make_filter": GFSA, "where": "Nope"},
    "option-unknown": lambda last: {"make_filter": GFSA, "K": 5},
    "position": lambda last: {"make_filter": GFSA, "position": "nope"},
}


def take_snapshot(model: nn.Module) -> tuple[Any, ...]:
    """Return the classes and attributes of all modules and configs, and copies of all tensors."""
    holders: list[Any] = [*model.modules(), *(getattr(m, "config", None) for m in model.modules())]
    attributes = [
        (type(holder), {name: identify(value) for name, value in vars(holder).items()})
        for holder in holders
        if holder is not None
    ]
    return attributes, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def identify(value: Any) -> Any:
    entries = [(key, id(entry)) for key, entry in value.items()] if isinstance(value, dict) else []
    return id(value), entries


def check_unchanged(model: nn.Module, before: tuple[Any, ...], inputs: Any, output: Tensor) -> None:
    attributes, tensors = take_snapshot(model)
    assert attributes == before[0]
    assert list(tensors) == list(before[1])
    assert all(torch.equal(tensors[name], before[1][name]) for name in tensors)
    assert_close(run(model, inputs), output, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("case", [*CASES.values(), OWN], ids=[*CASES, "SelfAttention"])
def test_a_refused_attach_changes_nothing(case):
    model, inputs = case.build(), case.make_inputs()
    handle = next(model.modules()).register_forward_hook(lambda *given: None)
    output, before = run(model, inputs), take_snapshot(model)
    for make_options in REFUSALS.values():
        with pytest.raises(REFUSED):
            attach(model, **make_options(max(case.num_layers - 1, 0)))
        check_unchanged(model, before, inputs, output)
    assert detach(model) is model
    check_unchanged(model, before, inputs, output)
    handle.remove()
    assert not next(model.modules())._forward_hooks
    if case is not OWN:
        assert len(filtered_modules(attach(model, GFSA))) == case.num_layers


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_host_that_refuses_the_last_layer_is_restored(case, monkeypatch):
    model, inputs = case.build(), case.make_inputs()
    attach(model)  # a Plain filter, which the refused one must not replace
    output, before = run(model, inputs), take_snapshot(model)
    layers = [type(module) for module in model.modules() if isinstance(module, Filtered)]
    late = fail_late(layers[-1].on_attach, layers.count(layers[-1]) - 1)
    monkeypatch.setattr(layers[-1], "on_attach", late)
    with pytest.raises(RuntimeError, match="no more parts"):
        attach(model, GFSA)
    monkeypatch.undo()
    check_unchanged(model, before, inputs, output)
    assert not filtered_modules(detach(model))
