"""The parser of configs: `-c` takes a file or the name of a config of the app.

A config names classes by their import paths, which imports and calls them: read the config of a
stranger before you run it, as you would a script. jsonargparse denies `os`, `subprocess`, ....
"""

import inspect
import json
from argparse import ArgumentError
from pydoc import locate
from typing import Any

import yaml
from jsonargparse import ActionConfigFile, Namespace, set_parsing_settings
from lightning.pytorch.cli import LightningArgumentParser

from experiment_kit.app_files import find_config
from experiment_kit.errors import UserError, shorten_text, summarize_parser_error


class ConfigFile(ActionConfigFile):
    """The option `-c FILE`, whose errors name the file; a name is that of a config of the app."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: Any = None) -> None:
        """Merge a file, or the settings that a name stands for, into the config."""
        name, found = values, find_config(parser.package, values)
        if found is not None:
            values = json.dumps({k: v for k, v in found.items() if k not in ("at", "defaults")})
        try:
            super().__call__(parser, cfg, values, option_string)
        except yaml.YAMLError as error:
            raise UserError(f"{name}: {shorten_text(str(error), 300)}") from error
        except (ArgumentError, OSError, TypeError, ValueError) as error:
            raise UserError(f"{name}: {summarize_parser_error(str(error))}") from error


class ConfigParser(LightningArgumentParser):
    """A parser that raises its errors, and refuses functions and runs without an end."""

    package = ""  # the app whose configs `-c` names

    def __init__(self, **kwargs: Any) -> None:
        set_parsing_settings(import_path_denylist=[], instantiate_subclass_spec_in_any=False)
        super().__init__(**{"exit_on_error": False, "allow_abbrev": False} | kwargs)

    def parse_args(self, *args: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]
        """Parse a command line; raises UserError for functions and for a run without an end."""
        config = super().parse_args(*args, **kwargs)
        _check_classes(config)
        trainer = config.get(f"{config.get('subcommand')}.trainer") or config.get("trainer")
        if trainer and trainer.get("max_epochs") == trainer.get("max_steps") == -1:
            raise UserError(
                "trainer.max_epochs or trainer.max_steps must bound the run: both are -1"
            )
        return config


def _check_classes(value: Any, key: str = "") -> None:
    """Raise UserError for an import path of a function; defaults of classes may be functions."""
    if isinstance(value, list):
        for part in value:
            _check_classes(part, key)
    parts = vars(value) if isinstance(value, Namespace) else value
    if isinstance(parts, dict):
        path = parts.get("class_path")
        if isinstance(path, str) and not isinstance(locate(path), type):
            raise UserError(f"{key}: {path} is no class; name a class by its import path")
        for name, part in parts.items():
            _check_classes(part, f"{key}.{name}".strip("."))
    elif inspect.isroutine(value) and "init_args" not in key:
        name = f"{value.__module__}.{value.__qualname__}"
        raise UserError(f"{key}: {name} is no class; name a class by its import path")
