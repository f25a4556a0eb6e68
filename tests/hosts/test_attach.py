"""The layers that are selected, what attach does beside the layers, and what it refuses."""

from functools import partial

import pytest
import torch
from attention_core import AGF, GFSA, EigenSpectrum, Plain, attach, detach
from attention_core.hosts.saving import load_mechanism, save_mechanism
from attention_core.hosts.selection import select_layers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.testing import assert_close

from tests.hosts.helpers import OwnAttention

index = st.none() | st.integers(-9, 9)
steps = st.none() | st.integers(-4, 4).filter(bool)


def build(num_layers: int = 2) -> nn.Sequential:
    return nn.Sequential(*(OwnAttention() for _ in range(num_layers)))


@given(start=index, stop=index, step=steps, colon=st.booleans(), depth=st.integers(0, 12))
def test_select_is_python_slicing(start, stop, step, colon, depth):
    parts = [start, stop, step] if colon or step is not None else [start, stop]
    text = ":".join("" if part is None else str(part) for part in parts)
    expected = list(range(depth))[start:stop:step]
    if expected:
        assert list(select_layers(text, depth)) == expected
    else:
        with pytest.raises(ValueError, match=f"names none of the {depth} layers"):
            select_layers(text, depth)


TAKEN = [(2, [2]), (-1, [11]), ({0, 1}, [0, 1]), ((3, -2), [3, 10]), (range(6, 9), [6, 7, 8]),
         (slice(1, 9, 4), [1, 5]), (torch.tensor(5), [5]), (torch.arange(1), [0])]  # fmt: skip
NO_SLICE = r"must be a Python slice as text.*quote it in YAML"
NO_LAYERS = r"must be a slice.*a list or range of indices"
UNKNOWN = [
    *((layers, ValueError, NO_SLICE) for layers in ("", "3", "a:", "1:2:3:4", "[1:2]", "1.5:")),
    *((layers, ValueError, r"has a step of 0$") for layers in ("::0", slice(None, None, 0))),
    *((layers, TypeError, NO_LAYERS) for layers in (None, 1.5, [True], [0, 1.5], ["0"])),
    (372, ValueError, "names layer 372, and the model has 12, from 0 to 11; quote a slice in YAML"),
    ([0, -13], ValueError, "names layer -13"),
    *((layers, ValueError, "names none of the 12 layers") for layers in ([], slice(12, None))),
    ([1, -11], ValueError, "names a layer twice"),
]


@pytest.mark.parametrize(("layers", "expected"), TAKEN)
def test_select_takes_indices_and_slices(layers, expected):
    assert list(select_layers(layers, 12)) == expected


@pytest.mark.parametrize(("layers", "error", "reason"), UNKNOWN)
def test_select_refuses_all_else_in_a_sentence(layers, error, reason):
    with pytest.raises(error, match=reason):
        select_layers(layers, 12)


MISUSES = [
    (GFSA(3), {}, "filter must be a class or a function, got a GFSA that is made already"),
    ("agf", {}, "filter got AGF, which is of another kind: pass kernel=AGF"),
    (Plain, {"kernel": AGF(12, 3)}, "kernel must be a class or a function, got a AGF"),
    (GFSA, {"layer": "1:"}, "unexpected keyword argument 'layer'"),
    (3, {}, "filter must be callable, got 3"),
    ("gsfa", {}, "filter is 'gsfa', which is none of .*gfsa"),
]


@pytest.mark.parametrize(("filter", "options", "reason"), MISUSES)
def test_misuses_get_a_sentence(filter, options, reason):
    model = build()
    with pytest.raises((TypeError, ValueError), match=reason):
        attach(model, filter, where=OwnAttention, **options)
    assert type(model[0]) is OwnAttention


def test_attach_logs_what_it_attached(caplog):
    with caplog.at_level("INFO", logger="attention_core"):
        attach(build(3), layers="1:", where=OwnAttention, make_filter="attention_core.GFSA")
        attach(nn.MultiheadAttention(8, 2), reparam=EigenSpectrum)
    line, last = caplog.messages
    assert last.endswith("8 new parameters, 8 of them trained")
    path = "tests.hosts.helpers.OwnAttention"
    assert line == (
        f"attached GFSA to 2 of 3 attention layers ({path}) of Sequential: 6 new parameters, "
        "6 of them trained"
    )


def test_an_optimizer_that_exists_trains_what_is_attached():
    model = build()
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.1, weight_decay=0.3)
    attach(model, GFSA, where=OwnAttention, optimizer=optimizer)
    old, new = optimizer.param_groups
    assert new["param_names"] == ["0.filter.wK", "1.filter.wK"]
    assert [w.data_ptr() for w in new["params"]] == [m.filter.wK.data_ptr() for m in model]
    assert (old["weight_decay"], new["weight_decay"], new["lr"]) == (0.3, 0.0, 0.1)
    model(torch.randn(2, 5, 12)).square().sum().backward()
    optimizer.step()
    assert all(m.filter.wK.abs().min() > 0 for m in model)
    momentum = torch.optim.SGD(build().parameters(), lr=0.1)
    attach(build(), partial(GFSA, learn=()), where=OwnAttention, optimizer=momentum)
    assert len(momentum.param_groups) == 1  # nothing is trained


@pytest.mark.parametrize("make_filter", [GFSA, Plain])
def test_a_forward_that_a_hook_replaces_is_refused(make_filter):
    with torch.device("meta"):
        model = build()
    detach(attach(model, make_filter, where=OwnAttention))  # to be loaded as a whole
    for hooked in (model[1].qkv, model[1]):
        hooked.forward = hooked.forward  # as accelerate's hooks do
        with pytest.raises(ValueError, match="hooks replaced the forward of"):
            attach(model, make_filter, where=OwnAttention)
        assert type(model[0]) is OwnAttention


def test_wrapped_models_are_refused(tmp_path):
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="DistributedDataParallel wraps the model already"):
            attach(nn.parallel.DistributedDataParallel(build()), GFSA, where=OwnAttention)
        attach(nn.DataParallel(build()), GFSA, where=OwnAttention)  # it copies at each pass
        sharded = fully_shard(attach(build(), partial(GFSA, wK=0.7), where=OwnAttention))
        save_mechanism(sharded, tmp_path)
        assert load_mechanism(build(), tmp_path)[0].filter.wK.tolist() == [pytest.approx(0.7)] * 3
    finally:
        torch.distributed.destroy_process_group()
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="ScriptModule wraps the model already"):
        attach(scripted, GFSA)
    with pytest.raises(ValueError, match=r"use torch.jit.trace or torch.export, or detach"):
        torch.jit.script(attach(build(), "gfsa", where=OwnAttention))


def test_compiled_models_are_compiled_again():
    torch.compiler.reset()
    model, x = build(), torch.randn(2, 5, 12)
    compiled = torch.compile(model, backend="eager")
    expected = compiled(x)
    attach(compiled, partial(GFSA, wK=0.7), where=OwnAttention)
    assert (compiled(x) - expected).abs().max() > 1e-3
    assert_close(compiled(x), model(x))
