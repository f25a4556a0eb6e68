"""The command that plans tables: cells, runs, what is missing, and the FLOPs of the runs."""

import json
import math
import os
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from pydoc import locate
from typing import Any

import pandas as pd
import torch
from jsonargparse import Namespace
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Column, Table

from experiment_kit.cli import AppCLI
from experiment_kit.commands.table import CellOptions
from experiment_kit.errors import UserError
from experiment_kit.launch.execute import count_runs
from experiment_kit.launch.obtain import list_missing_weights
from experiment_kit.launch.options import make_folders
from experiment_kit.launch.overlays import choose_overlays, overlay_arguments, read_defaults
from experiment_kit.launch.plan import (
    Experiment,
    count_samples,
    find_absent_data,
    find_data,
    load_app,
    plan_configs_and_runs,
)
from experiment_kit.papers.spec import find_tables
from experiment_kit.papers.values import PAPER_NAMES, load_table
from experiment_kit.run import Run, config_hash, write_atomically
from experiment_kit.run_files import read_mapping, try_read
from experiment_kit.training.efficiency import count_flops

PASSES = 3  # a training step is a forward pass, and a backward pass that costs two
A100_FLOPS = 0.35 * 312e12  # per second: 35 % of the peak of 16-bit products
# settings that change no product of a forward pass, of a model or of a class in it
_FREE = {"optimizer", "schedule", "weight_decay", "decay_norm_and_bias", "loss", "mix", "dropout",
         "attention_dropout", "seed", "batch_size", "val_fraction", "protocol", "augment",
         "weights", "tokenizer", "num_workers", "data_dir", "dropout_mask", "a", "b", "eta",
         "gamma", "init", "learn", "w0", "w1", "wK", "score_metric", "speeds", "dev",
         "batch_seconds", "max_batch_size", "global_batch", "ema", "drop_path", "input_dropout",
         "label_smoothing", "spec_augment", "scale", "K", "basis", "rho", "checkpoint",
         "line_end"}  # fmt: skip
_FACTS = ("data", "backbone", "method", "recipe")
Plan = Mapping[Experiment, tuple[dict[str, Any], Run]]


def plan_tables(name: str, folder: str = "runs", **options: Any) -> None:
    """Print what a table, the tables of a paper, or all of them need, and the FLOPs of their runs.

    The multiply-adds of a model are counted once, without computing, and kept in
    `<folder>/macs.json`. Times here are those of finished runs of the same config. Nothing is
    trained.

    Args:
        name: a table, such as agf-table-1; gfsa, attnscale, agf or record_straight for all tables
            of a paper; or all
        folder: the folder of the runs and of the counts
        options: those of the cells
    """
    console, chosen = Console(), CellOptions(**options)
    make_folders(folder=folder)
    specs = find_tables(name)
    if len(specs) > 1 and (chosen.rows or chosen.columns):
        raise UserError("--rows and --columns choose from one table: name it")
    cells = {
        spec.table: spec.list_cells(**chosen.names | {"rows": chosen.rows or spec.default_rows})
        for spec in specs
    }
    wanted = {
        (table, e): make_seedless(e)
        for table, own in cells.items()
        for cell in own
        for e in (cell.experiment.start, cell.experiment)
        if e and cell.experiment.is_trained
    }
    planned = plan_configs_and_runs((e for _, e in wanted), folder)
    flops = find_flops(planned, Path(folder), console)
    lines = [
        [table, seedless, run.folder, run.has_result, flops[seedless], result.get("seconds")]
        for (table, e), seedless in wanted.items()
        for run in [planned[e][1]]
        for result in [try_read(run.read_result) or {}]
    ]
    runs = pd.DataFrame(lines, columns=["table", "run", "folder", "done", "flops", "seconds"])
    if len(specs) == 1:
        count = f"{len(cells[specs[0].table])} cells, {count_runs(len(runs))}"
        title = f"{specs[0].table}: {count}; a line is the cost of one seed"
        console.print(_list_runs(title, runs))
    else:
        console.print(*_list_papers(cells, runs))
    console.print(
        "FLOPs are those of training alone, 3 forward passes a step, at the greatest length; '>'"
        " marks a sum of what is known. An A100 at 35 % of its 16-bit peak makes"
        f" {A100_FLOPS * 3600:.1e} an hour.",
        highlight=False,
    )
    for sentence in list_missing([e for e, (_, run) in planned.items() if not run.has_result]):
        console.print(sentence, highlight=False)


