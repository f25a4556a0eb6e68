"""Configs to objects and back: `-c` takes a file or the name of a config of the app.

A config names classes by their import paths, which imports and calls them: read the config of a
stranger before you run it, as you would a script. jsonargparse denies `os`, `subprocess`, ....
The config of a run that is read from its folder is data: see `restrict_classes`.
"""

import inspect
import json
import re
import sys
import traceback
import warnings
from argparse import ArgumentError
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from os.path import isfile
from pathlib import Path
from pydoc import locate
from types import MappingProxyType
from typing import Any, ClassVar

import yaml
from jsonargparse import ActionConfigFile, DefaultHelpFormatter, Namespace, set_parsing_settings
from jsonargparse._common import parsing_settings  # no public function lifts a denial
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.core.mixins import HyperparametersMixin

from experiment_kit import app_files
from experiment_kit.environment import split_list
from experiment_kit.errors import UserError, convert_user_errors, suggest_name

_CLASSES = {  # options, and the packages of their classes
    "model.filter": "attention_core.filters", "model.kernel": "attention_core.kernels",
    "model.tokens": "attention_core.tokens", "model.reparam": "attention_core.reparam",
    "model.optimizer": "torch.optim", "model.schedule": "experiment_kit.training.optim",
    "trainer.callbacks": "lightning.pytorch.callbacks",
    "trainer.logger": "lightning.pytorch.loggers",
}  # fmt: skip
_INSTANTIATOR = "lightning.pytorch.cli.instantiate_module"  # builds a module from a config
_NULL = "null is no filter; that of plain attention is attention_core.Plain, or -c method/plain"
_PACKAGES = ("attention_core", "experiment_kit", "lightning", "torch", "torchmetrics")
# arguments of Lightning's classes may be members of an Enum
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, x: dumper.represent_str(x.value))
# a name such as 1e4 is text to the dumper and a number to jsonargparse, which reads it again
_FLOAT = re.compile(r"[-+]?\d[\d_]*(\.[\d_]*)?[eE][-+]?\d+$")
yaml.SafeDumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, [*"-+0123456789"])


@contextmanager
def restrict_classes(source: Path, trust: Sequence[str] | str = ()) -> Iterator[None]:
    """Let a file that others may have written name classes of this project, and those in `trust`.

    Those of torch and Lightning are allowed, too. Another class is refused before it is imported,
    in one sentence, and no module of the working directory is found: the file may lie beside it.
    """
    trusted = split_list(trust)
    set_parsing_settings(import_path_denylist=[])  # else denials only warn
    path, verdicts = sys.path[:], parsing_settings["import_path_verdicts"]
    try:
        sys.path.append(str(Path.cwd()))
        for name in list(trusted):
            with convert_user_errors(Exception, prefix=f"--trust={name}: "):
                kind = locate(name)
            if not isinstance(kind, type):
                text = f"--trust={name} is no class that is found from {Path.cwd()}: name it as"
                raise UserError(f"{text} package.Class, and work where its package is found")
            trusted.append(f"{kind.__module__}.{kind.__qualname__}")
        sys.path[:] = [entry for entry in path if Path(entry).resolve() != Path.cwd()]
        allowed = [*_PACKAGES, *(app_files.PREFIX + app for app in app_files.list_apps()), *trusted]
        own = {"*": False, **dict.fromkeys(allowed, True)}
        parsing_settings["import_path_verdicts"] = verdicts | own
        yield
    except (ArgumentError, ImportError, UserError) as error:
        chain = "".join(traceback.format_exception(error))  # other errors may hide the reason
        denied = re.search(r"Importing '([\w.]+)' is not allowed", chain)
        if not denied:
            raise
        text = f"{source} names {denied[1]}, which is no class of this project: read its"
        raise UserError(f"{text} code, and allow it by --trust={denied[1]}") from error
    finally:
        sys.path[:], parsing_settings["import_path_verdicts"] = path, verdicts


