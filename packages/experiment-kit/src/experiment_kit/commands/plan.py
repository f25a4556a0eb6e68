"""The command that plans tables: cells, runs, what is missing, and the FLOPs of the runs."""

import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from pydoc import locate
from statistics import mean
from typing import Any

import torch
from jsonargparse import Namespace
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Column, Table

from experiment_kit.cli import AppCLI
from experiment_kit.commands.table import CellOptions
from experiment_kit.errors import UserError
from experiment_kit.launch.execute import Runs, count_runs
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
from experiment_kit.run_files import read_mapping, read_result, try_read
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


@dataclass(frozen=True)
class RunCost:
    """The FLOPs of one run, and its seconds by finished runs of its config; None if unknown."""

    flops: float | None = None
    seconds: float | None = None


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
    trained = {
        table: [cell.experiment for cell in own if cell.experiment.is_trained]
        for table, own in cells.items()
    }
    planned = plan_configs_and_runs((e for own in trained.values() for e in own), folder)
    costs = find_costs(planned, Path(folder), console)
    tables = {
        table: {e: planned[e][1] for one in own for e in (one.start, one) if e}
        for table, own in trained.items()
    }
    if len(tables) == 1:
        ((table, own),) = tables.items()
        console.print(_list_runs(table, len(cells[table]), own, costs))
    else:
        console.print(*_list_papers(tables, costs))
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


def find_costs(planned: Plan, folder: Path, console: Console) -> dict[Experiment, RunCost]:
    """Return the cost of each experiment without its seed; count the models that are new."""
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
    seconds: dict[Experiment, list[float]] = {}
    for e, (_, run) in planned.items():
        if run.has_result and (result := try_read(read_result, run.folder)):
            seconds.setdefault(make_seedless(e), []).append(result["seconds"])
    found = {}
    for e, config in configs.items():
        macs, samples = known[names[e]], count_trained_samples(e, config)
        flops = 2.0 * PASSES * macs * samples if macs and samples else None
        found[e] = RunCost(flops, mean(seconds[e]) if e in seconds else None)
    return found


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


def format_sum(values: Collection[float | None]) -> str:
    """Write a sum; '>' marks one of which some values are unknown.

    >>> format_sum([1.5e18, 2e18]), format_sum([1e15, None]), format_sum([None])
    ('3.5e+18', '>1e+15', '?')
    """
    known = [value for value in values if value is not None]
    if not known and values:
        return "?"
    return f"{'>' if len(known) < len(values) else ''}{sum(known):.3g}"


def format_time(seconds: float | None) -> str:
    """Write a duration in the unit that suits it.

    >>> [format_time(seconds) for seconds in (None, 42, 300, 9000)]
    ['?', '42 s', '5.0 min', '2.5 h']
    """
    if seconds is None:
        return "?"
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _count_left(runs: Runs, costs: Mapping[Experiment, RunCost]) -> tuple[str, str, str]:
    """Return the number of runs, each folder once, of finished ones, and the FLOPs of the rest."""
    distinct = {run.folder: (e, run.has_result) for e, run in runs.items()}
    left = [costs[make_seedless(e)].flops for e, done in distinct.values() if not done]
    return str(len(distinct)), str(len(distinct) - len(left)), format_sum(left)


def _list_runs(
    table: str, num_cells: int, runs: Runs, costs: Mapping[Experiment, RunCost]
) -> Table:
    """Return a line for each experiment, with the cost of one seed, and the total of all."""
    groups: dict[Experiment, list[Run]] = {}
    for experiment, run in runs.items():
        groups.setdefault(make_seedless(experiment), []).append(run)
    varying = [f for f in _FACTS if len({getattr(e, f) for e in groups}) > 1] or ["method"]
    title = f"{table}: {num_cells} cells, {count_runs(len(runs))}; a line is the cost of one seed"
    listing = _start_listing(title, "run", "seeds", "done", "FLOPs", "here")
    for e, own in groups.items():
        options = (argument.rpartition(".")[2] for argument in e.args)
        name = " ".join(filter(None, (*(getattr(e, fact) for fact in varying), *options)))
        counts = str(len(own)), str(sum(run.has_result for run in own))
        cost = format_sum([costs[e].flops]), format_time(costs[e].seconds)
        listing.add_row(escape(name), *counts, *cost)
    listing.add_section()
    _, done, flops = _count_left(runs, costs)
    listing.add_row("left to do", str(len(runs)), done, flops, "", style="bold")
    return listing


def _list_papers(
    tables: Mapping[str, Runs], costs: Mapping[Experiment, RunCost]
) -> Iterator[Table]:
    """Yield a listing for each paper, a line for each table, and its sum, shared runs once."""
    folders = {table: {run.folder for run in own.values()} for table, own in tables.items()}
    used = Counter(folder for own in folders.values() for folder in own)
    papers: dict[str, Mapping[str, Runs]] = {}
    for table, own in tables.items():
        paper = load_table(table).paper
        title = PAPER_NAMES.get(paper, paper)
        papers[title] = {**papers.get(title, {}), table: own}
    every = {"all papers": tables} if len(papers) > 1 else {}
    for title, of_paper in {**papers, **every}.items():
        listing = _start_listing(title, "table", "runs", "shared", "done", "FLOPs left")
        for table, own in papers.get(title, {}).items():
            count, done, flops = _count_left(own, costs)
            shared = sum(used[folder] > 1 for folder in folders[table])
            listing.add_row(table, count, str(shared), done, flops)
        listing.add_section()
        all_runs = {e: run for own in of_paper.values() for e, run in own.items()}
        count, done, flops = _count_left(all_runs, costs)
        listing.add_row("in all", count, "", done, flops, style="bold")
        yield listing


def _start_listing(title: str, first: str, *headings: str) -> Table:
    columns = (Column(heading, justify="right", no_wrap=True) for heading in headings)
    first_column = Column(first, overflow="fold")
    return Table(
        first_column, *columns, title=title, title_justify="left", show_edge=False, pad_edge=False
    )


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
