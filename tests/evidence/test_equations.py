"""Stacks, iterations and networks equal their equations, and methods differ in themselves alone."""

import pytest
import torch
import torch.nn.functional as F
from attention_core import spectral

from benchmarks.evidence.methods import STACKED, TRAINED
from benchmarks.evidence.settings import QUICK, TaskSettings
from benchmarks.evidence.signs import RANGES, form_map, iterate_update, judge_iteration
from benchmarks.evidence.stacks import STACKS, apply_block, draw_attention, draw_mlp
from benchmarks.evidence.task import describe_run, list_runs, list_trials, train_namer


@pytest.mark.parametrize("stack", STACKS)
def test_a_layer_equals_its_equation(stack):
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    attention, mlp = draw_attention(STACKED["plain"], 6, 1), draw_mlp(6)

    def attend(x):
        q, k, v = attention.qkv(x).chunk(3, -1)
        return attention.proj((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)

    def normalize(x):
        return F.layer_norm(x, (6,))

    sums = {
        "attention": lambda: attend(x),
        "residual": lambda: x + attend(x),
        "mlp": lambda: (y := x + attend(x)) + mlp(y),
        "pre_ln": lambda: (y := x + attend(normalize(x))) + mlp(normalize(y)),
        "post_ln": lambda: normalize((y := normalize(x + attend(x))) + mlp(y)),
    }
    expected = sums[stack]()
    if stack in ("attention", "residual", "mlp"):
        expected = expected / expected.square().mean((1, 2), keepdim=True).sqrt()
    torch.testing.assert_close(apply_block(stack, attention, mlp, x), expected)


@pytest.mark.parametrize("name", [name for name in STACKED if name != "plain"])
def test_methods_share_their_weights_and_differ_in_their_output(name):
    layers = []
    for method in (STACKED["plain"], STACKED[name]):
        torch.manual_seed(3)
        layers.append(draw_attention(method, 8, 2))
    plain, other = layers
    assert torch.equal(plain.qkv.weight, other.qkv.weight)
    assert torch.equal(plain.proj.weight, other.proj.weight)
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    assert not torch.allclose(plain(x), other(x))


SIZES = {"dim": 3, "num_tokens": 5}


@pytest.mark.parametrize("recomputed", [False, True])
def test_the_sign_decides(recomputed):
    for spectrum, outcome in (("positive", "smooths"), ("negative", "sharpens")):
        rows = iterate_update(spectrum, recomputed, seed=1, depths=(0, 500), **SIZES)
        assert rows[0]["predicted"] == judge_iteration(rows) == outcome
        assert rows[0]["map"] == ("recomputed" if recomputed else "fixed")


def test_the_first_step_equals_its_equation():
    low, high = RANGES["mixed"]
    generator = torch.Generator().manual_seed(4)
    uniform = torch.rand(3, generator=generator, dtype=torch.float64)
    Q, x, queries, keys = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((3, 3), (5, 3), (3, 3), (3, 3))
    )
    Q = torch.linalg.qr(Q).Q
    W = (Q @ torch.diag(low + (high - low) * uniform) @ torch.linalg.inv(Q)).mT
    expected = x + form_map(x, queries / 3**0.5, keys / 3**0.5) @ x @ W
    rows = iterate_update("mixed", False, seed=4, depths=(0, 1), **SIZES)
    measured = [row["hfc_lfc"] for row in rows]
    assert measured == pytest.approx([spectral.hfc_lfc(y).item() for y in (x, expected)])


SMALL = TaskSettings(dim=8, num_tokens=5, vocabulary=4, batch_size=8, test_samples=64, depths=(1,))


def test_a_network_with_residual_learns_to_name_its_tokens():
    (row,) = train_namer(**describe_run(SMALL, "residual", 1, 1e-2, seed=0, steps=150))
    assert row["accuracy"] > 0.95
    assert 0 < row["start_cosine"] <= 1


def test_runs_take_the_rate_of_the_best_trial_and_other_seeds():
    settings = QUICK.task
    trials = [
        {"method": run["name"], "loss": -run["learning_rate"]}
        | {key: run[key] for key in ("learning_rate", "steps")}
        for run in list_trials(settings)
    ]
    runs = list_runs(settings, trials)
    assert {run["learning_rate"] for run in runs} == {max(settings.learning_rates)}
    assert {run["seed"] for run in runs} == set(settings.seeds) != {settings.trial_seed}
    longer = [run for run in runs if run["steps"] > settings.steps]
    assert {run["name"] for run in longer} == set(settings.patient)
    assert {run["depth"] for run in longer} == {settings.depths[0]}
    assert len(runs) == len(settings.seeds) * len(TRAINED) * len(settings.depths) + len(longer)
