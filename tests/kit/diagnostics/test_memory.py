"""Peak memory, counted by hand."""

import pytest
import torch
from experiment_kit.memory import allocated, held

MIB = 2**18  # float32 numbers


def test_the_peak_is_what_is_held_at_once_and_not_what_is_made_in_all():
    def step():
        for size in (3 * MIB, 2 * MIB):
            torch.zeros(size).clone()  # both at once, then neither

    assert allocated(step, "cpu") == 6.0


def test_operands_are_held_apart_from_the_step():
    weight = torch.ones(2 * MIB, requires_grad=True)
    assert held([weight, weight[1:]]) == 2.0
    assert allocated(lambda: (weight * 3).detach(), "cpu") == pytest.approx(2.0, rel=1e-4)


def test_a_step_that_makes_nothing_takes_nothing():
    assert allocated(lambda: None, "cpu") == 0
    assert held([]) == 0
