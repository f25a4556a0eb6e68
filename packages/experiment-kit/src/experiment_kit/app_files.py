"""The configs and table specs inside the installed apps, found without importing an app.

An app is a package `attention_<app>` that holds `configs/base.yaml`.
"""

import re
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

PREFIX = "attention_"


def list_apps() -> list[str]:
    """List the installed apps."""
    names = {module.name for module in iter_modules() if module.name.startswith(PREFIX)}
    return sorted(name.removeprefix(PREFIX) for name in names if has_configs(name))


def find_app_folder(app: str) -> Path | None:
    """Return the folder of an app's package; None if there is no such app."""
    package = f"{PREFIX}{app}"
    return find_package(package) if has_configs(package) else None


def has_configs(package: str) -> bool:
    """Say if a package is installed and holds the configs of an app."""
    folder = find_package(package)
    return folder is not None and (folder / "configs/base.yaml").is_file()


def find_package(name: str) -> Path | None:
    """Return the folder of an installed package; None for a module of one file, or for none."""
    # a dot would import the parent
    spec = find_spec(name) if name.isidentifier() else None
    locations = (spec and spec.submodule_search_locations) or []
    return next((Path(location).absolute() for location in locations), None)


def find_config(package: str, name: str) -> Path | None:
    """Return the config of an app that `-c NAME` names, as `base` or `method/gfsa`; None for none.

    A name with a dot is a file of the user.
    """
    folder = find_package(package) if re.fullmatch(r"[\w-]+(/[\w-]+)?", name) else None
    path = folder and folder / "configs" / f"{name}.yaml"
    return path if path and path.is_file() else None


def find_table_specs(app: str) -> list[Path]:
    """Return the files that describe the tables of an app, in the order of their names."""
    folder = find_app_folder(app)
    return sorted(folder.glob("papers/*.yaml")) if folder else []
