"""What every test may rely on: one thread, a fresh seed, few and reproducible random examples."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from experiment_kit.errors import exit_on_user_error
from hypothesis import settings

gc.disable()  # until all tests are imported
os.environ.pop("DATA_DIR", None)

# a shell starts background jobs without Ctrl-C, and nohup without SIGHUP; tests send both to
# their processes
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile("allpass", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("allpass")


@pytest.fixture(autouse=True)
def prepare_test() -> None:
    import torch  # here, as the process that distributes tests needs none

    torch.manual_seed(0)
    hide_lazy_modules()  # a test before this one may have imported some


@pytest.fixture
def read_error(capsys):
    """Run a command that ends with status 2, and return its error, which is one line."""

    def run(command, *args, **options) -> str:
        with pytest.raises(SystemExit) as end, exit_on_user_error():
            command(*args, **options)
        assert end.value.code == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("error: ")
        return line

    return run


class Stranger(NamedTuple):
    """A class that a file of data names: a filter whose module writes a marker when it runs."""

    name: str
    marker: Path

    @property
    def has_run(self) -> bool:
        return self.marker.exists()


@pytest.fixture
def stranger(tmp_path, monkeypatch) -> Iterator[Stranger]:
    """A class in the working directory, as in a folder that was downloaded."""
    folder = tmp_path / "downloaded"
    folder.mkdir()
    code = "from pathlib import Path; from attention_core import GFSA; Path({!r}).touch()\n"
    marker = folder / "RAN-CODE"
    text = code.format(str(marker)) + "class X(GFSA):\n    pass\n"
    (folder / "strangers_module.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    yield Stranger("strangers_module.X", marker)
    sys.modules.pop("strangers_module", None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems() -> None:
    hide_lazy_modules()


def pytest_collection_finish() -> None:
    """Spare every later collection of garbage what the imports made: it stays."""
    import torch

    torch.set_num_threads(1)  # two on two shared cores are ten times slower
    if not torch.accelerator.is_available():  # torch's own writes down its callers
        torch.manual_seed = torch.default_generator.manual_seed
    gc.freeze()
    gc.set_threshold(10_000)  # at 700 new objects, garbage takes a twentieth of the time
    gc.enable()
    if kit := sys.modules.get("experiment_kit.app_cli"):
        share_parsers(kit.AppCLI)


def share_parsers(kind: type) -> None:
    """Build the parser of an app's subcommand once: it takes longer than most command lines."""
    build, known = kind._prepare_subcommand_parser, {}

    def build_once(cli, klass, name, **options):
        key = cli._model_class, name, str((cli.app.name, cli.app.links, cli.app.links_from_model))
        if key not in known:
            parser = build(cli, klass, name, **options)
            known[key] = parser, cli.linked, cli._subcommand_method_arguments[name]
        cli.subparser, cli.linked, cli._subcommand_method_arguments[name] = known[key]
        cli.refuse_linked(cli.arguments)
        return cli.subparser

    kind._prepare_subcommand_parser = build_once


def hide_lazy_modules() -> None:
    """Give lazy modules of speechbrain no file: hypothesis asks for it, at which they fail."""
    if lazy := sys.modules.get("speechbrain.utils.importutils"):
        lazy.LazyModule.__file__ = None
