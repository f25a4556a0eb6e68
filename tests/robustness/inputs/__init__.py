"""Bad inputs: cases as tables, each run in a forked child, and the judgment of its answer."""

import csv
import io
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from experiment_kit.papers.values import load_table

from tests.apps.cases import CASES
from tests.robustness.fork import run_children
from tests.robustness.inputs import (
    api_calls,
    command_lines,
    config_files,
    data_files,
    hand_made,
    launcher,
    run_folders,
)
from tests.robustness.inputs.case import Case, Judgment, judge_answer

TABLES = (command_lines, hand_made, launcher, config_files, run_folders, data_files, api_calls)
QUICK_SHARE = 12  # one case of so many
LATE_IMPORTS = (
    "tensorboard.compat.proto.event_pb2", "torch.utils.tensorboard",
)  # fmt: skip
OUTCOMES = ("refused", "accepted", "wrong")


def run_inputs(quick: bool, out: Path | None, workers: int) -> int:
    """Run every case, or a share of each kind; print the table; return how many are wrong."""
    judgments = list(judge_cases(list_cases(QUICK_SHARE if quick else 1), workers))
    rows = summarize_judgments(judgments)
    markdown = format_markdown(rows, judgments)
    print(markdown)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "inputs.md").write_text(markdown)
        (out / "inputs.csv").write_text(format_csv(judgments))
    return sum(judgment.outcome == "wrong" for judgment in judgments)


def list_cases(share: int = 1) -> list[Case]:
    """List every case once, or one of `share` cases of each table, in the order of the tables."""
    found = {}
    for table in TABLES:
        cases = {(case.kind, case.app, case.name): case for case in table.list_cases()}
        found |= dict(list(cases.items())[::share])
    return list(found.values())


def judge_cases(cases: Sequence[Case], workers: int = 2) -> Iterator[Judgment]:
    """Run the cases in children of this process and judge their answers, in order."""
    repository = Path.cwd()
    os.environ.pop("DATA_DIR", None)
    load_for_children()
    with tempfile.TemporaryDirectory(prefix="inputs-") as scratch:
        shared = Path(scratch, "shared")
        for name in run_folders.CACHES:
            (shared / name).mkdir(parents=True)

        def fill(folder: Path) -> None:
            (folder / "apps").symlink_to(repository / "apps")
            (folder / "runs").mkdir()
            for name in run_folders.CACHES:
                (folder / "runs" / name).symlink_to(shared / name)

        run_folders.make_template(Path(scratch), fill)
        waiting = iter(cases)

        def fill_for_case(folder: Path) -> None:
            fill(folder)
            next(waiting).prepare(folder)

        actions = [case.run for case in cases]
        answers = run_children(actions, fill_for_case, Path(scratch, "cases"), workers)
        for number, (case, answer) in enumerate(zip(cases, answers, strict=True), start=1):
            judgment = judge_answer(case, answer)
            yield judgment
            show_progress(number, len(cases), judgment)


def load_for_children() -> None:
    """Import and parse in this process what every child would import and parse for itself."""
    for name in LATE_IMPORTS:
        import_module(name)
    load_table("agf-table-1")
    for app in CASES:
        _ = app.cli


def show_progress(number: int, count: int, judgment: Judgment) -> None:
    if judgment.outcome == "wrong":
        print(f"wrong: {judgment.case.app}: {judgment.case.name}: {judgment.why}", flush=True)
    elif number % 100 == 0:
        print(f"{number} of {count} cases", file=sys.stderr, flush=True)


def summarize_judgments(judgments: Sequence[Judgment]) -> list[dict[str, object]]:
    """Count the outcomes of each kind and app, and of all; add up their seconds."""
    groups: dict[tuple[str, str], list[Judgment]] = defaultdict(list)
    for judgment in judgments:
        groups[judgment.case.kind, judgment.case.app].append(judgment)
    rows = []
    for (kind, app), group in [*groups.items(), (("all", ""), judgments)]:
        counts = Counter(judgment.outcome for judgment in group)
        row = {"kind": kind, "app": app, "cases": len(group)}
        row |= {name: counts[name] for name in OUTCOMES}
        rows.append(row | {"seconds": round(sum(judgment.seconds for judgment in group))})
    return rows


def format_markdown(rows: Sequence[dict[str, object]], judgments: Sequence[Judgment]) -> str:
    """Write the table, the reasons with their counts, and the wrong cases."""
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(str(row[name]) for name in head) + " |" for row in rows]
    reasons = Counter(j.why for j in judgments if j.outcome == "accepted")
    lines += ["", "Accepted:", ""]
    lines += [f"- {count} times: {reason}" for reason, count in sorted(reasons.items())]
    wrong = [j for j in judgments if j.outcome == "wrong"]
    lines += ["", f"Wrong: {len(wrong)}", ""]
    lines += [f"- {j.case.app}: `{j.case.name}`: {j.why}" for j in wrong]
    return "\n".join(lines) + "\n"


def format_csv(judgments: Sequence[Judgment]) -> str:
    """Write a line for each case; nothing of it depends on time."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["kind", "app", "case", "outcome", "why"])
    for j in judgments:
        writer.writerow([j.case.kind, j.case.app, j.case.name, j.outcome, j.why])
    return text.getvalue()
