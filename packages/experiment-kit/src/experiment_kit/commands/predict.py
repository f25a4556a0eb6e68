"""The command that predicts files which a user names, with the best epoch of a finished run."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from experiment_kit.errors import UserError
from experiment_kit.launch.plan import answer_batches, load_best_epoch
from experiment_kit.run_files import write_atomically


def predict_files(
    run: str, files: list[str], out: str = "predictions.csv", trust: list[str] | str = ""
) -> None:
    """Predict the inputs in FILES, and write names and answers to the csv file OUT.

    Classes have a probability; speech is decoded greedily. The run's data is read, as in training.

    Args:
        run: the folder of a finished run
        files: images (vision), recordings (speech), texts, one a line, with a tab between the two
            of a pair (nlp), SMILES, one a line (graph), or .ts files (sequence)
        out: the csv file that is written
        trust: classes, as package.Class, that the config of the run may name besides ours
    """
    if not files:
        raise UserError("--files=[] names none: name at least one file")
    if absent := [path for path in files if not Path(path).is_file()]:
        raise UserError(f"{absent[0]} is not a file")
    if Path(out).exists() and (out in files or not Path(out).read_bytes().startswith(b"name,")):
        raise UserError(f"--out={out} is there, and no file of predictions: name another file")
    model, data = load_best_epoch(Path(run), trust)
    if not hasattr(data, "read_files"):
        raise UserError(f"{type(data).__name__} has no read_files: take attention-<app> predict")
    names, data.splits["named"] = data.read_files(list(map(Path, files)))
    outputs = [output for _, output in answer_batches(model, data.eval_loader("named"))]
    text = io.StringIO()
    csv.writer(text).writerows(list_rows(names, outputs, data.label_names))
    write_atomically(Path(out), text.getvalue())
    print(f"wrote {out}: {len(names)} predictions")


def list_rows(
    names: Sequence[str], outputs: Sequence[Any], label_names: Sequence[str]
) -> Iterator[Sequence[Any]]:
    """Yield a header and the row of each name: its text, its number, or its label and score."""
    if not isinstance(outputs[0], torch.Tensor):
        texts = dict(pair for output in outputs for pair in output)
        yield "name", "text"
        yield from ((name, texts[name]) for name in names)
        return
    values = torch.cat([output.float().cpu() for output in outputs])
    if values.ndim == 1 or values.shape[1] == 1:
        yield "name", "value"
        yield from zip(names, values.flatten().tolist(), strict=True)
        return
    scores, labels = values.softmax(-1).max(-1)
    yield "name", "label", "score"
    for name, label, score in zip(names, labels.tolist(), scores.tolist(), strict=True):
        yield name, label_names[label] if label_names else label, round(score, 6)
