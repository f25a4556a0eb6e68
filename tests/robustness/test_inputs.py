"""The judgment of answers, the limits of children, and some cases of every kind."""

import os
import sys
import time
from pathlib import Path

import pytest

from tests.robustness import fork
from tests.robustness.fork import Answer, Reached, run_children
from tests.robustness.inputs.case import Case, judge_answer

REFUSED = "error: model.dim must be at least 1, got 0\n"


def make_case(**options) -> Case:
    return Case("kind", "app", "fit --model.dim=0", print, "dim", **options)


def answer(status: int, error: str = REFUSED, out: str = "", written: tuple = ()) -> Answer:
    return Answer(status, out, error, 0.1, written)


def test_one_sentence_with_status_2_is_a_refusal() -> None:
    assert judge_answer(make_case(), answer(2)).outcome == "refused"
    noisy = answer(2, "GPU available: False\n" + REFUSED, written=("runs/a/lock",))
    assert judge_answer(make_case(), noisy).outcome == "refused"


@pytest.mark.parametrize(("given", "why"), [
    (answer(-9), "hang"),
    (answer(1, "Traceback (most recent call last):\n ...\nKeyError: 3\n"), "traceback: KeyError"),
    (answer(2, "Traceback (most recent call last):\nKeyError: 3\n" + REFUSED), "traceback"),
    (answer(1), "exit status 1"),
    (answer(0, ""), "accepted without a reason"),
    (answer(2, ""), "not one line"),
    (answer(2, REFUSED * 2), "not one line"),
    (answer(2, REFUSED + "and more\n"), "not one line"),
    (answer(2, "error: dim " + "x" * 317 + "\n"), "321 characters"),
    (answer(2, "error: model.dim: expected null, got 0\n"), "misleads"),
    (answer(2, "error: it is wrong\n"), "does not name 'dim'"),
    (answer(2, written=("runs/a/config.yaml",)), "wrote runs/a/config.yaml"),
])  # fmt: skip
def test_every_other_answer_is_wrong(given: Answer, why: str) -> None:
    judgment = judge_answer(make_case(), given)
    assert judgment.outcome == "wrong"
    assert judgment.why.startswith(why)


def test_a_case_may_be_accepted_for_its_reason_alone_and_must_warn_where_it_says_so() -> None:
    case = make_case(accepted="no dim is needed", warns=True)
    assert judge_answer(case, answer(0, "", "dim left out")).outcome == "accepted"
    assert judge_answer(case, answer(0, "")).outcome == "wrong"
    assert judge_answer(case, answer(1, "")).outcome == "wrong"


def wait_for_ever() -> None:
    os.mkfifo("fifo")
    Path("fifo").read_text()


def compute_for_ever() -> None:
    while True:
        pass


def end_early() -> None:
    raise Reached


def write_and_refuse() -> None:
    Path("new").touch()
    print("error: no", file=sys.stderr)
    raise SystemExit(2)


def allocate() -> None:
    bytearray(64 << 30)


def test_children_answer_in_order_and_are_ended(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(fork, "CPU_SECONDS", 1)
    began = time.monotonic()
    actions = [wait_for_ever, write_and_refuse, end_early, allocate, compute_for_ever]
    answers = list(run_children(actions, lambda folder: None, tmp_path, wall_seconds=9))
    assert [a.hung for a in answers] == [True, False, False, False, True]
    assert [a.status for a in answers[1:4]] == [2, 100, 1]
    assert time.monotonic() - began < 20
    assert (answers[1].error, answers[1].written) == ("error: no\n", ("new",))
    assert "MemoryError" in answers[3].error
    assert not list(tmp_path.iterdir())
