"""The table that the tests of papers measure and render."""

import pytest
from experiment_kit.papers import results
from experiment_kit.papers.spec import find_spec
from experiment_kit.papers.values import load_table


@pytest.fixture(scope="session")
def spec():
    return find_spec("agf-table-1")


@pytest.fixture(scope="session")
def paper():
    return load_table("agf-table-1")


@pytest.fixture
def make_results(spec, paper, tmp_path):
    """Make the results of measurements, which are given by what differs from a first one."""

    def make(*measurements, spec=spec):
        new = results.collect_results([make_measurement(**m) for m in measurements], spec, paper)
        old = results.read_results(tmp_path / "absent.csv")
        return results.TableResults(spec, paper, results.merge_results(old, new, spec, paper))

    return make


def make_measurement(**fields):
    first = {
        **{"table": "agf-table-1", "row": "agf", "column": "heartbeat", "profile": "small"},
        **{"protocol": "validation", "seed": 0, "value": 70.0, "run": "0123456789"},
    }
    return results.Measurement(**first | fields)
