"""The table that the tests of tables and reports render."""

from pathlib import Path

import pytest
from experiment_kit import tables

SPEC = Path(__file__).parents[2] / "apps/sequence/papers/agf-table-1.yaml"


@pytest.fixture(scope="module")
def spec():
    return tables.load_spec(SPEC)


@pytest.fixture(scope="module")
def paper():
    return tables.load("agf-table-1")
