"""The command that diagnoses any model: a table, a page with figures, and a verdict."""

import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import attention_core
import torch
from attention_core.diagnosis import Diagnosis
from attention_core.diagnosis.leverage import DEFAULT_MECHANISMS
from rich.console import Console
from torch import nn

from experiment_kit.diagnosis.model_inputs import find_input_files
from experiment_kit.diagnosis.model_sources import RANDOM, load_run, load_source
from experiment_kit.diagnosis.page import write_diagnosis_page
from experiment_kit.errors import UserError, convert_user_errors

# each at identity
_NAMES = ("gfsa", "attnscale", "centered", "featscale", "contranorm")
MECHANISMS: dict[str, Any] = dict(zip(_NAMES, DEFAULT_MECHANISMS, strict=True))


def diagnose_model(
    model: str,
    input: list[str] | str = "",
    layers: str = "",
    samples: int = 8,
    out: str = "",
    pretrained: bool = False,
    backbone: str = "",
    method: str = "",
    mechanisms: list[str] | str = "",
    where: str = "",
) -> None:
    """Say whether a model over-smooths, from which layer on and by which step; write a page.

    Args:
        model: timm:NAME; hf:FOLDER, also with a hub id, a model type such as bert, or minilm;
            run:FOLDER of a finished run; or checkpoint:FILE with --backbone
        input: files or a folder of images, texts (a sample a line) or recordings; made by default
        layers: a slice of the attention layers, such as "6:"; all by default
        samples: the largest number of samples
        out: the file of the page, by default runs/diagnosis/MODEL.html
        pretrained: read the weights of timm or of the hub, instead of random ones
        backbone: the model of a checkpoint, an overlay of the vision app or a name of timm
        method: the mechanism of a checkpoint whose names do not tell it
        mechanisms: those whose leverage is measured, such as [gfsa,featscale]; [] for none
        where: the class of attention that attach does not know
    """
    began = time.perf_counter()
    chosen, paths, console = _choose_mechanisms(mechanisms), _list_texts(input), Console()
    if samples < 1:
        raise UserError(f"--samples={samples}: expected a number of at least 1")
    kind, _, name = model.partition(":")
    network: Any
    if kind == "run" and name:
        network, batch, mask, note = load_run(name, find_input_files(paths), samples)
        notes = [note]
    else:
        source = load_source(model, pretrained, backbone, method)
        batch, note = source.make_batch(paths, samples)
        network, mask, notes = source.network, None, [source.weights, note]
    _check_weights(network)
    inputs = batch if isinstance(batch, tuple) else (batch,)
    prefix = f"{model} does not run on its inputs: "
    with torch.no_grad(), convert_user_errors(Exception, prefix=prefix):
        network(**batch) if isinstance(batch, dict) else network(*inputs)
    loaded = time.perf_counter()
    options: dict[str, Any] = {"mask": mask, "mechanisms": chosen, "where": where or None}
    with convert_user_errors(ValueError, prefix=f"{model}: "):
        report = attention_core.diagnose(network, batch, layers or None, **options)
    report = _name_report(report, model)
    if first := next((note for note in notes if note.startswith(RANDOM)), ""):
        report = replace(report, verdict=f"{first} {report.verdict}")
        notes.remove(first)
    console.print(str(report), markup=False, highlight=False)
    for note in notes:
        console.print(note, markup=False, highlight=False)
    path = Path(out or f"runs/diagnosis/{re.sub(r'[^A-Za-z0-9.]+', '-', model).strip('-')}.html")
    write_diagnosis_page(path, f"Diagnosis of {report.model}", notes, sys.argv[1:], report)
    took = f"loaded in {loaded - began:.0f} s, {time.perf_counter() - began:.0f} s in all"
    console.print(f"{path}: {took}", markup=False, highlight=False, soft_wrap=True)


def _list_texts(value: list[str] | str) -> list[str]:
    return value if isinstance(value, list) else [value] if value else []


def _choose_mechanisms(names: list[str] | str) -> list[Any] | None:
    """Return the factories of mechanisms; None, for all of them, where none is named."""
    chosen = _list_texts(names)
    if unknown := [name for name in chosen if name not in MECHANISMS]:
        raise UserError(f"--mechanisms has {unknown[0]!r}; there are: {', '.join(MECHANISMS)}")
    return None if names == "" else [MECHANISMS[name] for name in chosen]


def _check_weights(network: nn.Module) -> None:
    for name, weight in network.named_parameters():
        if not weight.isfinite().all():
            shown = f"{name.removeprefix('run.')} {tuple(weight.shape)}"
            raise UserError(f"the weight {shown} has a value that is not finite: the training of "
                            "this model may have diverged")  # fmt: skip


def _name_report(report: Diagnosis, model: str) -> Diagnosis:
    """Name a report after the model as the user names it, a run by the end of its path."""
    kind, _, name = model.partition(":")
    short = "/".join(Path(name).parts[-3:]) if kind == "run" else name
    layers = [
        replace(layer, name=re.sub(r"^run\.(model\.)?", "", layer.name)) for layer in report.layers
    ]
    return replace(report, model=f"{kind}:{short}", layers=layers)
