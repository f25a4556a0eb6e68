"""A bad input, the judgment of its answer, and the reasons why some are accepted."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.robustness.fork import REACHED, Answer

MAX_SENTENCE = 320
# files of a start that hold no result, where the first batch alone shows the mistake
START = re.compile(r"lock$|/(config|environment)\.yaml$|/data\.json$|/tensorboard/")
# the metrics of a run are known after its first validation
FIRST_VALIDATION = re.compile("Early stopping conditioned")
FIRST_BATCH = re.compile("the training loss is|takes ids|must be shorter|val_check_interval")
CACHES = ("runs/data/", "runs/tokens/", "runs/tokenizers/")


def leave_empty(folder: Path) -> None:
    """Add nothing to the folder that a case starts in."""


@dataclass(frozen=True)
class Case:
    """One bad input: what to run in a forked child, and what its answer must say.

    `prepare` writes its files into the folder that the child starts in. `name` is the smallest
    command or file that shows it, `mentions` a pattern that the sentence must hold. With
    `accepted`, the reason, it may also be accepted; its text must then hold `mentions` if `warns`.
    """

    kind: str
    app: str
    name: str
    run: Callable[[], None]
    mentions: str = ""
    accepted: str = ""
    warns: bool = False
    prepare: Callable[[Path], object] = leave_empty


@dataclass(frozen=True)
class Judgment:
    """One of refused, accepted and wrong, and why."""

    case: Case
    outcome: str
    why: str
    seconds: float


def judge_answer(case: Case, answer: Answer) -> Judgment:
    outcome, why = _judge(case, answer)
    return Judgment(case, outcome, why, answer.seconds)


def _judge(case: Case, answer: Answer) -> tuple[str, str]:
    if answer.hung:
        return "wrong", "hang"
    if "Traceback (most recent call last)" in answer.error:
        last = [line for line in answer.error.splitlines() if line.strip()][-1]
        return "wrong", f"traceback: {last[:160]}"
    if answer.status in (0, REACHED):
        if not case.accepted:
            return "wrong", "accepted without a reason"
        if case.warns and not re.search(case.mentions, answer.error + answer.out):
            return "wrong", f"accepted, and does not say {case.mentions!r}"
        return "accepted", case.accepted
    if answer.status != 2:
        return "wrong", f"exit status {answer.status}"
    return _judge_refusal(case, answer)


def _judge_refusal(case: Case, answer: Answer) -> tuple[str, str]:
    lines = answer.error.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    if len(errors) != 1 or lines[-1] != errors[0]:
        return "wrong", f"not one line 'error: ...' at the end: {answer.error[-160:]!r}"
    sentence = errors[0].removeprefix("error: ")
    if len(sentence) > MAX_SENTENCE:
        return "wrong", f"{len(sentence)} characters: {sentence[:120]} ..."
    if "expected null" in sentence:
        return "wrong", f"misleads: {sentence}"
    if not re.search(case.mentions, sentence):
        return "wrong", f"does not name {case.mentions!r}: {sentence[:160]}"
    if written := [name for name in answer.written if not may_write(name, sentence)]:
        return "wrong", f"wrote {', '.join(written[:3])}; {sentence[:100]}"
    return "refused", sentence


def may_write(name: str, sentence: str) -> bool:
    """A refused command may leave an empty lock, and caches of what it read."""
    if FIRST_VALIDATION.search(sentence):
        return True
    if FIRST_BATCH.search(sentence):
        return START.search(name) is not None
    return name.endswith("/lock") or name.startswith(CACHES)
