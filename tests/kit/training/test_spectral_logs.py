"""What a measurement becomes in the loggers, and which coefficients it has."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from attention_core import AGF, GFSA, SelfAttention, diagnose
from attention_core.plots.depth import PROFILE
from experiment_kit.training.spectral_logs import (
    collect_coefficients,
    describe_coefficients,
    draw_measures,
    find_compared,
    name_scalars,
)
from experiment_kit.training.spectral_monitor import list_measures
from torch import nn
from torch.utils.tensorboard import SummaryWriter

DIM, HEADS = 8, 2


def measure(*layers: nn.Module) -> dict:
    """The measures of attention layers, one after the other."""
    model = nn.Sequential(*layers)
    report = diagnose(model, torch.randn(3, 7, DIM), mechanisms=[])
    return list_measures(report) | collect_coefficients(model)


def filtered() -> SelfAttention:
    return SelfAttention(DIM, HEADS, filter=lambda heads: GFSA(heads, wK=0.25))


@pytest.mark.parametrize("singular_values", ["filtered", "generated", "learned", "ones"])
def test_every_ablation_of_agf_is_logged(singular_values: str, tmp_path) -> None:
    kernel = lambda dim, heads: AGF(dim, heads, singular_values=singular_values)  # noqa: E731
    measures = measure(filtered(), SelfAttention(DIM, HEADS, kernel=kernel))
    with SummaryWriter(tmp_path) as board:
        draw_measures([SimpleNamespace(experiment=board)], 1, measures, tmp_path)
    # MLflow refuses other names
    assert all(re.fullmatch(r"[\w\-./ :]+", key) for key in name_scalars(measures))
    has_coefficients = singular_values in ("filtered", "learned")
    assert ("1.kernel.theta" in measures["coefficients"]) == has_coefficients


def test_tags_have_the_layer_of_tokens_and_of_trained_coefficients() -> None:
    coefficients = {"b.0.filter.w0": [0.0, 0.0], "b.2.filter.wK": [1.0, 3.0], "t.tokens.s": [2.0]}
    depth = [dict.fromkeys(PROFILE, value) for value in (0.5, 9.0, 1.0, 9.0, 2.0)]
    measures = {"depth": depth, "coefficients": coefficients, "frozen": ["b.0.filter.w0"]}
    measures |= {"attention": ["b.0", "b.1", "b.2"]}
    scalars = name_scalars(measures)
    places = {"embedding": 0.5, "layer_01": 1.0, "layer_03": 2.0}
    assert scalars == {
        **{f"val/smoothing/{name}/{place}": x for name in PROFILE for place, x in places.items()},
        "weights/wK/layer_02": 2.0,
        "weights/s/layer_00": 2.0,
    }


def test_other_methods_stand_in_the_figures_of_a_run(tmp_path: Path) -> None:
    runs = tmp_path / "vision" / "digits-vit"
    for place in ("gfsa/seed-0-0123456789", "plain/seed-0-aaaaaaaaaa", "agf/seed-1-bbbbbbbbbb"):
        (runs / place).mkdir(parents=True)
    (runs / "plain/seed-0-aaaaaaaaaa/spectral.json").write_text(json.dumps({"depth": [1]}))
    (runs / "agf/seed-1-bbbbbbbbbb/spectral.json").write_text("{half")
    found = find_compared(runs / "gfsa/seed-0-0123456789", {"depth": [0]})
    assert found == {"gfsa": {"depth": [0]}, "plain": {"depth": [1]}}
    assert find_compared(tmp_path, {"depth": [0]}) == {"": {"depth": [0]}}  # a trainer of a user


def test_every_logger_gets_what_it_can_draw() -> None:
    drawn: list[str] = []
    board = SimpleNamespace(add_figure=lambda tag, figure, step, close: drawn.append(tag))
    loggers = [SimpleNamespace(experiment=x) for x in (None, board, object())]
    draw_measures(loggers, 3, measure(filtered()), Path())
    depths = [f"val/smoothing_by_depth/{name}" for name in PROFILE]
    assert drawn == [*depths, "weights/frequency_response"]


def test_the_ranges_of_coefficients_are_shown() -> None:
    now = {"0.filter.wK": [0.1, 0.1], "1.filter.wK": [-0.5, -0.3]}
    measures = {"coefficients": now, "frozen": [], "attention": []}
    assert describe_coefficients(measures) == "coefficients: wK is -0.4 to 0.1 by layer"
