"""Configs as they are read: bounded YAML, options in full, and import paths of classes alone.

A config may name classes: those of a slot's base (`torch.nn.Module`, `torch.optim.Optimizer`,
`Schedule`, ...) by their import path. Naming a class imports its module, and building it calls its
constructor with the config's arguments, so that a config of a stranger must be read before it is
run. Functions are refused, and so are the modules that jsonargparse denies by default
(`os`, `subprocess`, `builtins.eval`, `functools`, ...).
"""

import inspect
import math
import re
import sys
from argparse import ArgumentError
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from os.path import isfile
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import yaml
from jsonargparse import ActionConfigFile, Namespace, get_loader, set_loader, set_parsing_settings
from lightning.pytorch.cli import LightningArgumentParser

from experiment_kit.app_files import find_config
from experiment_kit.errors import UserError, shorten_text, summarize_parser_error
from experiment_kit.help_text import ShortHelpFormatter

YAML_MODE = "bounded_yaml"
_MAX_DEPTH, _MAX_NODES = 40, 100_000


class OversizeError(yaml.YAMLError):
    """YAML that is nested too deeply, or too large."""


@dataclass
class _Node:
    """A list or a mapping of YAML whose end is not yet read."""

    anchor: str | None = None
    size: int = 1
    keys: set[str] | None = None  # of a mapping
    awaits_key: bool = True

    def check_key(self, event: Any) -> None:
        """Raise YAMLError for the key of a mapping that was there before; the last would win."""
        if self.keys is None:
            return
        if self.awaits_key and isinstance(event, yaml.ScalarEvent):
            if event.value in self.keys:
                mark: Any = event.start_mark
                raise yaml.YAMLError(f"line {mark.line + 1}: {event.value!r} is given twice")
            self.keys.add(event.value)
        self.awaits_key = not self.awaits_key


def check_yaml(text: str) -> None:
    """Raise YAMLError for a key that is given twice, and OversizeError for a text that no config
    needs; an alias counts as what it names.

    >>> check_yaml("a: &a [1]\\nb: [*a, *a]")
    >>> check_yaml("&a [*a]")
    Traceback (most recent call last):
    experiment_kit.parsing.OversizeError: line 1: an alias stands inside of what it names
    """
    sizes: dict[Any, int] = {}  # by anchor
    stack = [_Node(size=0)]
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        mark: Any = event.start_mark
        line = f"line {mark.line + 1}"
        size = 0
        if isinstance(event, yaml.NodeEvent):
            stack[-1].check_key(event)
        if isinstance(event, yaml.AliasEvent):
            if any(node.anchor == event.anchor for node in stack):
                raise OversizeError(f"{line}: an alias stands inside of what it names")
            size = sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            stack.append(_Node(event.anchor, keys=set() if is_mapping else None))
        elif isinstance(event, yaml.CollectionEndEvent):
            node = stack.pop()
            size = node.size
            sizes |= {node.anchor: size} if node.anchor else {}
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
            sizes |= {event.anchor: 1} if event.anchor else {}
        stack[-1].size += size
        if len(stack) > _MAX_DEPTH or stack[-1].size > _MAX_NODES:
            limits = f"{_MAX_DEPTH} levels and {_MAX_NODES} values"
            raise OversizeError(f"{line}: a config has at most {limits}")


def load_bounded_yaml(text: str) -> Any:
    """Load YAML as jsonargparse does, after its size and its keys are checked."""
    check_yaml(text)
    return get_loader("yaml")(text)


set_loader(YAML_MODE, load_bounded_yaml, (yaml.YAMLError,))


