"""Grids: which runs they make, which options a method has, and what is refused before training."""

import pytest
from experiment_kit.app_files import list_apps
from experiment_kit.commands import compare as launch
from experiment_kit.launch.options import expand_grid, find_path, read_grid
from experiment_kit.launch.overlays import list_overlays, read_overlay
from experiment_kit.launch.plan import Experiment, plan_configs, plan_runs

from tests.processes import run_allpass

METHODS = ("plain", "gfsa", "featscale")


def make_experiments(seeds=(0,), methods=METHODS) -> list[Experiment]:
    names = {"app": "sequence", "data": "japanese_vowels", "backbone": "uea", "profile": "small"}
    return [Experiment(method=m, seed=s, **names) for s in seeds for m in methods]


def expand(text: str, **chosen) -> list[Experiment]:
    return expand_grid(make_experiments(**chosen), read_grid("sequence", text))


def test_every_value_is_a_run_of_the_methods_that_have_the_option() -> None:
    found = expand("model.filter.K=2,4", seeds=(0, 1))
    one_seed = ["plain", "gfsa K=2", "gfsa K=4", "featscale"]
    assert [(e.name, e.seed) for e in found] == [(n, s) for s in (0, 1) for n in one_seed]
    assert len({run.folder for run in plan_runs(found).values()}) == len(found)
    assert plan_configs(found)[found[2]]["model"]["filter"]["init_args"]["K"] == 4


def test_several_grids_multiply_and_a_value_may_be_a_list() -> None:
    found = expand("model.filter.K=2,3 model.filter.learn=[wK],[w0,wK]", methods=["gfsa"])
    names = [f"gfsa K={K} learn={x}" for K in (2, 3) for x in ('["wK"]', '["w0", "wK"]')]
    assert [e.name for e in found] == names
    found = expand("model.filter.K=2,3 model.dropout=0.1,0.2")
    others = [f"{method} dropout={p}" for method in ("plain", "featscale") for p in (0.1, 0.2)]
    assert [e.name for e in found if "gfsa" not in e.name] == others
    assert len(found) == 2 + 4 + 2


def test_a_value_that_is_the_default_is_the_run_of_the_default() -> None:
    _, first, _ = expand("model.filter.K=3,4", methods=["plain", "gfsa"])
    (default,) = make_experiments(methods=["gfsa"])
    assert len({*plan_runs([first, default]).values()}) == 1


def test_a_file_is_found_by_its_name_or_its_path(tmp_path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("model.filter.K: [2, 3]\nmodel.layers: ['1:', ':']\n")
    own = {"model.filter.K": ["2", "3"], "model.layers": ["1:", ":"]}
    assert read_grid("sequence", str(path)) == own
    assert read_grid("sequence", "a=2,2,3") == {"a": ["2", "3"]}
    named = read_grid("sequence", f"agf_lra {path}")
    assert named["model.kernel.K"] == ["2", "3", "4", "5"]
    assert own.items() <= named.items()


@pytest.mark.parametrize(
    ("app", "name"), [(app, name) for app in list_apps() for name in list_overlays(app, "grid")]
)
def test_a_grid_of_an_app_has_options_of_a_method(app: str, name: str) -> None:
    grid = read_overlay(app, "grid", name)
    method = next(iter({*name.split("_")} & {*list_overlays(app, "method")}), "plain")
    names = {"data": "digits", "backbone": "deit_tiny"} if app == "vision" else (
        {"data": "cola", "backbone": "bert_tiny"} if app == "nlp" else
        {"data": "listops", "backbone": "lra"})  # fmt: skip
    (config,) = plan_configs([Experiment(app=app, method=method, **names)]).values()
    assert all(find_path(config, key) for key in grid)
    assert all(len({*values}) == len(values) > 1 for values in grid.values())


@pytest.mark.parametrize(("grid", "sentence"), [
    ("model.filter.L=2", "none of plain, gfsa, featscale has the option model.filter.L "
     "(did you mean"),
    ("model.filter.K=2,,3", "model.filter.K: Expected a <class 'int'>"),
    ("model.layers=[", "--grid=model.layers=[: while parsing a flow sequence"),
    ("model.filter.K=2 model.filter.K=3", "--grid has model.filter.K twice"),
    ("nogrid", "no grid 'nogrid' in sequence; there are: agf_lra, agf_uea"),
    ("apps/sequence/src/attention_sequence/configs/base.yaml", "must be a list of values, got"),
])  # fmt: skip
def test_a_bad_grid_is_one_sentence(grid, sentence, monkeypatch, tmp_path, read_error) -> None:
    monkeypatch.setattr(launch, "run_missing", lambda *_: pytest.fail("it trains"))
    command = ["compare", "sequence", f"--methods=[{','.join(METHODS)}]", f"--folder={tmp_path}"]
    assert sentence in read_error(run_allpass, *command, f"--grid={grid}")
