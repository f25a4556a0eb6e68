"""Every cell of every table has the run that its own command line is parsed to."""

from collections.abc import Iterator

import pytest
from experiment_kit.app_files import find_table_specs, list_apps
from experiment_kit.launch.plan import Experiment, load_app, plan_runs
from experiment_kit.papers.spec import TableSpec, load_spec
from experiment_kit.run import Run

from tests.kit.launch.test_plan import find_own_run

SPECS = [path for app in list_apps() for path in find_table_specs(app)]


def parse_run(e: Experiment):
    return find_own_run(load_app(e.app), e.arguments())


def list_experiments(spec: TableSpec, profile: str) -> Iterator[Experiment]:
    """List the whole table for seed 0, and the first protocol for another seed."""
    for protocol in spec.protocols:
        for cell in spec.list_cells(profile, protocol, [0]):
            yield cell.experiment
    for cell in spec.list_cells(profile, next(iter(spec.protocols)), [7]):
        yield cell.experiment


@pytest.mark.robustness
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("profile", ["paper", "small"])
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_cell_has_the_run_of_its_own_parse(path, profile) -> None:
    runs = plan_runs(list_experiments(load_spec(path), profile))
    found = {e: parse_run(e) for e in runs if runs[e].folder.name.startswith("seed-0")}
    *_, last = runs  # has the other seed
    found[last] = parse_run(last)
    assert found == {experiment: runs[experiment] for experiment in found}
    named = {e: tuple(Run.parse(run.folder)[1:4]) for e, run in runs.items()}
    assert named == {e: (e.data, e.backbone, e.method) for e in runs}
    print(f"{path.stem} {profile}: {len(found)} cells agree")
