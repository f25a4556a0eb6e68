"""The overlays of an app: what its files say, and its command line, planned and never run."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import attention_graph.__main__
import attention_nlp.__main__
import attention_sequence
import attention_speech
import attention_vision.__main__
import yaml
from experiment_kit.cli import AppCLI, AppSpec
from experiment_kit.launch.overlays import list_overlays, overlay_arguments
from jsonargparse import Namespace


class Overlays:
    """The names of an app's overlays by kind, and a parser that takes `default` where none is."""

    def __init__(self, app: AppSpec, **default: str) -> None:
        self.app, self.default = app, default
        self.folder = Path(f"apps/{app.name}/configs")

    def names(self, kind: str) -> list[str]:
        return list_overlays(self.app.name, kind)

    @cached_property
    def cli(self) -> AppCLI:
        return AppCLI(self.app, ["fit", *overlay_arguments(self.app.name, **self.default)])

    def parse(self, *extra: str, **chosen: str) -> Any:
        arguments = overlay_arguments(self.app.name, extra, **(self.default | chosen))
        return self.cli.parser.parse_args(["fit", *arguments]).fit

    def model(self, *extra: str, **chosen: str) -> Any:
        settings = Namespace(fit=self.parse(*extra, **chosen), subcommand="fit")
        return self.cli.parser.instantiate_classes(settings).fit.model

    def read(self, kind: str, name: str) -> Any:
        return yaml.safe_load((self.folder / kind / f"{name}.yaml").read_text())


GRAPH = Overlays(
    attention_graph.__main__.APP, data="zinc", backbone="graphormer_slim", method="plain"
)
NLP = Overlays(attention_nlp.__main__.APP, data="docs", backbone="bert_tiny", method="plain")
SPEECH = Overlays(
    attention_speech.APP,
    data="synthetic",
    backbone="transformer_small",
    recipe="small",
    method="plain",
)
SEQUENCE = Overlays(attention_sequence.APP, data="japanese_vowels", backbone="uea", method="plain")
VISION = Overlays(
    attention_vision.__main__.APP, data="digits", backbone="deit_tiny", method="plain"
)


def leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of the settings in an overlay."""
    if not isinstance(value, dict):
        yield path
        return
    for key, part in value.items():
        yield from leaves(part, (*path, key))
