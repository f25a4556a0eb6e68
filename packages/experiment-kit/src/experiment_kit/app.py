"""The description of an app: its classes, its runs, and the options of its command line."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule

from experiment_kit.app_files import name_run, read_option
from experiment_kit.data.datamodule import SplitDataModule
from experiment_kit.data.download import Source
from experiment_kit.errors import convert_user_errors
from experiment_kit.run import Run


@dataclass(frozen=True)
class AppSpec:
    """An app: its name, its classes, and the options of its command line.

    - `links`: attributes of the data module -> arguments of the model;
    - `links_from_model`: arguments -> arguments that receive their value, as `model.dim` ->
      `data.init_args.dim`;
    - `monitor`: validation metric whose maximum chooses the epoch;
    - `score_last`: score the test set at the last epoch too;
    - `report_train_metrics`: metrics of the last epoch to add to the result;
    - `hashed_files`: arguments whose file contents enter the run's hash;
    - `start_option`: argument that takes the folder of a finished run, to start from its weights;
    - `downloads`: where each data set comes from, by the name of its overlay;
    - `shape_only_data`: data modules -> stand-ins that know the shapes without reading a file;
    - `measures_recipe`: measure efficiency at the recipe's batch size and precision;
    - `make_inputs`, `read_input`: make samples, or read those of a file, for any model to diagnose;
    - `load_network`: build a network from a file of weights, a backbone and a method; returns it
      with a sentence about its weights.
    """

    name: str
    model: type[LightningModule]
    data: type[SplitDataModule]
    links: Mapping[str, str] = field(default_factory=dict)
    links_from_model: Mapping[str, str] = field(default_factory=dict)
    monitor: str = "val/accuracy"
    score_last: bool = False
    report_train_metrics: Sequence[str] = ()
    hashed_files: Sequence[str] = ()
    start_option: str = ""
    downloads: Mapping[str, Source] = field(default_factory=dict)
    shape_only_data: Mapping[type, Callable[..., Any]] = field(default_factory=dict)
    measures_recipe: bool = False
    make_inputs: Callable[[int], list[Any]] | None = None
    read_input: Callable[[Path], Any] | None = None
    load_network: Callable[[str, str, str], tuple[Any, str]] | None = None

    @property
    def package(self) -> str:
        """The import name of its package, which has its configs."""
        return self.model.__module__.partition(".")[0]

    def find_run(self, config: Mapping[str, Any], fitting: bool = True) -> Run:
        """Return the run that a merged config, a plain mapping, identifies with its files."""
        named = {key: read_option(config, key) for key in self.hashed_files}
        contents = {key: digest for key, name in named.items() if (digest := hash_file(name))}
        start = hash_file(config.get("ckpt_path")) if fitting else None
        identified = {**config, "start": start or config.get("start"), "files": contents or None}
        with convert_user_errors(ValueError):
            return Run.from_config(self.name, identified | {"run": name_run(self.package, config)})


def hash_file(name: Any) -> str | None:
    """Return the digest of a local file; None for any other value, such as weights on a hub."""
    if not isinstance(name, str) or not (path := Path(name)).is_file():
        return None
    return _hash_content(path.resolve(), path.stat().st_mtime_ns)


@cache
def _hash_content(path: Path, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
