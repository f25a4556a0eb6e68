"""One statement of a text, with its verdict."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["holds", "holds if", "fails"]


@dataclass(frozen=True)
class Statement:
    """A definition, theorem, proposition, corollary, lemma, remark or claim of a paper.

    `condition` is what a statement that holds on a condition leaves out, what is true in place of
    one that fails, or what is true beyond one that holds. `function` computes it on your tensors;
    `test` is a file and a function below `tests/core/theory`.
    """

    paper: Literal["AttnScale", "Record straight", "GFSA", "AGF"]
    label: str
    says: str
    holds: Verdict
    condition: str
    function: Callable[..., Any]
    test: str

    @property
    def key(self) -> str:
        """Return the paper and the label in one word, as attnscale-theorem-3."""
        words = f"{self.paper} {self.label}".lower().replace(".", "-").replace(",", "")
        return "-".join(words.split())

    def render_row(self) -> str:
        """Render a row of the table: the statement; its verdict, function and test."""
        verdict = "**Fails**" if self.holds == "fails" else self.holds.capitalize()
        if self.condition:
            verdict += f"{' ' if self.holds == 'holds if' else ': '}{self.condition}"
        module = self.function.__module__.split(".")[1]
        name = ("" if module == "theory" else f"{module}.") + self.function.__name__
        test = self.test.split("::test_")[1].replace("_", " ")
        says, verdict = self.says.rstrip("."), verdict.rstrip(".")
        return f"| **{self.paper}, {self.label}.** {says} | {verdict}.<br>`{name}`: {test} |"
