"""The command that lists the samples on which two finished runs give different answers."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiment_kit.cli import read_option
from experiment_kit.errors import UserError, shorten_text
from experiment_kit.launch.plan import answer_batches, load_best_epoch, read_run
from experiment_kit.run import write_atomically
from experiment_kit.run_files import is_number

_INPUT_LENGTH = 300  # characters of an input in the terminal; a file has all
_HEAD = ("sample", "input", "target")
# options that choose the samples of both splits, and of the validation split alone
_SAME = ("data.class_path", "data.init_args.dataset_name")
_SAME_VAL = ("data.init_args.protocol", "data.init_args.val_fraction", "seed_everything")


@dataclass(frozen=True)
class Answers:
    """The answers of a run to the samples of a split, in their order."""

    inputs: list[str]
    targets: list[Any]
    answers: list[Any]


def list_disagreements(
    run_a: str,
    run_b: str,
    split: Literal["test", "val"] = "test",
    limit: int = 20,
    out: str = "",
) -> None:
    """Print the samples of a split on which two finished runs differ: input, target, both answers.

    Numbers are listed by their difference, the largest first.

    Args:
        run_a: the folder of a run
        run_b: the folder of another run, of the same app and data set
        split: the samples, those of test or of validation data
        limit: the largest number of samples that are printed
        out: a csv file that is written with all of them; none by default
    """
    if limit < 1:
        raise UserError(f"--limit={limit}: expected a number of samples, at least 1")
    folders = [Path(run_a), Path(run_b)]
    configs = [read_run(folder) for folder in folders]
    keys = _SAME if split == "test" else _SAME + _SAME_VAL
    for key in ("app", *keys):
        a, b = (read_option(config, key) for config in configs)
        if a != b:
            raise UserError(f"the runs have other samples: {key} is {a!r} and {b!r}")
    pairs = zip(folders, configs, strict=True)
    first, second = (answer_split(folder, config["app"], split) for folder, config in pairs)
    if first.targets != second.targets:
        raise UserError(f"the runs have other samples in {split}: their targets differ, as where "
                        "their data does")  # fmt: skip
    rows = [*find_disagreements(first, second)]
    names = _name_runs(folders)
    if out:
        text = io.StringIO()
        csv.writer(text).writerows([[*_HEAD, *names], *rows])
        write_atomically(Path(out), text.getvalue())
    console, total = Console(), len(first.answers)
    table = Table(*map(escape, (*_HEAD, *names)), show_lines=True)
    for row in rows[:limit]:
        table.add_row(*(escape(shorten_text(_format(cell), _INPUT_LENGTH)) for cell in row))
    console.print(table)
    more = f", {limit} of which are here" if len(rows) > limit else ""
    console.print(f"{len(rows)} of {total} samples of {split} differ{more}"
                  + (f"; {escape(out)} has all" if out else ""))  # fmt: skip


def _name_runs(folders: Sequence[Path]) -> list[str]:
    """Name runs by their methods, or more of their folders where those are the same."""
    for depth in (1, 2, 3):
        names = ["/".join(folder.resolve().parts[-depth - 1 : -1]) for folder in folders]
        if len({*names}) == len(names):
            return names
    return [folder.name for folder in folders]


def answer_split(folder: Path, app: str, split: str) -> Answers:
    """Predict a split with the best epoch of a run."""
    model, data = load_best_epoch(folder, app)
    data.setup("predict" if split == "test" else "validate")
    loaders = data.predict_dataloader() if split == "test" else data.val_dataloader()
    found = Answers([], [], [])
    for loader in loaders if isinstance(loaders, list) else [loaders]:
        for batch, output in answer_batches(model, loader):
            found.answers.extend(read_answers(output))
            found.inputs.extend(data.describe_inputs(batch))
            found.targets.extend(data.list_targets(batch))
    return found


def read_answers(output: Any) -> list[Any]:
    """Return the answers of a batch: texts, numbers, or the likeliest classes of logits.

    >>> read_answers(torch.tensor([[0.1, 0.9], [2.0, 1.0]])), read_answers(torch.tensor([[0.5]]))
    ([1, 0], [0.5])
    >>> read_answers([("a.wav", "one two")])
    ['one two']
    """
    if not isinstance(output, torch.Tensor):
        return [text for _, text in output]
    if output.ndim > 2:
        raise UserError(
            "the runs answer with a distribution for every token, which is no single answer: name "
            "runs that choose a label, a number or a text"
        )
    if output.ndim == 2 and output.shape[1] > 1:
        return output.argmax(-1).tolist()
    return output.flatten().float().tolist()


def find_disagreements(first: Answers, second: Answers) -> Iterator[list[Any]]:
    """Yield number, input, target and both answers of the samples that differ.

    Numbers come by their difference, the largest first, and classes and texts in their order.
    """
    pairs = list(zip(first.answers, second.answers, strict=True))
    differing = [i for i, (a, b) in enumerate(pairs) if a != b]
    if any(isinstance(a, float) for a, _ in pairs):
        differing.sort(key=lambda i: -abs(pairs[i][0] - pairs[i][1]))
    for i in differing:
        yield [i, first.inputs[i], first.targets[i], *pairs[i]]


def _format(value: Any) -> str:
    return f"{value:.4g}" if is_number(value) else str(value)
