"""What a model costs, counted by hand where a hand can count it."""

import pytest
import torch
from attention_core import AGF, GFSA, Plain, SelfAttention, Softmax
from experiment_kit.training import efficiency
from experiment_kit.training.efficiency import count_macs, measure_speed, peak_allocated_mib
from lightning.fabric import Fabric
from torch import nn

HEADS, TOKENS, WIDTH = 2, 37, 5
MIB = 2**18  # floats


class Attention(nn.Module):
    """One attention layer without projections, which counts the calls of its filter."""

    def __init__(self, filter: nn.Module, dense: bool) -> None:
        super().__init__()
        self.filter, self.dense = filter, dense
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        A = Softmax(x, x)
        return self.filter(A.dense() if self.dense else A, self.scale * x)


def inputs(batch: int = 1):
    return (torch.randn(batch, HEADS, TOKENS, WIDTH),)


@pytest.mark.parametrize("dense", [False, True])
def test_a_filter_adds_the_product_that_it_applies(dense):
    product = HEADS * TOKENS**2 * WIDTH
    once = product if dense else 2 * product  # the map itself is made anew where it is fused
    formed = product if dense else 0
    assert count_macs(Attention(Plain(HEADS), dense), inputs()) == formed + once
    assert count_macs(Attention(GFSA(HEADS), dense), inputs()) == formed + 2 * once


def test_counting_leaves_the_model_alone():
    layer = Attention(GFSA(HEADS), False).train()
    count_macs(layer, inputs())
    assert layer.training
    assert layer.scale.device.type == "cpu"
    layer(*inputs()).sum().backward()


def test_the_parameters_of_a_mechanism_are_counted_apart():
    counts = efficiency.count_parameters(Attention(GFSA(HEADS), False))
    assert counts == {"parameters": 1 + HEADS, "extra_parameters": HEADS}


def test_a_training_step_holds_weights_gradients_and_the_state_of_the_optimiser():
    fabric, size = Fabric(accelerator="cpu", devices=1), 2**10 * 2**8 / 2**18
    layer = nn.Linear(2**10, 2**8, bias=False)
    peak = measure_speed(layer, (torch.randn(1, 2**10),), fabric, repeats=1)["train_peak_mib"]
    assert 4 * size < peak < 4.1 * size  # AdamW keeps two moments


def test_what_a_kernel_adds_to_the_loss_belongs_to_a_training_step(monkeypatch):
    layer, called = SelfAttention(8, 2, kernel=AGF), []
    penalty = layer.kernel.penalty
    monkeypatch.setattr(layer.kernel, "penalty", lambda A: called.append(A) or penalty(A))
    measure_speed(layer, (torch.randn(2, 5, 8),), Fabric(accelerator="cpu", devices=1), repeats=1)
    assert len(called) == efficiency.WARM_UP + 1 + 1  # one is timed, and one weighed
    assert called[0].U.requires_grad


def test_the_peak_is_what_is_held_at_once_and_not_what_is_made_in_all():
    def step():
        for size in (3 * MIB, 2 * MIB):
            torch.zeros(size).clone()  # both at once, then neither

    assert peak_allocated_mib(step, "cpu") == 6.0
    assert peak_allocated_mib(lambda: None, "cpu") == 0
