"""The error of a command that a user's mistake ends."""

import pytest
from experiment_kit.errors import exit_on_user_error


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
