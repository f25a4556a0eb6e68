"""A plan finds the runs that the processes of its experiments find by themselves."""

from dataclasses import replace

import pytest
from experiment_kit.app_cli import AppCLI
from experiment_kit.launch.plan import ConfigPlanner, Experiment, load_app, plan_runs
from experiment_kit.papers.spec import find_spec
from experiment_kit.run import Run

from tests.kit.tiny import APP, arguments


@pytest.mark.parametrize("table", ["agf-2", "gfsa-1", "gfsa-4", "gfsa-6", "gfsa-30"])
def test_a_cell_has_the_run_of_its_own_parse(table) -> None:
    spec = find_spec(table.replace("-", "-table-"))
    rows, columns = [*spec.all_rows][-2:], [*spec.columns][:2]
    cells = spec.list_cells("small" if table < "g" else "paper", seeds=[0, 1], rows=rows,
                            columns=columns)  # fmt: skip
    runs = plan_runs(cell.experiment for cell in cells)
    last = [*runs][-1]
    assert runs[last] == AppCLI(load_app(last.app), ["fit", *last.arguments()]).run
    named = {e: Run.parse(run.folder) for e, run in runs.items()}
    assert all(name[1:3] == (e.data, e.backbone) for e, name in named.items())
    assert all(name.method == e.method for e, name in named.items() if not e.args)


@pytest.mark.parametrize("extra", [
    "--trainer.limit_test_batches=1",
    "--trainer.limit_test_batches=1.0",
    "--trainer.callbacks+=Timer",
    "--model.filter.K=4",
    "--data.init_args.batch_size=3",
])  # fmt: skip
def test_arguments_of_a_comparison_are_in_the_hash(extra) -> None:
    first = Experiment(app="sequence", data="japanese_vowels", backbone="uea", method="gfsa")
    experiments = [replace(first, seed=s, args=a) for a in ((), (extra,)) for s in (0, 1)]
    runs = plan_runs(experiments)
    assert len({run.folder for run in runs.values()}) == 4
    own = AppCLI(load_app("sequence"), ["fit", *experiments[-1].arguments()]).run
    assert runs[experiments[-1]] == own


PRETRAINING = Experiment(
    app="nlp", data="python_docs", backbone="crammed_tiny", method="plain", recipe="crammed"
)


def test_a_run_is_identified_by_the_hash_and_the_seed_of_the_one_that_it_starts_from() -> None:
    tuning = replace(PRETRAINING, data="cb", recipe="superglue", start=PRETRAINING)
    changes = {}, {"seed": 1}, {"method": "smoothing"}, {"args": ("--model.weight_decay=0",)}
    starts = [*(replace(PRETRAINING, **change) for change in changes), None]
    tunings = [replace(tuning, start=start) for start in starts]
    runs, moved = (plan_runs(tunings, folder) for folder in ("runs", "/another/place"))
    names = [runs[e].folder.name for e in tunings]
    assert len({*names}) == 5
    assert names == [moved[e].folder.name for e in tunings]
    assert [*runs][:2] == [PRETRAINING, tuning]
    command = tuning.arguments("/another/place")
    assert f"--model.weights={moved[PRETRAINING].folder}" in command
    assert AppCLI(load_app("nlp"), ["fit", *command]).run == moved[tuning]


def test_linked_options_follow_their_sources() -> None:
    planner = ConfigPlanner(APP)
    width, seed, found = "--model.dim=8", "--seed_everything=3", []
    for extra in ((), (width,), (seed,), (width, seed)):
        args = arguments("runs", *extra)
        found.append(planner.app.find_run(planner.merge_config(args)))
        assert found[-1] == AppCLI(APP, ["fit", *args]).run
    assert len(planner.configs) == 2  # seeds share a parse
    assert len({run.folder for run in found}) == 4


def test_a_file_of_weights_is_in_the_hash(tmp_path) -> None:
    (path := tmp_path / "weights").write_text("a")
    app = replace(APP, hashed_files=("model.weights_source",))
    planner, args = ConfigPlanner(app), arguments("runs", f"--model.weights_source={path}")
    first = app.find_run(planner.merge_config(args))
    assert first == AppCLI(app, ["fit", *args]).run
    path.write_text("bc")
    assert app.find_run(planner.merge_config(args)) != first
