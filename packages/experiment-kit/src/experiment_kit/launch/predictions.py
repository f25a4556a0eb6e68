"""The command that predicts files which a user names, with the best epoch of a finished run."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from experiment_kit.cli import AppCLI
from experiment_kit.errors import UserError
from experiment_kit.launch.plan import load_app
from experiment_kit.launch.records import read_config
from experiment_kit.run import Run, write_atomically


def predict_files(run: str, files: list[str], out: str = "predictions.csv") -> None:
    """Predict the inputs in FILES, and write names and answers to the csv file OUT.

    Classes come with their probability; a text of speech is that of greedy CTC.

    Args:
        run: the folder of a finished run
        files: images (vision), recordings (speech), texts, one a line, with a tab between the two
            of a pair (nlp), SMILES, one a line (graph), or .ts files (sequence)
        out: the csv file that is written
    """
    if not files:
        raise UserError("--files=[] names none: name at least one file")
    if not Path(out).name or Path(out).is_dir():
        raise UserError(f"--out={out} names no file: name a csv file")
    for path in map(Path, files):
        if not path.is_file():
            raise UserError(f"{path} {'is no regular file' if path.exists() else 'does not exist'}")
    folder = Path(run)
    model, data = load_best_epoch(folder, read_run(folder)["app"])
    names, data.splits["named"] = data.read_named(list(map(Path, files)))
    outputs = [output for _, output in answer_batches(model, data.eval_loader("named"))]
    text = io.StringIO()
    csv.writer(text).writerows(list_rows(names, outputs, data.label_names))
    write_atomically(Path(out), text.getvalue())
    print(f"wrote {out}: {len(names)} predictions")


def read_run(folder: Path) -> dict[str, Any]:
    """Return the config of a finished run, and its app; UserError if it has not finished."""
    result, config = Run(folder).read_result(), read_config(folder / "config.yaml")
    if result is None or config is None:
        raise UserError(f"{folder} is the folder of no finished run: it lacks result.json or "
                        "config.yaml")  # fmt: skip
    return {**config, "app": result["app"]}


def load_best_epoch(folder: Path, app: str) -> tuple[Any, Any]:
    """Build the model of a finished run with the weights of its best epoch, and its data."""
    cli = AppCLI(load_app(app), ["fit", "-c", str(folder / "config.yaml")])
    model, data = cli.build_model_and_data()
    path = Run(folder).find_test_checkpoint()
    if path is None:
        raise UserError(f"{folder} has no checkpoint: its answers are gone")
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True)["state_dict"])
    model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    data.prepare_data()
    return model, data


def answer_batches(model: Any, loader: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each batch and the output of `predict_step` for it."""
    with torch.no_grad():
        for number, batch in enumerate(loader):
            moved = model.transfer_batch_to_device(batch, model.device, 0)
            yield batch, model.predict_step(moved, number)


def list_rows(
    names: Sequence[str], outputs: Sequence[Any], label_names: Sequence[str]
) -> Iterator[Sequence[Any]]:
    """Yield a header and the row of each name: its text, its number, or its label and score.

    Texts come with their names, in any order. The score is the probability of the label.

    >>> [*list_rows(["a", "b"], [[("b", "two"), ("a", "one")]], ())]
    [('name', 'text'), ('a', 'one'), ('b', 'two')]
    >>> [*list_rows(["a"], [torch.tensor([[0.0, 0.0, 20.0]])], ["x", "y", "z"])][1]
    ('a', 'z', 1.0)
    """
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
