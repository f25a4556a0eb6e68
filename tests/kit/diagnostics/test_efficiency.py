"""What a model costs, counted by hand where a hand can count it."""

import json

import pytest
import torch
from attention_core import AGF, GFSA, Plain, SelfAttention, Softmax
from attention_sequence.__main__ import APP
from experiment_kit.efficiency import WARM_UP, main, multiply_adds, parameters, speed
from lightning.fabric import Fabric
from torch import nn

from tests.apps.tiny import arguments

HEADS, TOKENS, WIDTH = 2, 37, 5


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
def test_squaring_a_map_replaces_the_second_product(dense):
    product = HEADS * TOKENS**2 * WIDTH
    once = product if dense else 2 * product  # the map itself is made anew where it is fused
    formed = product if dense else 0
    plain = multiply_adds(Attention(Plain(HEADS), dense), inputs())
    executed, literal = multiply_adds(Attention(GFSA(HEADS), dense), inputs())
    assert plain == (formed + once, formed + once)
    assert executed == formed + 2 * once
    assert literal == formed + once + HEADS * TOKENS**3


def test_counting_leaves_the_model_alone():
    layer = Attention(GFSA(HEADS), False).train()
    multiply_adds(layer, inputs())
    assert layer.training
    assert layer.scale.device.type == "cpu"
    assert not layer.filter._forward_hooks
    layer(*inputs()).sum().backward()


def test_the_parameters_of_a_mechanism_are_counted_apart():
    layer = Attention(GFSA(HEADS), False)
    assert parameters(layer) == {"parameters": 1 + HEADS, "extra_parameters": HEADS}


def test_speed_is_of_samples_in_both_directions():
    fabric = Fabric(accelerator="cpu", devices=1)
    found = speed(Attention(GFSA(HEADS), False), inputs(4), fabric, repeats=2)
    for way in ("", "train_"):
        rate, seconds = found[f"{way}samples_per_second"], found[f"{way}seconds_per_sample"]
        assert rate * seconds == pytest.approx(1)
        assert 0 < seconds < 1


def test_a_training_step_holds_weights_gradients_and_the_state_of_the_optimiser():
    fabric, size = Fabric(accelerator="cpu", devices=1), 2**10 * 2**8 / 2**18
    layer = nn.Linear(2**10, 2**8, bias=False)
    peak = speed(layer, (torch.randn(1, 2**10),), fabric, repeats=1)["train_peak_mib"]
    assert 4 * size < peak < 4.1 * size  # AdamW keeps two moments


def test_what_a_kernel_adds_to_the_loss_belongs_to_a_training_step(monkeypatch):
    layer, called = SelfAttention(8, 2, kernel=AGF), []
    penalty = layer.kernel.penalty
    monkeypatch.setattr(layer.kernel, "penalty", lambda A: called.append(A) or penalty(A))
    speed(layer, (torch.randn(2, 5, 8),), Fabric(accelerator="cpu", devices=1), repeats=1)
    assert len(called) == WARM_UP + 1 + 1  # one is timed, and one weighed
    assert called[0].U.requires_grad


def parts(module, data):
    return Attention(GFSA(HEADS), False), inputs


def test_the_numbers_lie_in_the_folder_of_the_run(tmp_path, capsys):
    options = ["--device=cpu", "--batch_size=3", "--repeats=1"]
    main(APP, parts, [*arguments(tmp_path, method="gfsa"), *options])
    (path,) = tmp_path.rglob("efficiency.json")
    assert path.parent.parent.name == "gfsa"
    report = json.loads(path.read_text())
    assert (report["device"], report["batch_size"], report["repeats"]) == ("cpu", 3, 1)
    assert report["precision"] == "32-true"
    assert report["environment"]["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert report["metrics"]["extra_parameters"] == HEADS
    assert str(path) in capsys.readouterr().out


def test_the_recipes_batch_is_measured_where_an_app_asks_for_it(tmp_path):
    options = [*arguments(tmp_path, method="gfsa"), "--device=cpu", "--repeats=1"]
    for more, size in (([], 16), (["--batch_size=3"], 3)):
        main(APP, parts, [*options, *more], batch_size=lambda data: data.batch_size)
        (path,) = tmp_path.rglob("efficiency.json")
        assert json.loads(path.read_text())["batch_size"] == size


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--device=gpu", "invalid choice: 'gpu'"),
        ("--repeats=many", "invalid int value: 'many'"),
        ("--repeats=0", "--repeats and --batch_size must be at least 1"),
        ("--model.widht=3", "unrecognized arguments: --model.widht=3"),
        ("--model.filter.init_args.K=0", "order K must be a whole number of at least 1, got 0"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(tmp_path, capsys, option, sentence):
    with pytest.raises(SystemExit) as left:
        main(APP, parts, [*arguments(tmp_path, method="gfsa"), option])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
