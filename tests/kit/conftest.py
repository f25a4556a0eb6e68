"""The table that the tests of papers measure and render."""

from pathlib import Path

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
def unsaved(monkeypatch):
    """Let pages draw their figures without saving them, which takes most of the time."""
    name = "experiment_kit.pages.tables.render_figure"
    monkeypatch.setattr(name, lambda draw, theme: draw() and b"")


def make_results(*measurements, spec=None, table="agf-table-1"):
    """Make the results of measurements, which are given by what differs from a first one."""
    spec, none = spec or find_spec(table), results.read_results(Path("absent.csv"))
    found = [make_measurement(**{"table": table, **fields}) for fields in measurements]
    return results.TableResults(spec, results.add_measurements(none, found, spec))


def make_measurement(**fields):
    first = {
        **{"table": "agf-table-1", "row": "agf", "column": "heartbeat", "profile": "small"},
        **{"protocol": "validation", "seed": 0, "value": 70.0, "run": "0123456789"},
    }
    return first | {"commit": "unknown", "weights_source": ""} | fields
