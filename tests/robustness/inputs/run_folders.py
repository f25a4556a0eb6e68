"""Files of a finished run, edited by hand, as fit, test, table and compare meet them."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from experiment_kit.cli import run_app
from experiment_kit.launch.plan import Experiment, plan_runs

from tests.apps.cases import SEQUENCE
from tests.robustness.fork import run_children
from tests.robustness.inputs.case import Case
from tests.robustness.inputs.command_lines import reuse_parsers
from tests.robustness.inputs.launcher import run_launcher

KIND = "run folder"
CELL = Experiment(
    app="sequence", data="japanese_vowels", backbone="uea", method="plain", profile="smoke"
)
QUIET = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu")
CSV = Path("out/agf-table-1.csv")
CACHES = ("data", "tokens", "tokenizers")  # folders in runs that hold nothing of a run

Edit = Callable[[Path], object]


def overwrite(content: bytes) -> Edit:
    def edit(path: Path) -> None:
        path.write_bytes(content)

    return edit


def append(line: str) -> Edit:
    def edit(path: Path) -> None:
        path.write_text(path.read_text() + line + "\n")

    return edit


def keep_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def replace_with(make: Edit) -> Edit:
    def edit(path: Path) -> None:
        path.unlink()
        make(path)

    return edit


BROKEN: dict[str, Edit] = {
    "empty": overwrite(b""),
    "cut in half": keep_half,
    "binary": overwrite(bytes(range(256)) * 4),
    "NUL bytes": overwrite(b"\0" * 64),
    "latin-1": overwrite("caf\xe9".encode("latin-1")),
    "an HTML page": overwrite(b"<!DOCTYPE html><html><body>Please log in</body></html>"),
    "a list": overwrite(b"[]"),
    "an empty mapping": overwrite(b"{}"),
    "null": overwrite(b"null"),
    "a number": overwrite(b"3"),
    "deeply nested": overwrite(b"[" * 5000 + b"]" * 5000),
    "a folder": replace_with(Path.mkdir),
}
GONE: dict[str, Edit] = {
    "missing": Path.unlink,
    "a dangling link": replace_with(lambda path: path.symlink_to("nowhere")),
}


def change_json(*keys: str, value: Any = None, drop: bool = False) -> Edit:
    def edit(path: Path) -> None:
        content = part = json.loads(path.read_text())
        for key in keys[:-1]:
            part = part[key]
        if drop:
            del part[keys[-1]]
        else:
            part[keys[-1]] = value
        path.write_text(json.dumps(content))

    return edit


METRIC = ("metrics", "test/accuracy")
RESULT: dict[str, Edit] = {
    **{
        f"metric {value!r}": change_json(*METRIC, value=value)
        for value in ("abc", None, [1], {}, True, float("nan"), float("inf"), 1e308, "0.5")
    },
    "no metrics": change_json("metrics", drop=True),
    "metrics a list": change_json("metrics", value=[1]),
    "metrics empty": change_json("metrics", value={}),
    "metric missing": change_json(*METRIC, drop=True),
    "no profile": change_json("profile", drop=True),
    "profile HTML": change_json("profile", value='"><script>alert(1)</script>'),
    "no parameters": change_json("parameters", drop=True),
    "parameters a text": change_json("parameters", value="many"),
    "of another seed": change_json("seed", value=7),
    "of another hash": change_json("hash", value="0123456789"),
    "of another app": change_json("app", value="vision"),
    "of another method": change_json("method", value="gfsa"),
    "weights_source a list": change_json("weights_source", value=[1]),
}
SPECTRAL: dict[str, Edit] = {
    "depth a text": change_json("depth", value="abc"),
    "depth of lists": change_json("depth", value=[[1]]),
    "depth empty": change_json("depth", value=[]),
    "response null": change_json("response", value=None),
    "no depth": change_json("depth", drop=True),
}


def unfinished(edit: Edit) -> Edit:
    """Take the result away first, as if the run had been killed before it."""

    def both(path: Path) -> None:
        (path.parents[1] / "result.json").unlink()
        edit(path)

    return both


@dataclass(frozen=True)
class EditedFile:
    """A file of a run, the edits that are tried, and the answers of the commands.

    An answer is the reason why a command may go on; `!` before it: it must name the file.
    """

    pattern: str
    edits: dict[str, Edit]
    answers: dict[str, str]


LEFT_OUT = "!its cell is left out, and the file named"
NO_FIGURE = "!it has no figure of it, and the file is named"
NOT_WRITTEN = "a figure or a note less, as of a run that did not write it"
CUT_EVENT = "events that are cut are left out: a kill cuts the last one"
COMPLETED = "a run without a result is completed"
LEFT_ALONE = "a finished run is left alone"
SET_ASIDE = "!set aside with a warning"
CHECKPOINT = "testing reads the checkpoint alone"
RESULTS = "it reads results alone"
NO_COMMIT = "the commit is unknown then"
NO_LOCK = "a finished run needs no lock"
FILES = (
    EditedFile("result.json", BROKEN | RESULT, {
        "fit": SET_ASIDE, "test": CHECKPOINT, "table": LEFT_OUT, "compare": LEFT_OUT}),
    EditedFile("result.json", GONE, {
        "fit": COMPLETED, "test": CHECKPOINT, "table": "its cell is left out as not finished",
        "compare": COMPLETED}),
    EditedFile("spectral.json", BROKEN | SPECTRAL, {
        "fit": LEFT_ALONE, "table": NO_FIGURE, "compare": NO_FIGURE}),
    EditedFile("spectral.json", GONE, {
        "fit": LEFT_ALONE, "table": NOT_WRITTEN, "compare": NOT_WRITTEN}),
    EditedFile("config.yaml", BROKEN, {
        "fit": LEFT_ALONE, "table": NO_FIGURE, "compare": NO_FIGURE}),
    EditedFile("config.yaml", GONE, {
        "fit": LEFT_ALONE, "table": NOT_WRITTEN, "compare": NOT_WRITTEN}),
    EditedFile("environment.yaml", BROKEN | GONE, {
        "fit": LEFT_ALONE, "table": NO_COMMIT, "compare": NO_COMMIT}),
    EditedFile("tensorboard/events*", BROKEN | GONE, {
        "fit": LEFT_ALONE, "table": CUT_EVENT, "compare": CUT_EVENT}),
    EditedFile("checkpoints/best.ckpt", BROKEN | GONE | {"one byte flipped": flip_middle}, {
        "fit": LEFT_ALONE, "test": "", "table": RESULTS, "compare": RESULTS}),
    EditedFile("checkpoints/best.ckpt",
               {f"of an unfinished run, {name}": unfinished(edit)
                for name, edit in (BROKEN | GONE | {"one byte flipped": flip_middle}).items()},
               {"fit": SET_ASIDE}),
    EditedFile("checkpoints/step=*.ckpt",
               {f"of an unfinished run, {name}": unfinished(edit)
                for name, edit in BROKEN.items()},
               {"fit": SET_ASIDE}),
    EditedFile("lock", {"a folder": replace_with(Path.mkdir), "a FIFO": replace_with(os.mkfifo)}, {
        "fit": NO_LOCK, "table": NO_LOCK, "compare": NO_LOCK}),
)  # fmt: skip
NEW_TABLE = "a table without a file is a new one"
CSV_EDITS: dict[str, Edit] = {
    **BROKEN,
    **GONE,
    "other columns": overwrite(b"a,b\n1,2\n"),
    "a value as text": append("agf-table-1,agf,japanese_vowels,smoke,validation,0,abc,x,y,"),
    "a line too long": append("a," * 30),
    "a line too short": append("a"),
    "NaN": append("agf-table-1,agf,japanese_vowels,smoke,validation,0,nan,x,y,"),
    "infinite": append("agf-table-1,agf,japanese_vowels,smoke,validation,0,inf,x,y,"),
    "unknown row": append("agf-table-1,nonsense,japanese_vowels,smoke,validation,0,1.0,x,y,"),
    "another table": append("agf-table-9,agf,japanese_vowels,smoke,validation,0,1.0,x,y,"),
    "unclosed quote": append('"agf-table-1,agf'),
}


def fit_arguments() -> list[str]:
    return ["fit", *CELL.arguments("runs"), *QUIET]


def make_template(scratch: Path, fill: Callable[[Path], None]) -> None:
    """Train the cell and publish its table in a child; every case copies what it wrote."""
    target = scratch / "finished"
    (answer,) = run_children([partial(write_template, target)], fill, scratch / "template")
    if answer.status:
        raise RuntimeError(f"the run to edit was not made: {answer.error}")
    os.environ["FINISHED"] = str(target)


def write_template(target: Path) -> None:
    run_app(SEQUENCE.app, fit_arguments())
    run_launcher(TABLE)
    shutil.copytree("runs", target / "runs", ignore=shutil.ignore_patterns(*CACHES))
    shutil.copytree("out", target / "out")


TABLE = ("table", "agf-table-1", "--profile=smoke", "--seeds=[0]", "--rows=[transformer]",
         "--columns=[japanese_vowels]", "--out=out", "--train=false")  # fmt: skip
COMPARE = ("compare", "sequence", "--data=japanese_vowels", "--methods=[plain]", "--profile=smoke")


def list_cases() -> Iterator[Case]:
    for file in FILES:
        for edit_name, edit in file.edits.items():
            for command, answer in file.answers.items():
                name = f"{command}: {file.pattern} {edit_name}"
                mentions = Path(file.pattern).name.partition("*")[0]
                yield make_case(command, name, mentions, answer, file.pattern, edit)
    for edit_name, edit in CSV_EDITS.items():
        answer = NEW_TABLE if edit_name in GONE else ""
        yield make_case("table", f"table: {CSV.name} {edit_name}", CSV.name, answer, "", edit)


def make_case(
    command: str, name: str, mentions: str, answer: str, pattern: str, edit: Edit
) -> Case:
    reason, warns = answer.removeprefix("!"), answer.startswith("!")
    prepare = partial(edit_copy, pattern, edit)
    return Case(
        KIND, "sequence", name, partial(run_command, command), mentions, reason, warns, prepare
    )


def edit_copy(pattern: str, edit: Edit, folder: Path) -> None:
    """Copy the finished run and its table, and edit a file."""
    shutil.copytree(os.environ["FINISHED"], folder, dirs_exist_ok=True, symlinks=True)
    edit(next((folder / find_folder()).glob(pattern)) if pattern else folder / CSV)


def run_command(command: str) -> None:
    if command in ("table", "compare"):
        run_launcher(TABLE if command == "table" else COMPARE)
    else:
        reuse_parsers()
        run_app(SEQUENCE.app, [command, *fit_arguments()[1:]])


@cache
def find_folder() -> Path:
    """The folder of the cell's run."""
    (found,) = plan_runs([CELL]).values()
    return found.folder