def make_seedless(experiment: Experiment) -> Experiment:
    """Return a training experiment of the same cost, with seed 0 and without a start."""
    return replace(experiment, seed=0, start=None, source="result", eigenvalues=None)


def find_flops(planned: Plan, folder: Path, console: Console) -> dict[Experiment, float]:
    """Return the FLOPs of each experiment without its seed, else NaN; count models that are new."""
    path = folder / "macs.json"
    known = read_mapping(path, "delete it to count again") or {}
    configs = {make_seedless(e): config for e, (config, _) in planned.items()}
    names = {e: f"{e.app} {name_model(config)}" for e, config in configs.items()}
    new = {name: e for e, name in names.items() if name not in known}
    os.environ["HF_HUB_OFFLINE"] = "1"  # else a hub that is not reached is asked for minutes
    try:
        for name, e in track(new.items(), "counting", console=console, transient=True):
            known[name] = count_sample_macs(e.app, configs[e])
    finally:  # an interrupt keeps what is counted
        write_atomically(path, json.dumps(known, indent=1, sort_keys=True) + "\n")
    samples = {e: count_trained_samples(e, config) for e, config in configs.items()}
    return {
        e: 2.0 * PASSES * (known[names[e]] or math.nan) * (n or math.nan)
        for e, n in samples.items()
    }


def name_model(config: Mapping[str, Any]) -> str:
    """Return a hash over what the multiply-adds of a sample depend on."""
    data: dict[str, Any] = {**config["data"]["init_args"]}
    kind: Any = locate(config["data"]["class_path"])
    if hasattr(kind, "num_labels"):  # texts: their data sets differ in the number of labels alone
        data["dataset_name"] = kind(data["dataset_name"]).num_labels
    named = {"class_path": config["data"]["class_path"], "init_args": data}
    return config_hash(_drop_free({"model": config["model"], "data": named}))


def _drop_free(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _drop_free(part) for key, part in value.items() if key not in _FREE}


def count_sample_macs(name: str, config: Mapping[str, Any]) -> int | None:
    """Count the multiply-adds of a forward pass of one sample; None if this fails.

    The model is built on the meta device, which computes nothing, from random weights.
    """
    cli, base = _build_parser(name)
    files = {key.partition(".")[2] for key in load_app(name).hashed_files}
    model = {k: None if k in files else value for k, value in config["model"].items()}
    try:
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):
            parsed = cli._parser("fit").parse_object(
                {"model": model, "data": config["data"]}, cfg_base=base, defaults=False
            )
            cli.config = Namespace(subcommand="fit", fit=parsed)
            module, data = cli.build_model_and_data(shape_only=True)
            network = module.efficiency_network().eval().requires_grad_(False)
            inputs = module.example_inputs(data, 1)
            return count_flops(lambda: network(*inputs)) // 2
    except (UserError, NotImplementedError, RuntimeError, OSError):  # needs data or a vocabulary
        return None


@cache
def _build_parser(app: str) -> tuple[AppCLI, Namespace]:
    """Return a parser of an app, and the options that count no product."""
    cli = AppCLI(load_app(app), ["fit", *overlay_arguments(app, **choose_overlays(app, None))])
    others = {
        key: value for key, value in vars(cli.settings).items() if key not in ("model", "data")
    }
    return cli, Namespace(others)


def count_trained_samples(experiment: Experiment, config: Mapping[str, Any]) -> int | None:
    """Count the samples that a run trains on if nothing stops it early; None where unknown."""
    trainer, options = config["trainer"], config["data"]["init_args"]
    batch = options.get("max_batch_size") or options.get("batch_size") or 1
    step = batch * (trainer.get("accumulate_grad_batches") or 1)
    bounds = [steps * step] if (steps := trainer.get("max_steps") or -1) > 0 else []
    samples = read_defaults(experiment.app, experiment.data).get("samples")  # as documented
    if samples is None and isinstance(find_data(experiment.app, experiment.data), Path):
        samples = count_samples(experiment.app, experiment.data).get("train")
    if samples and (trainer.get("max_epochs") or -1) > 0:
        limit = trainer.get("limit_train_batches")
        share = samples * limit if isinstance(limit, float) else (limit or math.inf) * batch
        bounds.append(round(min(samples, share)) * trainer["max_epochs"])
    return min(bounds, default=None)


