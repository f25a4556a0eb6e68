"""The command that diagnoses any models: tables, a page with figures, and verdicts."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import attention_core
import torch
from attention_core import attach, load_mechanism
from attention_core.diagnosis import Diagnosis
from attention_core.diagnosis.leverage import DEFAULT_MECHANISMS
from jsonargparse.typing import PositiveInt
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from experiment_kit.diagnosis.checkpoint_files import list_checkpoints
from experiment_kit.diagnosis.model_sources import RANDOM, SAMPLES, load_model
from experiment_kit.diagnosis.page import tabulate_models, write_diagnosis_page, write_reports
from experiment_kit.environment import split_list
from experiment_kit.errors import UserError, check_name, convert_user_errors
from experiment_kit.pages.tables import print_page_table

# each at identity
_NAMES = ("gfsa", "attnscale", "centered", "featscale", "contranorm")
MECHANISMS: dict[str, Any] = dict(zip(_NAMES, DEFAULT_MECHANISMS, strict=True))
_TOKENS = ("featscale", "contranorm")  # functions of tokens; the others are filters


def diagnose_models(
    models: list[str],
    input: list[str] | str = "",
    layers: str = "",
    samples: PositiveInt = SAMPLES,
    out: str = "",
    random: bool = False,
    backbone: str = "",
    method: str = "",
    mechanisms: list[str] | str = "",
    where: str = "",
    skip: list[str] | str = "",
    attach: list[str] | str = "",
    class_: str = "",
    kwargs: dict[str, Any] | None = None,
    shape: list[int] | None = None,
    trust: list[str] | str = "",
) -> None:
    """Say whether models over-smooth, where and by which step; compare several on one page.

    Args:
        models: timm:NAME; hf:FOLDER, also with a hub id, a model type such as bert, or minilm;
            run:FOLDER of a finished run, start:FOLDER for its first step; checkpoint:FILE with
            --backbone or --class; class:PACKAGE.MODULE:CLASS; a folder of checkpoints, hf:FOLDER
            or checkpoint:FOLDER
        input: files or a folder of images, texts (a sample a line) or recordings, or the batch of a
            file of torch.save, x.pt; made by default
        layers: a slice of the attention layers, such as "6:"; all by default
        samples: the largest number of samples; a batch of torch.save is taken whole
        out: the file of the page, or its folder, by default runs/diagnosis; tables are beside it
        random: take random weights; by default those of timm and of the hub, if in reach
        backbone: the model of a checkpoint, an overlay of the vision app or a name of timm
        method: the mechanism of a checkpoint whose names do not tell it
        mechanisms: those whose leverage is measured, such as [gfsa,featscale]; [] for none, which
            is the default for several models
        where: the class of attention that attach does not know
        skip: tokens to leave out: cls, registers; padding always is left out
        attach: mechanisms at their start, such as centered, or folders of save_mechanism; each
            model is also diagnosed with each of them
        class_: a class of your own, PACKAGE.MODULE:CLASS, for checkpoint:FILE or alone
        kwargs: the keyword arguments of the class
        shape: the shape of a sample that the class takes, by default 3, 224, 224
        trust: classes, as package.Class, that the files of a run or of save_mechanism may name
            besides ours
    """
    console, paths = Console(), split_list(input)
    named, skipped = split_list(mechanisms), split_list(skip)
    chosen = [MECHANISMS[check_name(name, MECHANISMS, "value of --mechanisms")] for name in named]
    attached, trusted = split_list(attach), split_list(trust)
    for name in (name for name in attached if not Path(name).exists()):
        check_name(name, MECHANISMS, "mechanism or file of --attach")
    for name in skipped:
        check_name(name, ["cls", "registers"], "value of --skip")
    models = models or ([f"class:{class_}"] if class_ else [])
    followed = {model: list_checkpoints(model) for model in models}
    names = [name for model, steps in followed.items() for name in steps or [model]]
    if not names:
        raise UserError("diagnose takes a model, such as timm:vit_small_patch16_224")
    path = name_page(models, out)
    several = len(names) > 1 or bool(attached)
    options: dict[str, Any] = {"where": where or None, "layers": layers or None}
    options["mechanisms"] = chosen if mechanisms != "" or several else None
    source: dict[str, Any] = {"random": random, "kwargs": kwargs, "shape": shape}
    source |= {"backbone": class_ or backbone, "method": method}
    reports, notes = dict[str, Diagnosis](), dict[str, list[str]]()
    for name in track(names, "diagnose", console=console, transient=True, disable=not several):
        network, batches, said = load_model(name, paths, samples, trusted, **source)
        batch, mask = next(batches)
        note = f"diagnose {name}: long sequences take minutes; fewer --samples take less"
        console.print(note, markup=False, highlight=False, soft_wrap=True)
        for label, part in _attach_each(name, network, attached, trusted, where or None):
            report = diagnose_network(label, part, batch, mask, skipped, options)
            if any(note.startswith(RANDOM) for note in said):
                inputs = "" if paths else " and the inputs synthetic"
                first = f"{RANDOM}{inputs}: this says nothing of a trained model."
                report = replace(report, verdict=f"{first} {report.verdict}")
            reports[label], notes[label] = report, said
            console.print(str(report), *said, sep="\n", markup=False, highlight=False)
    if several:
        print_page_table(tabulate_models(reports), console)
    steps = {name: step for found in followed.values() for name, step in found.items()}
    write_diagnosis_page(path, reports, notes, steps)
    written = ", ".join(map(str, write_reports(path, reports)))
    console.print(f"{path}; {written}", markup=False, highlight=False, soft_wrap=True)


def name_page(models: Sequence[str], out: str) -> Path:
    """Return the file of a page, or its place in a folder; refuse the names of its tables."""
    file = re.sub(r"(?:[^\w.]|_)+", "-", "_".join(models)).strip("-")
    if len(short := file.encode()) > 120:
        digest = hashlib.sha256(",".join(models).encode()).hexdigest()[:10]
        file = f"{short[:109].decode(errors='ignore')}-{digest}"
    path = Path(out or "runs/diagnosis")
    if path.is_dir() or out.endswith("/") or not (path.suffix or path.exists()):
        return path / f"{file}.html"
    if path.suffix in (".csv", ".json"):
        raise UserError(f"--out={out} is no file for a page: name one, such as page.html")
    return path


def diagnose_network(
    model: str, network: nn.Module, batch: Any, mask: Tensor | None, skipped: list[str],
    options: Mapping[str, Any],
) -> Diagnosis:  # fmt: skip
    """Diagnose a network without the skipped tokens; UserError for what cannot be diagnosed."""
    options = {**options, "mask": mask}
    with convert_user_errors(ValueError, prefix=f"{model}: "):
        if skipped:
            light = attention_core.diagnose(network, batch, measures="light", **options)
            options["mask"] = mask_prefix(network, light, skipped, mask)
        report = attention_core.diagnose(network, batch, **options)
    # a run is named by the end of its path
    kind, _, name = model.partition(":")
    short = "/".join(Path(name).parts[-3:]) if kind in ("run", "start") else name
    layers = [replace(x, name=re.sub(r"^run\.(model\.)?", "", x.name)) for x in report.layers]
    return replace(report, model=f"{kind}:{short}", layers=layers)


def mask_prefix(
    network: nn.Module, report: Diagnosis, skipped: list[str], mask: Tensor | None
) -> Tensor:
    """Return the mask of valid tokens without the class token or the registers, at the front."""
    for module in network.modules():
        known = (getattr(module, name, None) for name in ("cls_token", "distillation_token"))
        named = sum(isinstance(token, Tensor) for token in known)
        x = getattr(module, "register_tokens", None)  # in transformers
        registers = x.shape[1] if isinstance(x, Tensor) else getattr(module, "num_reg_tokens", 0)
        prefix = getattr(module, "num_prefix_tokens", named + registers)  # in timm
        classes = prefix - registers  # a distillation token is one
        first = 0 if "cls" in skipped else classes
        last = prefix if "registers" in skipped else classes
        patches = getattr(getattr(module, "patch_embed", None), "num_patches", None)
        # the class token of CaiT enters behind these layers, which have the patches alone
        if first < last and patches != report.num_tokens:
            shape = report.num_samples, report.num_tokens
            mask = torch.ones(shape, dtype=torch.bool) if mask is None else mask.clone()
            mask[:, first:last] = False
            return mask
    raise UserError(f"--skip={','.join(skipped)}: {report.model} has no such token in its layers")


def _attach_each(
    name: str, network: Any, attached: list[str], trusted: list[str], where: str | None
) -> Any:
    """Yield the model, and then the model with each mechanism."""
    yield name, network
    for mechanism in attached:
        with convert_user_errors(ValueError, prefix=f"--attach={mechanism}: "):
            if Path(mechanism).exists():
                load_mechanism(network, mechanism, trusted, where)
            else:
                slot = "tokens" if mechanism in _TOKENS else "filter"
                attach(network, **{slot: MECHANISMS[mechanism]}, where=where)
        yield f"{name} + {'-'.join(Path(mechanism).parts[-2:])}", network
        attention_core.detach(network)
