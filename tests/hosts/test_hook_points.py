"""The tables of all hosts name classes that exist: a renamed class would go unnoticed otherwise."""

from importlib import import_module

import pytest
from attention_core.hook_points import HOSTS, TABLES, HostLibrary


def import_class(path: str) -> type:
    home, _, name = path.rpartition(".")
    return getattr(import_module(home), name)


@pytest.fixture(params=HOSTS)
def library(request) -> str:
    return request.param


@pytest.fixture
def host(library) -> HostLibrary:
    return import_module(f"attention_core.hosts.{library}").HOST


def test_hook_points_are_in_known_tables_and_of_existing_classes(host):
    assert set(host.hook_points) <= {table for tables in TABLES.values() for table in tables}
    for points in host.hook_points.values():
        assert all(isinstance(import_class(path), type) for path in points)


def test_listed_classes_have_an_adapter(library, host):
    for path in HOSTS[library]:
        if not path.endswith("*"):
            host_class = import_class(path)
            adapter = host.find_adapter(host_class)
            assert issubclass(adapter, host_class)
            assert adapter.host_class is host_class
