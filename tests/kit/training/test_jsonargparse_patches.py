"""A number is parsed in the same way, whatever was imported before."""

import typing

import pytest
from experiment_kit.cli import AppCLI

from tests.kit.tiny import APP, arguments

BATCHES = [f"limit_{name}_batches" for name in ("train", "val", "test", "predict")]


@pytest.fixture(scope="module")
def parse():
    """Parse options of the trainer after other code has put float before int in typing's cache."""
    for clear in typing._cleanups:
        clear()
    typing.Optional[typing.Union[float, int, None]]  # noqa: UP007, UP045
    parser = AppCLI(APP, ["fit", *arguments("runs")]).parser
    return lambda *extra: parser.parse_args(["fit", *arguments("runs", *extra)]).fit.trainer


@pytest.mark.parametrize("option", [*BATCHES, "gradient_clip_val"])
@pytest.mark.parametrize(("text", "kind"), [("1", int), ("1.0", float), ("2", int)])
def test_a_whole_number_is_an_int_and_a_share_a_float(parse, option, text, kind) -> None:
    found = parse(f"--trainer.{option}={text}")[option]
    assert (type(found), found) == (kind, kind(text))
