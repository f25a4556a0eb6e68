"""The command that lists the samples on which two finished runs give different answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from jsonargparse.typing import PositiveInt
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiment_kit.app_files import read_option
from experiment_kit.errors import UserError, shorten_text
from experiment_kit.launch.plan import answer_batches, load_best_epoch, read_run
from experiment_kit.run_files import is_number, write_atomically

_INPUT_LENGTH = 300  # characters of an input in the terminal; a file has all
_HEAD = ("sample", "input", "target")
# options that choose the samples of both splits, and of the validation split alone
_SAME = ("data.class_path", "data.init_args.dataset_name")
_SAME_VAL = ("data.init_args.protocol", "data.init_args.val_fraction", "seed_everything")


def list_disagreements(
    run_a: str,
    run_b: str,
    split: Literal["test", "val"] = "test",
    limit: PositiveInt = 20,
    out: str = "",
    trust: list[str] | str = "",
) -> None:
    """Print the samples of a split on which two finished runs differ: input, target, both answers.

    Numbers are listed by their difference, the largest first.

    Args:
        run_a: the folder of a run
        run_b: the folder of another run, of the same app and data set
        split: the samples, those of test or of validation data
        limit: the largest number of samples that are printed
        out: a csv file that is written with all of them; none by default
        trust: classes, as package.Class, that the configs of the runs may name besides ours
    """
    folders = [Path(run_a), Path(run_b)]
    configs = [read_run(folder) for folder in folders]
    keys = _SAME if split == "test" else _SAME + _SAME_VAL
    for key in ("app", *keys):
        a, b = (read_option(config, key) for config in configs)
        if a != b:
            raise UserError(f"the runs have other samples: {key} is {a!r} and {b!r}")
    if out and Path(out).exists() and not Path(out).read_bytes().startswith(b"sample,"):
        raise UserError(f"--out={out} is there, and no file of disagreements: name another file")
    first, second = (answer_split(folder, split, trust) for folder in folders)
    if [line[1] for line in first] != [line[1] for line in second]:
        raise UserError(f"the runs have other samples in {split}: their targets differ")
    rows = find_disagreements(first, second)
    depths = (["/".join(f.resolve().parts[-n - 1 : -1]) for f in folders] for n in (1, 2, 3))
    names = next((found for found in depths if found[0] != found[1]), [run_a, run_b])
    if out:
        frame = pd.DataFrame(rows, columns=[*_HEAD, *names], dtype=object)
        write_atomically(Path(out), frame.to_csv(index=False, lineterminator="\r\n"))
    console = Console()
    table = Table(*map(escape, (*_HEAD, *names)), show_lines=True)
    for row in rows[:limit]:
        texts = (f"{cell:.4g}" if is_number(cell) else str(cell) for cell in row)
        table.add_row(*(escape(shorten_text(text, _INPUT_LENGTH)) for text in texts))
    console.print(table)
    more = f", {limit} of which are here" if len(rows) > limit else ""
    console.print(f"{len(rows)} of {len(first)} samples of {split} differ{more}"
                  + (f"; {escape(out)} has all" if out else ""))  # fmt: skip


def answer_split(folder: Path, split: str, trust: list[str] | str) -> list[tuple[str, Any, Any]]:
    """Return input, target and answer of the samples of a split, by the best epoch of a run."""
    model, data = load_best_epoch(folder, trust, strict=True)
    if not (hasattr(data, "describe_inputs") and hasattr(data, "list_targets")):
        raise UserError(f"{type(data).__name__} must define describe_inputs and list_targets")
    data.setup("predict" if split == "test" else "validate")
    loaders = data.predict_dataloader() if split == "test" else data.val_dataloader()
    found: list[tuple[str, Any, Any]] = []
    names = getattr(data, "label_names", ())
    for loader in loaders if isinstance(loaders, list) else [loaders]:
        for batch, output in answer_batches(model, loader):
            parts = data.describe_inputs(batch), data.list_targets(batch), read_answers(output)
            found += [(text, *(names[x] if names and isinstance(x, int) else x for x in both))
                      for text, *both in zip(*parts, strict=True)]  # fmt: skip
    return found


def read_answers(output: Any) -> list[Any]:
    """Return the answers of a batch: texts, numbers, or the likeliest classes of logits."""
    if not isinstance(output, torch.Tensor):
        return [text for _, text in output]
    if output.ndim > 2:
        raise UserError("the runs answer with a distribution for every token: name other runs")
    if output.ndim == 2 and output.shape[1] > 1:
        return output.argmax(-1).tolist()
    return output.flatten().float().tolist()


def find_disagreements(
    first: Sequence[tuple[str, Any, Any]], second: Sequence[tuple[str, Any, Any]]
) -> list[list[Any]]:
    """Return number, input, target and both answers of the samples that differ."""
    pairs = enumerate(zip(first, second, strict=True))
    rows = [[i, *one, two[2]] for i, (one, two) in pairs if one[2] != two[2]]
    if any(isinstance(row[3], float) for row in rows):
        rows.sort(key=lambda row: -abs(row[3] - row[4]))
    return rows
