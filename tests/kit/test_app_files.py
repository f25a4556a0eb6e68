"""Apps are found by their packages, and their configs by short names."""

import subprocess
import sys
from pathlib import Path

import pytest
from experiment_kit.app_files import find_app_folder, find_config, list_apps
from experiment_kit.launch.overlays import overlay_arguments

from tests.apps.tiny import arguments


@pytest.mark.parametrize("name", ["", "core", "a/b", "sequence.data", "../apps/sequence", "none"])
def test_what_is_no_app_has_no_folder(name: str) -> None:
    assert find_app_folder(name) is None


@pytest.mark.parametrize("name", ["", "base.yaml", "gfsa", "method/none", "../configs/base"])
def test_a_file_of_the_user_is_no_config_of_the_app(name: str) -> None:
    assert find_config("attention_sequence", name) is None


def test_listing_and_finding_apps_imports_none() -> None:
    code = (
        "import sys; from experiment_kit.app_files import find_table_specs, list_apps;"
        "assert all(find_table_specs(app) for app in list_apps());"
        "assert not [name for name in sys.modules if name.startswith('attention_')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_package_of_the_prefix_without_configs_is_no_app(tmp_path, monkeypatch) -> None:
    for name in ("attention_one/configs/base.yaml", "attention_two/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    (tmp_path / "attention_one/__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert {"one", "two"} & {*list_apps()} == {"one"}


def test_a_short_name_is_the_file_of_the_app(tmp_path) -> None:
    from attention_sequence import APP
    from experiment_kit.cli import AppCLI

    given = arguments(tmp_path, method="gfsa")
    folder = find_app_folder("sequence")
    short = [_shorten(argument, folder / "configs") for argument in given]
    assert "method/gfsa" in short
    runs = [AppCLI(APP, ["fit", *args]).run.folder for args in (given, short)]
    assert runs[0] == runs[1]


def _shorten(argument: str, folder: Path) -> str:
    return argument.removeprefix(f"{folder}/").removesuffix(".yaml")


def test_the_launcher_names_files_that_any_folder_can_read(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = [a for a in overlay_arguments("sequence", method="gfsa") if a.endswith(".yaml")]
    assert len(files) == 2
    assert all(Path(file).is_absolute() for file in files)
