"""The list of statements is whole, its tests exist, and the page of the documentation shows it."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from attention_core import theory
from attention_core.theory import STATEMENTS, render_statements

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[3] / "docs" / "theory.md"


def test_keys_are_unique_and_conditions_are_given():
    assert not [key for key, count in Counter(s.key for s in STATEMENTS).items() if count > 1]
    assert not [s.key for s in STATEMENTS if s.holds != "holds" and not s.condition]
    assert {s.holds for s in STATEMENTS} == {"holds", "holds if", "fails"}


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.key)
def test_a_statement_has_a_test_that_exists_and_a_function_with_a_source(statement):
    file, name = statement.test.split("::")
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert "Source:" in statement.function.__doc__
    assert ">>>" in statement.function.__doc__


def test_every_function_is_that_of_a_statement_or_used_by_one():
    """Those that are no statement themselves are named with the statement that they serve."""
    helpers = {
        "apply_update", "iterate_update", "trace_update", "count_independent_pairs",
        "compute_smoothing_factor", "measure_alpha", "measure_contraction", "bound_mixing",
        "compute_dobrushin_coefficient", "compute_stationary_distribution", "expand_gfsa",
        "render_statements",
    }  # fmt: skip
    functions = {name for name in theory.__all__ if name[0].islower()}
    assert functions - {s.function.__name__ for s in STATEMENTS} == helpers


def test_every_numbered_statement_of_the_texts_is_listed():
    labels = {paper: " ".join(s.label for s in STATEMENTS if s.paper == paper)
              for paper in ("AttnScale", "Record straight", "GFSA", "AGF")}  # fmt: skip
    expected = {
        "AttnScale": ["definition 1", "theorem 1", "corollary 2", "theorem 3", "proposition 4",
                      "proposition 5", "proposition 6", "lemma 7", "lemma 8", "remark D.1",
                      "remark D.2", "remark D.3"],
        "Record straight": ["definition 2.1", "assumption 3.1", "proposition 1", "definition 3.2",
                            "theorem 3.3", "theorem 3.4", "corollary 1", "theorem 3.5, case 1",
                            "theorem 3.5, case 2", "theorem 3.5, case 3", "corollary 2",
                            "corollary 3", "theorem B.1"],
        "GFSA": ["theorem 3.1", "GCN", "ChebNet", "GPR-GNN", "GREAD"],
        "AGF": ["theorem 1", "theorem 2", "eq. 24", "eq. 11", "section 3.5"],
    }  # fmt: skip
    assert not [
        (p, label) for p, rows in expected.items() for label in rows if label not in labels[p]
    ]


def test_the_page_has_the_table():
    assert render_statements() in PAGE.read_text(encoding="utf-8")


def test_the_numbers_of_the_page_are_those_of_the_list():
    counts = Counter(s.holds for s in STATEMENTS)
    text = re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))
    found = re.search(
        r"(\d+) statements: (\d+) hold, (\d+) hold on a condition [^.]* (\d+) fail", text
    )
    assert found
    assert [int(number) for number in found.groups()] == [
        len(STATEMENTS), counts["holds"], counts["holds if"], counts["fails"],
    ]  # fmt: skip
