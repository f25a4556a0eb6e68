"""Overlay names become arguments, and each data set brings the defaults of its experiments."""

import pytest
from experiment_kit.app_files import list_apps
from experiment_kit.errors import UserError
from experiment_kit.launch import overlays
from experiment_kit.launch.overlays import fill_defaults, overlay_arguments


def test_overlays_come_in_the_documented_order() -> None:
    args = overlay_arguments(
        "sequence", ["--x=1"], profile="small", method="gfsa", data="handwriting", backbone="uea"
    )
    kinds = [a.partition("/")[0] for a in args[:-1] if a != "-c"]
    assert kinds == ["base", "backbone", "data", "method", "profile"]
    assert args[-1] == "--x=1"


def test_per_dataset_settings_follow_the_data_set() -> None:
    chosen = {"backbone": "uea", "method": "agf", "profile": "paper"}
    args = overlay_arguments("sequence", data="uwave_gesture_library", **chosen)
    assert "--model.kernel.init_args.K=10" in args
    assert "--model.kernel.init_args.pin_theta0=true" in args
    args = overlay_arguments("sequence", data="basic_motions", **chosen)
    assert not any("init_args" in argument for argument in args)


def test_settings_and_recipes_may_depend_on_the_backbone_and_the_method(
    tmp_path, monkeypatch
) -> None:
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

    assert find_settings("cola", "albert") == ["--model.f.K=10", "--model.f.w0=1"]
    assert find_settings("cola", "bert") == ["--model.f.K=4"]
    assert find_settings("cola", "bert", "glue") == ["--model.f.K=3"]
    assert find_settings("rte", "albert") == ["--model.f.K=2", "--model.f.w0=1"]
    assert find_settings("rte", "bert") == []
    pairs = [("bert", None), ("bert", "gfsa"), ("albert", "gfsa"), ("albert", "plain")]
    chosen = [fill_defaults("new", "cola", backbone=b, method=m)["recipe"] for b, m in pairs]
    assert chosen == ["r", "p", "g", "a"]


@pytest.mark.parametrize(("app", "chosen", "message"), [
    ("sequence", {"method": "gsfa"}, "no method 'gsfa' in sequence; there are: agf, "),
    ("sequence", {"data": "jv"}, "no data 'jv' in sequence; there are: basic_motions"),
    ("video", {}, r"no app 'video'.*there are: .*sequence"),
])  # fmt: skip
def test_an_unknown_name_is_answered_with_those_that_exist(app, chosen, message) -> None:
    with pytest.raises(UserError, match=message):
        overlay_arguments(app, **chosen)