class ConfigFile(ActionConfigFile):
    """The option `-c FILE`, whose errors name the file; a name is that of a config of the app."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: Any = None) -> None:
        """Merge a file, or the settings that a name stands for, into the config."""
        name, found = values, app_files.find_config(parser.package, values)
        if found is not None:
            found = {k: v for k, v in found.items() if k not in ("at", "defaults")}
            if parser.own_options is not None:  # an own model takes other options than the app's
                own = {k: v for k, v in found.get("model", {}).items() if k in parser.own_options}
                found["model"] = own
            values = json.dumps(found)
        elif not isfile(name):
            kinds = ["data", *(file.removesuffix("s") for file in app_files.KIND_FILES)]
            known = [f"{k}/{e}" for k in kinds for e in app_files.read_entries(parser.package, k)]
            close = suggest_name(name, ["base", *known])
            raise UserError(f"-c {name}: there is no such file, and no such config{close}")
        errors = (ArgumentError, OSError, TypeError, ValueError, yaml.YAMLError)
        with convert_user_errors(*errors, prefix=f"{name}: "):
            super().__call__(parser, cfg, values, option_string)
            if found is None and isfile(name):
                found = parser.files[name] = app_files.read_settings(Path(name).resolve())
                for key, target in parser.linked.items():
                    own = app_files.read_option(found, target)
                    if own is not None and own != app_files.read_option(found, key):
                        raise ValueError(f"{target}: {key} sets it, so leave it out")
            decay = find_weight_decay(found or {})
            if decay and (parser.own_options is None or "weight_decay" in parser.own_options):
                super().__call__(parser, cfg, json.dumps(decay), option_string)


def repeat_weight_decay(arguments: Iterable[str]) -> Iterator[str]:
    """Give the weight decay of an optimizer to the model too, whose parameter groups have it."""
    left = iter(arguments)
    for argument in left:
        name, equals, value = argument.partition("=")
        if re.fullmatch(r"--model(\.optimizer(\.init_args)?(\.weight_decay)?)?", name):
            value, given = value if equals else next(left, ""), None
            argument = f"{name}={value}"
            with suppress(OSError, UnicodeError, yaml.YAMLError):  # which the parser tells
                given = yaml.safe_load(Path(value).read_text("utf-8") if isfile(value) else value)
            for key in reversed(name.split(".")[1:]):
                given = {key: given}
            for decay in find_weight_decay({"model": given}).values():
                yield f"--model.weight_decay={decay['weight_decay']}"
        yield argument


def find_weight_decay(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weight decay of an optimizer as a setting of the model, if it has none."""
    model: Any = settings.get("model")
    optimizer = model.get("optimizer") if isinstance(model, dict) else None
    if not isinstance(optimizer, dict) or "weight_decay" in model:
        return {}
    given = {**optimizer, **(optimizer.get("init_args") or {})}
    return {"model": {"weight_decay": given["weight_decay"]}} if "weight_decay" in given else {}


class SlotHelpFormatter(DefaultHelpFormatter):
    """Help that lists the mechanisms of each slot, with our texts for Lightning's options."""

    HELP: ClassVar = {
        "data": "Class of the data and its options, which --data.help CLASS lists",
        "ckpt_path": "Checkpoint: a path, `last`, the newest of the run, or, to evaluate, `best`; "
                     "null goes on from the last one, and evaluates the best one",
        "weights_only": "No effect: checkpoints are read as plain data",
    }  # fmt: skip

    def _get_help_string(self, action: Any) -> str:
        action.help = self.HELP.get(action.dest, action.help)
        if isinstance(action.help, str):  # roles of Sphinx, in the docstrings of Lightning
            action.help = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", action.help)
        package = _CLASSES.get(action.dest, "")
        if package.startswith("attention_core"):
            action.extra_help = lambda: f", such as {', '.join(sorted(list_classes(package)))}"
        return super()._get_help_string(action)


def list_classes(package: str) -> set[str]:
    """Return the names of a package's own classes; `attention_` stands for all our packages."""
    modules = [m for name, m in sys.modules.items() if name.startswith(package)]
    found = [sys.modules[package]] if package in sys.modules else modules
    kinds = [kind for m in found for kind in vars(m).values() if isinstance(kind, type)]
    return {kind.__name__ for kind in kinds if kind.__module__.startswith(package)}


def add_remedy(text: str, options: Iterable[str], files: Mapping[str, Any]) -> str:
    """Add to an error the file of a key, or what the name of a class or an option may mean."""
    key = (re.search(r'Parser key "([\w.]+)":', text) or ("", ""))[1]
    if key == "model.filter":
        text = re.sub("Expected an import path or .* got None", _NULL, text)
        text = re.sub("required: num_heads", r"\g<0>; a kernel is for --model.kernel", text)
    # a number that may be a tensor, too
    text = re.sub(r"(Expected a <class 'float'>\n).*dot import path.*", r"\1", text)
    path = r"dot import path string: (\w+)|module '([\w.]+)' has no attribute '(\w+)'"
    if found := re.search(path, text):
        package = found[2] or _CLASSES.get(key, "attention_")
        close = suggest_name(found[1] or found[3], list_classes(package))
        return text + (close or ": name a class with its module, as package.Class")
    if found := re.search(r"unrecognized arguments: (?:--)?([\w.]+)", text):
        return text + suggest_name(f"--{found[1]}", [f"--{option}" for option in options])
    if found := re.match(r"(?:Group '(\w+)' does not accept o|O)ption '([\w.]+)'", text):
        name = ".".join(filter(None, found.groups()))
        file = next((f"{f}: " for f, x in files.items() if app_files.read_option(x, name)), "")
        entry = ": give -c method/NAME before the file" if name == "extends" else ""
        return f"{file}{name} is no option{suggest_name(name, options) or entry}"
    kind = re.search(r"class_path '([\w.]+)'", text) or [..., "CLASS"]
    remedy = rf"\1: --{key}.help={kind[1]} lists those that are" if key else r"\1"
    return re.sub("(Option '.+' is not accepted)", remedy, text)


