"""Each statement of docs/theory.md names a test that exists."""

import ast
import inspect
import re
from pathlib import Path

from attention_core import theory

PAGE = (Path(__file__).parents[3] / "docs" / "theory.md").read_text(encoding="utf-8")


def list_rows() -> list[list[str]]:
    return [row.split(" | ") for row in PAGE.splitlines() if "::test_" in row]


def test_every_statement_has_a_verdict_and_names_a_test_that_exists():
    for statement, verdict, proof in list_rows():
        assert re.match(r"Holds( if .+|: .+)?$|\*\*Fails\*\*: .+", verdict), statement
        file, name = re.findall(r"`(test_\w+\.py)::(test_\w+)`", proof)[0]
        tree = ast.parse((Path(__file__).parent / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_function_serves_a_statement():
    named = {name for *_, proof in list_rows() for name in re.findall(r"`(\w+)`<br>", proof)}
    functions = {name for name, value in vars(theory).items() if inspect.isfunction(value)}
    assert functions == named
    for name in functions:
        text = getattr(theory, name).__doc__
        assert "Source:" in text
        assert ">>>" in text
