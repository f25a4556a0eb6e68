"""Fixtures of the tests of launchers."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.launch.clusters import start_nodes


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray of two nodes on this machine; the test is skipped where Ray is not installed."""
    yield from start_nodes(monkeypatch)
