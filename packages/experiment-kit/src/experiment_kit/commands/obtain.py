"""Commands that obtain a data set by the name of its overlay, and pretrained weights."""

import os
import sys
from pathlib import Path

from experiment_kit.app_files import PREFIX, list_apps, read_entries
from experiment_kit.data import download
from experiment_kit.errors import UserError, check_name, convert_user_errors, suggest_name
from experiment_kit.launch.overlays import list_overlays, read_overlay
from experiment_kit.launch.plan import find_data, load_app


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
        check_name(data, sorted({x for names in overlays.values() for x in names}), "data set")
    for app in apps:
        place = find_data(app, data) if data in overlays[app] else ""
        source = load_app(app).downloads.get(data)
        if isinstance(place, Path):
            print(f"{app}: {data} is here: {place}")
        elif source is None:
            raise UserError(f"{data} is not downloaded: {place}")
        elif isinstance(source, str):
            print(source.rstrip("\n"))
        elif isinstance(source, download.HubFiles):
            print(folder := download.fetch_hub_files(source))
            print(f"{source.repo} at {folder.name}", file=sys.stderr)
        else:
            if not os.environ.get("DATA_DIR"):
                raise UserError("set DATA_DIR to the folder that receives the data")
            root = Path(os.environ["DATA_DIR"])
            made = [source(root)] if callable(source) else download.download_dataset(source, root)
            print(*made, sep="\n")


def obtain_weights(model: str) -> None:
    """Download pretrained weights into the hub's cache: of a backbone, a timm model, a repository.

    Args:
        model: a name in configs/backbones.yaml, a model of timm, or a repository of the hub
    """
    overlays = {app: read_entries(f"{PREFIX}{app}", "backbone") for app in list_apps()}
    close = suggest_name(model, {name for known in overlays.values() for name in known})
    for app in (app for app, known in overlays.items() if model in known):
        settings = read_overlay(app, "backbone", model)["model"]
        if isinstance(name := settings.get("weights") or settings.get("backbone"), str):
            model = name
            break
    files = download.find_model_files(model)
    note = f"no backbone {model!r}{close}: " if "/" not in files.repo else ""
    with convert_user_errors(UserError, prefix=note):
        folder = download.fetch_hub_files(files)
    print(f"{files.repo} at {folder.name}: {folder}")
