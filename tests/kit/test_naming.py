"""A run is named by what it trains, whatever was typed."""

import pytest
from attention_core import GFSA
from experiment_kit.app_cli import AppCLI

from tests.apps.cases import SEQUENCE, VISION
from tests.apps.tiny import arguments


class Mine(GFSA):
    """A filter of a user."""


ROWS = ["--model.kernel.pin_theta0=false", "--model.kernel.basis=legendre"]  # in `at`


@pytest.mark.parametrize(("extra", "name"), [
    (["--model.filter=GFSA"], "gfsa"),
    (["--model.filter=attention_core.filters.gfsa.GFSA"], "gfsa"),
    (["--model.filter=attention_core.GFSA", "--model.filter.K=5"], "GFSA-K5"),
    (["--model.filter={class_path: attention_core.GFSA, init_args: {K: 4}}"], "GFSA-K4"),
    (["--model.filter=tests.kit.test_naming.Mine"], "Mine"),
    (["-c", "method/centered", "--model.filter=GFSA"], "gfsa"),
    (["-c", "method/gfsa", "--model.filter.K=5"], "GFSA-K5"),
    (["-c", "method/gfsa", "--model.layers=2:"], "GFSA-layers2"),
    (["-c", "method/gfsa", "--model.layers=0,1"], "GFSA-layers01"),
    (["-c", "method/agf", *ROWS], "agf"),
    (["-c", "method/agf", *ROWS[1:]], "AGF-basislegendre-gamma0.01"),
    (["--model.filter=attention_core.CenteredAttention"], "centered"),
    (["-c", "method/gfsa", "--model.filter=Plain"], "plain"),
    (["--model.filter=GFSA", "--run.method=my_name"], "my_name"),
    (["--model.kernel=AGF"], "AGF"),
])  # fmt: skip
def test_a_method_has_the_name_of_the_mechanism_that_runs(extra, name, tmp_path) -> None:
    cli = AppCLI(SEQUENCE.app, ["fit", *arguments(tmp_path, *extra)])
    assert cli.run.parse(cli.run.folder).method == cli.settings.run.method == name


def test_a_network_and_its_data_have_their_names() -> None:
    small = ["-c", "base", "-c", "data/digits", "-c", "backbone/deit_tiny"]
    pico = [*small, "--model.backbone=vit_pico", "--model.filter=GFSA"]
    recipe = ["-c", "data/imagenet_1k", "-c", "backbone/deit_small", "-c", "method/gfsa"]
    layers = ["-c", "data/imagenet_100", "-c", "backbone/deit_tiny", "-c", "method/agf"]
    layers += ["--model.layers=-1:", "--model.kernel.init_args={K: 4, gamma: 0.0}"]
    for args, names in (
        ([*small[:2], *recipe, "--model.filter.K=4"], ("imagenet_1k", "deit_small", "gfsa")),
        ([*small[:2], *layers], ("imagenet_100", "deit_tiny", "agf")),
        (small, ("digits", "deit_tiny", "plain")),
        ([*small, "--model.backbone=cait_xxs24_224"], ("digits", "cait_xxs24", "plain")),
        ([*small[:2], "--data.dataset_name=digits"], ("digits", "deit_tiny_patch16_224", "plain")),
        (pico, ("digits", "vit_pico", "gfsa")),
    ):
        run = AppCLI(VISION.app, ["fit", *args]).run
        assert run.parse(run.folder)[1:4] == names
