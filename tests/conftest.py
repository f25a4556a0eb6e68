"""What every test may rely on: one thread, a fresh seed, few and reproducible random examples."""

import signal
import sys

import pytest
import torch
from experiment_kit.errors import exit_on_user_error
from hypothesis import settings

# two threads on two shared cores are ten times slower than one
torch.set_num_threads(1)

# a shell starts background jobs without Ctrl-C, and nohup without SIGHUP; tests send both to
# their processes
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile("allpass", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("allpass")


@pytest.fixture(autouse=True)
def prepare_test() -> None:
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems() -> None:
    hide_lazy_modules()


def hide_lazy_modules() -> None:
    """Give lazy modules of speechbrain no file: hypothesis asks for it, at which they fail."""
    if lazy := sys.modules.get("speechbrain.utils.importutils"):
        lazy.LazyModule.__file__ = None