_GROUPS = {"trainer", "model", "run", "spectral", "checkpoint"}
_DEVICES = re.compile(r"auto|-1|\[?\d{1,4}(, ?\d{1,4})*,?\]?")
MAX_COUNT = 2**20  # of batches in a step, and of machines
_OPTIONS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("seed_everything", lambda v: 0 <= v < 2**32, "a whole number from 0 to 4294967295"),
    ("trainer.max_epochs", lambda v: v == -1 or v >= 1, "at least 1, or -1 for max_steps alone"),
    ("trainer.max_steps", lambda v: v == -1 or v >= 1, "at least 1, or -1 for max_epochs alone"),
    ("trainer.min_epochs", lambda v: v >= 0, "at least 0"),
    ("trainer.min_steps", lambda v: v >= 0, "at least 0"),
    ("trainer.max_time", lambda v: False, "null: the result would depend on the machine's speed"),
    ("trainer.limit_train_batches", lambda v: v > 0, "above 0"),
    ("trainer.limit_test_batches", lambda v: v > 0, "above 0: a result needs a test metric"),
    ("trainer.accumulate_grad_batches", lambda v: 1 <= v <= MAX_COUNT, f"from 1 to {MAX_COUNT}"),
    ("trainer.check_val_every_n_epoch", lambda v: v >= 1, "at least 1"),
    ("trainer.val_check_interval", lambda v: not isinstance(v, str | dict | timedelta) and v > 0,
     "a number of batches or a fraction of an epoch, above 0"),
    ("trainer.gradient_clip_val", lambda v: 0 <= v < math.inf, "at least 0 and finite"),
    ("trainer.log_every_n_steps", lambda v: v >= 0, "at least 0"),
    ("trainer.num_sanity_val_steps", lambda v: v >= -1, "at least -1"),
    ("trainer.overfit_batches", lambda v: v >= 0, "at least 0"),
    ("trainer.reload_dataloaders_every_n_epochs", lambda v: v >= 0, "at least 0"),
    ("trainer.num_nodes", lambda v: 1 <= v <= MAX_COUNT, f"from 1 to {MAX_COUNT}"),
    ("trainer.devices", lambda v: bool(_DEVICES.fullmatch(str(v))),
     "auto, a number of devices, or a list of their indices"),
    ("run.folder", lambda v: v != "" and max(map(len, v.encode().split(b"/"))) <= 255,
     "a path of names of at most 255 bytes"),
)  # fmt: skip


def check_options(settings: Any) -> None:
    """Raise UserError for a seed, an option of the trainer or a folder that no run can use."""
    for key, is_allowed, allowed in _OPTIONS:
        value = settings.get(key)
        if value is not None and not is_allowed(value):
            given = shorten_text(repr(value), 100)
            raise UserError(f"{key} must be {allowed}, got {given}")
    if settings.get("trainer.max_epochs") == -1 and settings.get("trainer.max_steps") == -1:
        raise UserError("trainer.max_epochs or trainer.max_steps must bound the run: both are -1")


