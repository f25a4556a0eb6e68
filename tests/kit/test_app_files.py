"""Apps are found by their packages, and their configs by short names."""

import pytest
import yaml
from experiment_kit.app_files import find_app_folder, find_config, list_apps
from experiment_kit.errors import UserError
from experiment_kit.launch.overlays import list_overlays, read_overlay

from tests.apps.tiny import arguments


@pytest.mark.parametrize("name", ["", "core", "a/b", "sequence.data", "../apps/sequence", "none"])
def test_what_is_no_app_has_no_folder(name: str) -> None:
    assert find_app_folder(name) is None


@pytest.mark.parametrize("name", ["", "base.yaml", "gfsa", "method/none", "../configs/base"])
def test_a_file_of_the_user_is_no_config_of_the_app(name: str) -> None:
    assert find_config("attention_sequence", name) is None


def test_a_package_of_the_prefix_without_configs_is_no_app(tmp_path, monkeypatch) -> None:
    for name in ("attention_one/configs/base.yaml", "attention_two/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    (tmp_path / "attention_one/__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert {"one", "two"} & {*list_apps()} == {"one"}


def test_a_name_and_a_file_of_its_settings_are_one_run(tmp_path) -> None:
    from attention_sequence import APP
    from experiment_kit.app_cli import AppCLI

    given = arguments(tmp_path, method="gfsa")
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(read_overlay("sequence", "method", "gfsa")))
    named = [str(path) if argument == "method/gfsa" else argument for argument in given]
    runs = [AppCLI(APP, ["fit", *args]).run for args in (given, named)]
    assert runs[0].folder == runs[1].folder


def test_an_entry_may_refine_the_kits_and_a_bad_name_is_a_sentence(tmp_path, monkeypatch) -> None:
    configs = tmp_path / "attention_three/configs"
    configs.mkdir(parents=True)
    (configs / "base.yaml").write_text("{}")
    (configs / "methods.yaml").write_text("plain: {extends: plain, model: {layers: '6:'}}")
    (configs / "recipes.yaml").write_text("long: {extends: shrt}\nshort: {}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="no entry to extend named 'shrt'"):
        read_overlay("three", "recipe", "long")
    plain = read_overlay("three", "method", "plain")
    assert plain["model"]["filter"] == {"class_path": "attention_core.Plain"}
    assert plain["model"]["layers"] == "6:"
    assert plain["run"] == {"method": "plain"}
    assert "agf" not in list_overlays("three", "method")
