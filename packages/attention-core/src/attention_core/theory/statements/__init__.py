"""All statements of the five texts: if they hold, on what condition, and what checks them."""

from collections.abc import Sequence

from attention_core.theory.statements.agf import AGF_STATEMENTS
from attention_core.theory.statements.attnscale import ATTNSCALE_STATEMENTS
from attention_core.theory.statements.gfsa import GFSA_STATEMENTS
from attention_core.theory.statements.record_straight import RECORD_STRAIGHT_STATEMENTS
from attention_core.theory.statements.statement import Statement

STATEMENTS: tuple[Statement, ...] = (
    *ATTNSCALE_STATEMENTS,
    *RECORD_STRAIGHT_STATEMENTS,
    *GFSA_STATEMENTS,
    *AGF_STATEMENTS,
)


__all__ = ["STATEMENTS", "Statement", "render_statements"]


def render_statements(statements: Sequence[Statement] = STATEMENTS) -> str:
    """Render statements as rows of a Markdown table.

    >>> print(render_statements(STATEMENTS[11:12]))
    | Statement | Verdict, function and test |
    |---|---|
    | **AttnScale, lemma 7.** The mean token is the nearest constant: ... | Holds.<br>`bound_...
    """
    head = "| Statement | Verdict, function and test |\n|---|---|"
    return "\n".join([head, *(statement.render_row() for statement in statements)])
