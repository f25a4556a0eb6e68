"""Commands that obtain a data set by the name of its overlay, and pretrained weights."""

import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiment_kit.app_files import PREFIX, list_apps, read_entries
from experiment_kit.data.download import (
    WEIGHT_PACKAGES,
    HubFiles,
    download_dataset,
    fetch_hub_files,
)
from experiment_kit.errors import UserError
from experiment_kit.launch.overlays import list_overlays, read_overlay
from experiment_kit.launch.plan import Experiment, find_data, load_app

# commits of weights on the hub; those that are not known here are read at main
REVISIONS = {
    "google-bert/bert-base-uncased": "86b5e0934494bd15c9632b12f734a8a67f723594",
    "FacebookAI/roberta-base": "e2da8e2f811d1448a5b465c236feacd80ffbac7b",
    "openai-community/gpt2": "607a30d783dfa663caf39e06633721c8d4cfcd7e",
}
PRETRAINED = "pretrained"  # a checkpoint that is the weights of timm for the backbone
ALIASES = {name.rpartition("/")[2]: name for name in REVISIONS}
_TEXT_FILES = ("*.json", "*.txt", "*.model")


def obtain_data(data: str) -> None:
    """Download the data set of an overlay into DATA_DIR or into the hub's cache, or draw it.

    What must be had by hand is explained; what is here already is kept.

    Args:
        data: a name in configs/data of an app, such as cola, or of a source of several, such as uea
    """
    overlays = {app: list_overlays(app, "data") for app in list_apps()}
    apps = [app for app, names in overlays.items() if data in names]
    # a source may have several data sets, as `uea`
    apps = apps or [app for app in overlays if data in load_app(app).downloads]
    if not apps:
        names = sorted({name for names in overlays.values() for name in names})
        raise UserError(f"no data set {data!r}; there are: {', '.join(names)}")
    for app in apps:
        place = find_data(app, data) if data in overlays[app] else ""
        source = load_app(app).downloads.get(data)
        if isinstance(place, Path):
            print(f"{app}: {data} is here: {place}")
        elif source is None:
            raise UserError(f"{data} is not downloaded: {place}")
        elif isinstance(source, str):
            print(source.rstrip("\n"))
        elif isinstance(source, HubFiles):
            print(folder := fetch_hub_files(source))
            print(f"{source.repo} at {folder.name}", file=sys.stderr)
        else:
            if not os.environ.get("DATA_DIR"):
                raise UserError("set DATA_DIR to the folder that receives the data")
            root = Path(os.environ["DATA_DIR"])
            made = [source(root)] if callable(source) else download_dataset(source, root)
            print(*made, sep="\n")


def obtain_weights(model: str, revision: str | None = None) -> None:
    """Download pretrained weights into the hub's cache: of a backbone, a timm model, a repository.

    Args:
        model: a name in configs/backbones.yaml, a model of timm, or a repository of the hub
        revision: a commit or tag of the repository; by default the known one, else the newest
    """
    overlays = ((app, read_entries(f"{PREFIX}{app}", "backbone")) for app in list_apps())
    for app in (app for app, known in overlays if model in known):
        settings = read_overlay(app, "backbone", model)["model"]
        if isinstance(name := settings.get("weights") or settings.get("backbone"), str):
            model = name
            break
    files = list_timm_files(model) or name_model_files(model)
    if revision:
        files = HubFiles(files.repo, files.patterns, revision, "model")
    folder = fetch_hub_files(files)
    print(f"{files.repo} at {folder.name}: {folder}")


def list_missing_weights(experiments: Iterable[Experiment]) -> list[str]:
    """List the backbones whose weights are on the hub, but not in its local cache."""
    missing = set()
    for app, backbone, recipe in {(e.app, e.backbone, e.recipe) for e in experiments}:
        model = read_overlay(app, "backbone", backbone).get("model", {})
        start = read_overlay(app, "recipe", recipe).get("model", {}) if recipe else {}
        is_start = start.get("checkpoint") == PRETRAINED
        weights = model["backbone"] if is_start else model.get("weights")
        if weights and weights not in WEIGHT_PACKAGES and not Path(weights).exists():
            files = (list_timm_files(weights) if is_start else None) or name_model_files(weights)
            try:
                fetch_hub_files(files, cached=True)
            except UserError:
                missing.add(backbone)
    return sorted(missing)


def find_timm_weights(model: str) -> str:
    """Return the file of timm's weights in the hub's cache; UserError where it is not there."""
    try:
        files = list_timm_files(model) or name_model_files(model)
        return str(fetch_hub_files(files, cached=True) / "model.safetensors")
    except UserError as error:
        raise UserError(f"no weights of {model} are here: make weights MODEL={model}") from error


def name_model_files(model: str) -> HubFiles:
    """Return the files of a model of transformers, by its hub id or its short name."""
    repo = ALIASES.get(model, model)
    patterns = (*_TEXT_FILES, "*.safetensors", "pytorch_model.bin")
    return HubFiles(repo, patterns, REVISIONS.get(repo, "main"), "model")


def list_timm_files(model: str) -> HubFiles | None:
    """Return the files of a model of timm, None for another name."""
    if find_spec("timm") is None:
        return None
    import timm  # here, since it is optional

    if not timm.is_model(model):
        return None
    config: Any = timm.get_pretrained_cfg(model)
    if not config or not config.hf_hub_id:
        raise UserError(f"timm has no pretrained weights of {model} on the hub")
    return HubFiles(config.hf_hub_id, ("config.json", "model.safetensors"), "main", "model")