class ConfigParser(LightningArgumentParser):
    """A parser that raises its errors, and refuses functions."""

    package = ""  # the app whose configs `-c` names
    own_options: Collection[str] | None = None  # what an own model takes
    linked: Mapping[str, str] = MappingProxyType({})  # options, and those that they set

    def __init__(self, **kwargs: Any) -> None:
        self.files: dict[str, app_files.Settings] = {}  # by the names that `-c` has
        set_parsing_settings(import_path_denylist=[], instantiate_subclass_spec_in_any=False)
        defaults: dict[str, Any] = {"prog": "attention-<app> ...", "exit_on_error": False}
        defaults |= {"allow_abbrev": False, "formatter_class": SlotHelpFormatter}
        super().__init__(**defaults | kwargs)

    def parse_args(self, args: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]
        """Parse a command line; raises UserError for functions in place of classes."""
        if self.own_options is None or "weight_decay" in self.own_options:
            args = [*repeat_weight_decay(args)]
        try:
            config = super().parse_args(args, **kwargs)
        except ArgumentError as error:
            keys = self.get_defaults(skip_validation=True).keys()
            options = [re.sub(r"\.(class_path|init_args).*", "", key) for key in keys]
            raise ArgumentError(None, add_remedy(str(error), options, self.files)) from error
        for key, value in config.items():
            if key == "model.filter" and value is None and self.own_options is None:
                raise UserError(f"{key}: {_NULL}")
            is_slot = key in _CLASSES
            is_function = inspect.isroutine(value) and (is_slot or "<" in value.__qualname__)
            if is_function or (key.endswith("class_path") and not isinstance(locate(value), type)):
                name = f"{value.__module__}.{value.__qualname__}" if is_function else value
                kind = "name of a function" if "<" in name else "class"
                raise UserError(f"{key}: {name} is no {kind}; name a class by its import path")
        return config


def save_plain_hyperparameters(module: HyperparametersMixin, logger: bool = True) -> None:
    """Save the arguments of the `__init__` that runs, as `save_hyperparameters` does, as data.

    `load_from_checkpoint` builds objects again from `class_path` and `init_args`. What has no such
    form, as a lambda, is left out.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is an instance of `nn.Module`")
        module.save_hyperparameters(logger=logger, frame=inspect.currentframe().f_back)  # type: ignore[union-attr]
    plain: dict[str, Any] = {"_instantiator": _INSTANTIATOR}
    for name, value in list(module.hparams.items()):
        try:
            plain[name] = describe_value(value)
        except (TypeError, ValueError):  # a class of C has no signature
            del module.hparams[name]
    module.save_hyperparameters(plain, logger=logger)


def describe_value(value: Any) -> Any:
    """Return a value as it stands in a config; TypeError for one that has no such form.

    >>> from attention_core import GFSA
    >>> describe_value({"filter": partial(GFSA, K=4), "layers": (1, 2)})["filter"]
    {'class_path': 'attention_core.filters.gfsa.GFSA', 'init_args': {'K': 4}}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {key: describe_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe_value(item) for item in value]
    if isinstance(value, partial):
        # jsonargparse passes the class to a function of its own that builds it
        target, *others = [x for x in value.args if not inspect.isfunction(x)] or [value.func]
        if others or not callable(target):
            raise TypeError("a config has no arguments without names")
        given = describe_value(value.keywords)
        return {"class_path": _find_import_path(target), "init_args": given}
    if inspect.isclass(value):
        return {"class_path": _find_import_path(value)}
    if inspect.isfunction(value):
        return _find_import_path(value)
    names = [*inspect.signature(type(value)).parameters]
    if missing := [name for name in names if not hasattr(value, name)]:
        raise TypeError(f"{type(value).__name__} has no attribute {missing[0]}")
    options = {name: describe_value(getattr(value, name)) for name in names}
    return {"class_path": _find_import_path(type(value)), "init_args": options}


def _find_import_path(item: Any) -> str:
    path = f"{item.__module__}.{item.__qualname__}"
    if "<" in path or item.__module__ == "__main__":
        raise TypeError(f"{path} cannot be imported")
    return path
