"""Overlay names become arguments, and each data set brings the defaults of its experiments."""

import pytest
from experiment_kit.app_files import list_apps
from experiment_kit.errors import UserError
from experiment_kit.launch import overlays
from experiment_kit.launch.overlays import fill_defaults, overlay_arguments


def test_per_dataset_settings_follow_the_data_set() -> None:
    chosen = {"backbone": "uea", "method": "agf", "profile": "paper"}
    args = overlay_arguments("sequence", data="uwave_gesture_library", **chosen)
    assert "--model.kernel.init_args.K=10" in args
    assert "--model.kernel.init_args.pin_theta0=true" in args
    args = overlay_arguments("sequence", data="basic_motions", **chosen)
    assert not any("init_args" in argument for argument in args)


def test_settings_and_recipes_may_depend_on_backbone_and_method(tmp_path, monkeypatch) -> None:
    files = {
        "base": "seed_everything: 0",
        "backbones": "{bert: {}, albert: {}}",
        "data/cola": "defaults: {backbone: bert, recipe: r, by_backbone: {albert/gfsa: {recipe: g},"
        " al*: {recipe: a}, '*/gfsa': {recipe: p}}}",
        "data/rte": "{}",
        "methods": "base: {at: {'*/al*, x': {model.f: {K: 2, w0: 1}}, cola: {model.f: {K: 4}}}}\n"
        "gfsa: {extends: base, at: {cola/albert: {model.f.K: 10}, cola/*/glue: {model.f: {K: 3}}}}",
        "recipes": "glue: {}",
    }
    for name, text in files.items():
        path = tmp_path / f"attention_new/configs/{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def find_settings(data: str, backbone: str, recipe: str = "") -> list[str]:
        chosen = {"data": data, "backbone": backbone, "recipe": recipe, "method": "gfsa"}
        arguments = overlay_arguments("new", **chosen)
        found = dict(a.split("=") for a in arguments if a.startswith("--"))  # the last wins
        return [f"{key}={value}" for key, value in found.items()]

    with pytest.raises(UserError, match="name a backbone: data rte has no default"):
        fill_defaults("new", "rte")
    assert find_settings("cola", "albert") == ["--model.f.K=10", "--model.f.w0=1"]
    assert find_settings("cola", "bert") == ["--model.f.K=4"]
    assert find_settings("cola", "bert", "glue") == ["--model.f.K=3"]
    assert find_settings("rte", "albert") == ["--model.f.K=2", "--model.f.w0=1"]
    assert find_settings("rte", "bert") == []
    pairs = [("bert", None), ("bert", "gfsa"), ("albert", "gfsa"), ("albert", "plain")]
    chosen = [fill_defaults("new", "cola", backbone=b, method=m)["recipe"] for b, m in pairs]
    assert chosen == ["r", "p", "g", "a"]


@pytest.mark.parametrize(("app", "chosen", "message"), [
    ("sequence", {"method": "gsfa"}, r"no method 'gsfa' in sequence \(did you mean gfsa\?\); "),
    ("sequence", {"data": "jv"}, "no data 'jv' in sequence; there are: basic_motions"),
    ("video", {}, r"no installed app named .video.*allowed: .*sequence"),
])  # fmt: skip
def test_an_unknown_name_is_answered_with_those_that_exist(app, chosen, message) -> None:
    with pytest.raises(UserError, match=message):
        overlay_arguments(app, **chosen)


@pytest.mark.parametrize("app", list_apps())
def test_every_data_set_names_overlays_of_its_app(app) -> None:
    for data in (overlays.read_defaults(app)["data"], *overlays.list_overlays(app, "data")):
        for chosen in ({}, {"profile": "paper"}):
            for kind, name in fill_defaults(app, data, **chosen).items():
                assert name in ("", "paper", *overlays.list_overlays(app, kind)), data