# app, data sets, then backbone, recipe and profile: of the default backbone, then of others and of
# profile paper; "-" is none
EXPERIMENTS = r"""
graph: synthetic: graphormer_slim short smoke, graphormer_slim short paper
graph: smiles_csv: graphormer_slim short small
graph: esol freesolv lipophilicity: graphormer_slim short small, graphormer_base short small,\
       graphormer_slim short paper
graph: zinc zinc_full: graphormer_slim short small, graphormer_slim zinc paper
graph: pcqm4m pcqm4mv2: graphormer_base pcqm4m -, graphormer_base pcqm4m paper,\
       graphormer_base short small
nlp: docs: bert_tiny scratch smoke, bert_base glue smoke, bert_tiny scratch paper
nlp: cola mnli mrpc qnli qqp rte sst2 stsb: bert_tiny scratch small, bert_base glue -,\
     minilm glue -, bert_tiny scratch paper
nlp: csv_text: bert_tiny scratch small, bert_base glue -
nlp: axb axg boolq cb copa multirc superglue_rte wic wsc: bert_tiny scratch small,\
     bert_base superglue -
nlp: docs_corpus ptb wikitext2 wikitext2_tokens wikitext103 wikitext103_tokens:\
     gpt_tiny clm_scratch small,\
     gpt2 clm -
nlp: python_docs text_files pile: crammed_tiny crammed small_pretraining, crammed_16 crammed -
nlp: devign: code_tiny scratch small, codebert defect -
nlp: devign_generate: code_tiny_t5 scratch small, codet5_base defect_generate -
nlp: bigclonebench: code_tiny scratch small, codebert clone -
sequence: basic_motions ethanol_concentration face_detection handwriting heartbeat japanese_vowels\
    pems_sf self_regulation_scp1 self_regulation_scp2 spoken_arabic_digits uwave_gesture_library:\
    uea - -
sequence: ts_file: uea - -
sequence: image listops pathfinder text text_4k: lra lra -
sequence: listops_drawn: lra lra small
sequence: retrieval: lra_dual lra -
speech: synthetic: transformer_small small smoke, branchformer_small small smoke
speech: an4 fsdd wav_folder: transformer_small small small
speech: librispeech_100h librispeech_960h: transformer released -,\
        branchformer_large released_branchformer -
vision: digits: deit_tiny - smoke
vision: cifar10 cifar100: vit_tiny cifar small, deit_tiny cifar small
vision: tiny_imagenet image_folder: deit_tiny deit_300 -
vision: imagenet_100: deit_tiny contranorm -, cait_s24 cait -, swin_small swin -
vision: imagenet_1k: deit_tiny deit_300 -, deit_small deit_300 -, deit_small_16 contranorm -,\
        deit_small_24 deit_24 -, cait_s24 cait -, cait_xxs24 cait -, swin_small swin -
"""
DATA_SETS = {
    (app, data): experiments.split(",")
    for line in EXPERIMENTS.replace("\\\n", " ").strip().splitlines()
    for app, names, experiments in [line.split(":")]
    for data in names.split()
}


def test_every_data_set_has_defaults() -> None:
    listed = {(app, data) for app in list_apps() for data in overlays.list_overlays(app, "data")}
    assert DATA_SETS.keys() == listed


@pytest.mark.parametrize(("app", "data"), DATA_SETS)
def test_an_experiment_takes_the_defaults_of_its_data_set(app, data) -> None:
    def fill(**chosen: str) -> list[str]:
        return [name or "-" for name in fill_defaults(app, data, **chosen).values()]

    assert fill() == DATA_SETS[app, data][0].split()
    for experiment in DATA_SETS[app, data]:
        backbone, recipe, profile = experiment.split()
        chosen = {"profile": profile} if profile in ("paper", "small") else {}
        assert fill(backbone=backbone, **chosen) == [backbone, recipe, profile]
    assert fill(recipe="", profile="")[1:] == ["-", "-"]


@pytest.mark.parametrize(("backbone", "method", "recipe"), [
    ("deit_small", "gfsa", "deit_300"),
    ("deit_small_24", "gfsa_even", "deit_24_gfsa"),
    ("deit_small_24", "attnscale", "deit_24"),
    ("deit_small_24", "diversepatch", "diversepatch"),
    ("deit_small_24", "contranorm", "contranorm"),
    ("deit_small", "agf", "agf"),
])  # fmt: skip
def test_a_method_brings_the_recipe_of_its_paper(backbone, method, recipe) -> None:
    chosen = fill_defaults("vision", "imagenet_1k", backbone=backbone, method=method)
    assert chosen["recipe"] == recipe


def test_an_app_names_its_first_experiment() -> None:
    pair, alone = ["plain", "gfsa"], ["plain"]
    assert {app: overlays.read_app_defaults(app) for app in list_apps()} == {
        "graph": {"data": "synthetic", "methods": pair},
        "nlp": {"data": "docs", "methods": pair},
        "sequence": {"data": "japanese_vowels", "methods": alone},
        "speech": {"data": "synthetic", "methods": pair},
        "vision": {"data": "digits", "methods": pair},
    }


def test_a_data_set_without_defaults_asks_for_a_backbone(tmp_path, monkeypatch) -> None:
    configs = tmp_path / "attention_new/configs"
    (configs / "data").mkdir(parents=True)
    (configs / "base.yaml").write_text("seed_everything: 0")
    (configs / "data/one.yaml").write_text("data: {}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="name a backbone: data one has no default"):
        fill_defaults("new", "one")