def format_sum(values: Sequence[float]) -> str:
    """Write a sum; '>' marks one of which some values are unknown, which are NaN.

    >>> format_sum([1.5e18, 2e18]), format_sum([1e15, math.nan]), format_sum([math.nan])
    ('3.5e+18', '>1e+15', '?')
    """
    known = [value for value in values if not math.isnan(value)]
    if not known and len(values):
        return "?"
    return f"{'>' if len(known) < len(values) else ''}{sum(known):.3g}"


def format_time(seconds: float) -> str:
    """Write a duration in the unit that suits it.

    >>> [format_time(seconds) for seconds in (math.nan, 42, 300, 9000)]
    ['?', '42 s', '5.0 min', '2.5 h']
    """
    if math.isnan(seconds):
        return "?"
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _count_left(runs: pd.DataFrame) -> tuple[str, str, str]:
    """Return the number of runs, each folder once, of finished ones, and the FLOPs of the rest."""
    distinct = runs.drop_duplicates("folder", keep="last")
    done = distinct["done"].astype(bool)
    return str(len(distinct)), str(done.sum()), format_sum(distinct["flops"][~done])


def _list_runs(title: str, runs: pd.DataFrame) -> Table:
    """Return a line for each experiment, with the cost of one seed, and the total of all."""
    varying = [f for f in _FACTS if len({getattr(e, f) for e in runs["run"]}) > 1] or ["method"]
    lines = []
    for e, own in runs.groupby("run", sort=False):
        options = (argument.rpartition(".")[2] for argument in e.args)
        label = " ".join(filter(None, (*(getattr(e, fact) for fact in varying), *options)))
        cost = format_sum(own["flops"][:1]), format_time(own["seconds"].mean())
        lines.append((escape(label), str(len(own)), str(own["done"].sum()), *cost))
    _, done, flops = _count_left(runs)
    lines.append(("left to do", str(len(runs)), done, flops, ""))
    return _make_listing(title, ("run", "seeds", "done", "FLOPs", "here"), lines)


def _list_papers(tables: Iterable[str], runs: pd.DataFrame) -> Iterator[Table]:
    """Yield a listing for each paper, a line for each table, and its sum, shared runs once."""
    used = runs.drop_duplicates(["table", "folder"])["folder"].value_counts()
    papers: dict[str, list[str]] = {}
    for table in tables:
        paper = load_table(table).paper
        papers.setdefault(PAPER_NAMES.get(paper, paper), []).append(table)
    if len(papers) > 1:
        papers["all papers"] = []
    for title, names in papers.items():
        lines = []
        for table in names:
            own = runs[runs["table"] == table]
            count, done, flops = _count_left(own)
            shared = (used[own["folder"].unique()] > 1).sum()
            lines.append((table, count, str(shared), done, flops))
        count, done, flops = _count_left(runs[runs["table"].isin(names)] if names else runs)
        lines.append(("in all", count, "", done, flops))
        yield _make_listing(title, ("table", "runs", "shared", "done", "FLOPs left"), lines)


def _make_listing(title: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    """Return a table whose last line is the total."""
    first = Column(head[0], overflow="fold")
    columns = (Column(heading, justify="right", no_wrap=True) for heading in head[1:])
    options: dict[str, Any] = {"title_justify": "left", "show_edge": False, "pad_edge": False}
    listing = Table(first, *columns, title=title, **options)
    for line in lines[:-1]:
        listing.add_row(*line)
    listing.add_section()
    listing.add_row(*lines[-1], style="bold")
    return listing


def list_missing(experiments: Collection[Experiment]) -> Iterator[str]:
    """Yield a sentence for the data and the weights that are not here, with their commands."""
    absent = find_absent_data(experiments)
    offered = [data for app, data in absent if data in load_app(app).downloads]
    if offered:
        yield f"missing data, by make data DATA=<name>: {', '.join(offered)}"
    for (_, data), place in absent.items():
        if data not in offered:
            yield f"missing data: {data}: {escape(place)}"
    if backbones := list_missing_weights({(e.app, e.backbone) for e in experiments}):
        yield f"missing weights, by make weights MODEL=<name>: {', '.join(backbones)}"