class ConfigFile(ActionConfigFile):
    """The option `-c FILE`, whose errors name the file; a name is that of a config of the app."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: Any = None) -> None:
        """Merge a file into the config."""
        values = str(find_config(parser.package, values) or values)
        try:
            _check_mapping(values)
            super().__call__(parser, cfg, values, option_string)
        except UnicodeDecodeError as error:
            raise UserError(f"{values}: not a text in UTF-8 ({error.reason})") from error
        except yaml.YAMLError as error:
            raise UserError(f"{values}{_describe_yaml_error(error)}") from error
        except (ArgumentError, OSError, TypeError, ValueError) as error:
            raise UserError(f"{values}: {summarize_parser_error(str(error))}") from error


def _check_mapping(given: str) -> None:
    is_file = isfile(given)  # else it may be a config in itself
    content = load_bounded_yaml(Path(given).read_text(encoding="utf-8") if is_file else given)
    if not is_file and not isinstance(content, dict):
        raise FileNotFoundError("there is no such file")
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError("a config is a mapping of options, as `seed_everything: 0`")
    for group in _GROUPS & content.keys():
        if not isinstance(content[group], dict | None):
            found = shorten_text(repr(content[group]), 100)
            raise ValueError(f"{group} must be a mapping of options, got {found}")


def _describe_yaml_error(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f", {shorten_text(str(error), 200)}"
    return f", line {error.problem_mark.line + 1}: broken YAML, {error.problem}"


class ConfigParser(LightningArgumentParser):
    """A parser of configs that name classes alone, and of options that are not abbreviated."""

    package = ""  # of the app whose configs `-c` names

    def __init__(self, **kwargs: Any) -> None:
        set_parsing_settings(import_path_denylist=[], instantiate_subclass_spec_in_any=False)
        strict: dict[str, Any] = {"exit_on_error": False, "allow_abbrev": False}
        shown: dict[str, Any] = {"formatter_class": ShortHelpFormatter}
        super().__init__(**strict | shown | {"parser_mode": YAML_MODE} | kwargs)

    def parse_args(self, *args: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]
        """Parse a command line; raises UserError for functions and for options out of range."""
        given = args[0] if args and args[0] is not None else sys.argv[1:]
        for text in given:
            if set("&[{") & set(text):  # numbers are loaded without the loader
                _refuse_oversize(text.partition("=")[2])
        config = super().parse_args(*args, **kwargs)
        if self._subcommands_action:
            parser = self._subcommands_action.choices[config.subcommand]
            parser.check_config(config[config.subcommand])
        elif any(isinstance(action, ConfigFile) for action in self._actions):
            self.check_config(config)  # the parser of a class, an inner one, knows a part alone
        return config

    def check_config(self, config: Namespace) -> None:
        """Raise UserError for an import path that names no class, and for a bad option."""
        for key, name in _find_functions(config):
            hints = (getattr(a, "_typehint", None) for a in self._actions if a.dest == key)
            base = _find_base(next(hints, None))
            wanted = f"a class of {_shorten_path(base)}" if base else "a class"
            raise UserError(f"{key}: {name} is no class; name {wanted} by its import path")
        for key in _find_nulls(config):
            raise UserError(f"{key} must not be null: leave it out for its default")
        check_options(config)


def _refuse_oversize(text: str) -> None:
    try:
        check_yaml(text)
    except OversizeError as error:
        raise UserError(f"{text[:40]!r}, {error}") from error
    except yaml.YAMLError:  # it is no YAML
        pass


def _find_functions(value: Any, key: str = "", owner: Any = None) -> Iterator[tuple[str, str]]:
    """Yield the keys whose value is a function, or is built by something that is no class."""
    if isinstance(value, Namespace | dict):
        parts = vars(value) if isinstance(value, Namespace) else value
        path = parts.get("class_path")
        if isinstance(path, str):
            owner = _find_imported(path)
            if not isinstance(owner, type):
                yield key, path
        for name, part in parts.items():
            yield from _find_functions(part, f"{key}.{name}".removeprefix("."), owner)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _find_functions(part, key, owner)
    elif inspect.isroutine(value) and not _is_default(owner, value):
        yield key, f"{value.__module__}.{value.__qualname__}"


def _find_nulls(value: Any, key: str = "") -> Iterator[str]:
    """Yield the arguments of classes that are null, which the parser lets pass, and may not be."""
    if isinstance(value, list):
        for part in value:
            yield from _find_nulls(part, key)
    if not isinstance(value, Namespace):
        return
    owner = _find_imported(value.get("class_path") or "")
    for name, part in vars(value.get("init_args") or value).items():
        if part is None and owner and not _takes_null(owner, name):
            yield f"{key}.{name}"
        yield from _find_nulls(part, f"{key}.{name}".removeprefix("."))


def _takes_null(owner: type, name: str) -> bool:
    for base in owner.__mro__:
        init = vars(base).get("__init__")
        parameters = inspect.signature(init).parameters if inspect.isfunction(init) else {}
        if found := parameters.get(name):
            named = re.search("None|Optional|Any", str(found.annotation))
            empty = inspect.Parameter.empty  # the parser itself says that a required one is missing
            return found.default in (None, empty) or found.annotation is empty or bool(named)
    return True


def _find_base(hint: Any) -> type | None:
    parts = get_args(hint)[-1:] if get_origin(hint) is Callable else get_args(hint)
    bases = [hint] if not parts and isinstance(hint, type) else map(_find_base, parts)
    return next((base for base in bases if base not in (None, NoneType)), None)


def _shorten_path(kind: type) -> str:
    parents = accumulate(kind.__module__.split("."), "{}.{}".format)
    paths = (f"{parent}.{kind.__qualname__}" for parent in parents)
    return next(path for path in paths if _find_imported(path) is kind)


def _find_imported(path: str) -> Any:
    module, _, name = path.rpartition(".")  # the parser has imported all but what it denies
    return getattr(sys.modules.get(module), name, None)


def _is_default(owner: Any, value: Any) -> bool:
    constructors = (vars(base).get("__init__") for base in getattr(owner, "__mro__", ()))
    signatures = (inspect.signature(init) for init in constructors if inspect.isfunction(init))
    return any(p.default is value for s in signatures for p in s.parameters.values())
