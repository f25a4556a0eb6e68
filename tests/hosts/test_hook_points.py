"""The tables of all hosts name classes that exist: a renamed class would go unnoticed otherwise."""

from importlib import import_module

import pytest
from attention_core.hosts.hook_points import HOSTS, TABLES


def import_class(path: str) -> type:
    home, _, name = path.rpartition(".")
    return getattr(import_module(home), name)


@pytest.mark.parametrize("library", HOSTS)
def test_hook_points_and_adapters_are_of_existing_classes_in_known_tables(library):
    module = import_module(f"attention_core.hosts.{library}")
    host = module.HOST
    assert set(host.hook_points) <= {table for tables in TABLES.values() for table in tables}
    for points in host.hook_points.values():
        assert all(isinstance(import_class(path), type) for path in points)
    for host_class, adapter in getattr(module, "ADAPTERS", {}).items():
        assert host.find_adapter(host_class) is adapter
        assert issubclass(adapter, host_class)
        assert adapter.host_class is host_class
