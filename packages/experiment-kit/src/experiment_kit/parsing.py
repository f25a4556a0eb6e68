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
from experiment_kit.errors import UserError, convert_user_errors


class ConfigFile(ActionConfigFile):
    """The option `-c FILE`, whose errors name the file; a name is that of a config of the app."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: Any = None) -> None:
        """Merge a file, or the settings that a name stands for, into the config."""
        name, found = values, find_config(parser.package, values)
        if found is not None:
            values = json.dumps({k: v for k, v in found.items() if k not in ("at", "defaults")})
        kinds = (ArgumentError, OSError, TypeError, ValueError, yaml.YAMLError)
        with convert_user_errors(*kinds, prefix=f"{name}: "):
            super().__call__(parser, cfg, values, option_string)


class ConfigParser(LightningArgumentParser):
    """A parser that raises its errors, and refuses functions."""

    package = ""  # the app whose configs `-c` names

    def __init__(self, **kwargs: Any) -> None:
        set_parsing_settings(import_path_denylist=[], instantiate_subclass_spec_in_any=False)
        super().__init__(**{"exit_on_error": False, "allow_abbrev": False} | kwargs)

    def parse_args(self, *args: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]
        """Parse a command line; raises UserError for functions in place of classes."""
        config = super().parse_args(*args, **kwargs)
        for key, value in config.items():
            is_function = inspect.isroutine(value) and "init_args" not in key  # as a default may be
            if is_function or (key.endswith("class_path") and not isinstance(locate(value), type)):
                name = f"{value.__module__}.{value.__qualname__}" if is_function else value
                raise UserError(f"{key}: {name} is no class; name a class by its import path")
        return config
