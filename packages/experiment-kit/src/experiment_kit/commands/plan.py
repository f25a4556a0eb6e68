"""The command that plans tables: cells, runs, what is missing, and the FLOPs of the runs."""

import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from jsonargparse import Namespace
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from experiment_kit.cli import AppCLI
from experiment_kit.errors import UserError
from experiment_kit.launch.execute import count_runs
from experiment_kit.launch.obtain import list_missing_weights
from experiment_kit.launch.options import check_list, check_seeds, make_folders
from experiment_kit.launch.overlays import choose_overlays, overlay_arguments, read_defaults
from experiment_kit.launch.plan import (
    Experiment,
    count_samples,
    find_data,
    load_app,
    plan_configs_and_runs,
)
from experiment_kit.papers.spec import Cell, find_tables
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
         "label_smoothing", "spec_augment", "scale"}  # fmt: skip
_FACTS = ("data", "backbone", "method", "recipe")
Runs = Mapping[Experiment, Run]


@dataclass(frozen=True)
class RunCost:
    """The FLOPs of one run, and its seconds by finished runs of its config; None if unknown."""

    flops: float | None = None
    seconds: float | None = None


def plan_tables(
    name: str,
    profile: str = "paper",
    protocol: str = "validation",
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    folder: str = "runs",
) -> None:
    """Print what a table, the tables of a paper, or all of them need, and the FLOPs of their runs.

    The multiply-adds of a model are counted once, without computing, and kept in
    `<folder>/macs.json`. Times here are those of finished runs of the same config. Nothing is
    trained.

    Args:
        name: a table, such as agf-table-1; gfsa, attnscale, agf or record_straight for all tables
            of a paper; or all
        profile: the length of the runs: paper for the full one, or smoke, small or another name of
            a profile of the app
        protocol: where the epoch is chosen: validation, test, or published, as the papers' code
            does; or the name of another protocol
        seeds: such as [0,1,2], each from 0 to 4294967295; the default is those of the protocol,
            else [0,1,2]
        rows: such as [gfsa,agf], the keys of rows of the table; all by default
        columns: such as [cola], the keys of columns of the table; all by default
        folder: the folder of the runs and of the counts
    """
    console = Console()
    if seeds is not None:
        check_seeds(seeds)
    check_list("rows", rows)
    check_list("columns", columns)
    make_folders(folder=folder)
    specs = find_tables(name)
    if len(specs) > 1 and (rows or columns):
        raise UserError("--rows and --columns choose from one table: name it")
    cells = {
        spec.table: spec.list_cells(
            profile or "paper",
            protocol,
            seeds,
            rows or [key for key, row in spec.all_rows.items() if not row.random],
            columns,
        )
        for spec in specs
    }
    trained = {table: list_trained_experiments(found) for table, found in cells.items()}
    planned = plan_configs_and_runs((e for found in trained.values() for e in found), folder)
    runs = {e: run for e, (_, run) in planned.items()}
    tables = {table: {e: runs[e] for e in found} for table, found in trained.items()}
    costs = find_costs(planned, Path(folder), console)
    if len(tables) == 1:
        ((table, own),) = tables.items()
        console.print(_list_runs(table, len(cells[table]), own, costs))
    else:
        for listing in _list_papers(tables, costs):
            console.print(listing)
    console.print(
        "FLOPs are those of training alone, 3 forward passes a step, at the greatest length; '>'"
        " marks a sum of what is known. An A100 at 35 % of its 16-bit peak makes"
        f" {A100_FLOPS * 3600:.1e} an hour.",
        highlight=False,
    )
    for sentence in list_missing([e for e, run in runs.items() if not run.has_result]):
        console.print(sentence, highlight=False)


def list_trained_experiments(cells: Iterable[Cell]) -> list[Experiment]:
    """List the experiments that train, and those that they start from."""
    trained = [cell.experiment for cell in cells if cell.experiment.is_trained]
    return list(dict.fromkeys(e for one in trained for e in (one.start, one) if e))


def make_seedless(experiment: Experiment) -> Experiment:
    """Return a training experiment of the same cost, with seed 0 and without a start."""
    return replace(experiment, seed=0, start=None, source="result", eigenvalues=None)


def find_costs(
    planned: Mapping[Experiment, tuple[dict[str, Any], Run]], folder: Path, console: Console
) -> dict[Experiment, RunCost]:
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
        if new:
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
    return config_hash(_drop_free({"model": config["model"], "data": config["data"]}))


def _drop_free(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _drop_free(part) for key, part in value.items() if key not in _FREE}


def count_sample_macs(name: str, config: Mapping[str, Any]) -> int | None:
    """Count the multiply-adds of a forward pass of one sample; None if this fails.

    The model is built on the meta device, which computes nothing, from random weights.
    """
    cli, files = _build_parser(name), {key.partition(".")[2] for key in load_app(name).hashed_files}
    model = {k: None if k in files else value for k, value in config["model"].items()}
    try:
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):
            parsed = cli._parser("fit").parse_object({"model": model, "data": config["data"]})
            cli.config = Namespace(subcommand="fit", fit=parsed)
            module, data = cli.build_model_and_data(shape_only=True)
            network = module.efficiency_network().eval().requires_grad_(False)
            inputs = module.example_inputs(data, 1)
            return count_flops(lambda: network(*inputs)) // 2
    except (UserError, NotImplementedError, RuntimeError, OSError):  # needs data or a vocabulary
        return None


@cache
def _build_parser(app: str) -> AppCLI:
    return AppCLI(load_app(app), ["fit", *overlay_arguments(app, **choose_overlays(app, None))])


def count_trained_samples(experiment: Experiment, config: Mapping[str, Any]) -> int | None:
    """Count the samples that a run trains on if nothing stops it early; None where unknown."""
    trainer, options = config["trainer"], config["data"]["init_args"]
    batch = options.get("max_batch_size") or options.get("batch_size") or 1
    step = batch * (trainer.get("accumulate_grad_batches") or 1)
    bounds = [steps * step] if (steps := trainer.get("max_steps") or -1) > 0 else []
    samples = count_training_set(experiment.app, experiment.data)
    if samples and (trainer.get("max_epochs") or -1) > 0:
        limit = trainer.get("limit_train_batches")
        share = samples * limit if isinstance(limit, float) else (limit or math.inf) * batch
        bounds.append(round(min(samples, share)) * trainer["max_epochs"])
    return min(bounds, default=None)


def count_training_set(app: str, data: str) -> int | None:
    """Return the number of training samples in `defaults: {samples: }`, else count those here.

    Nothing is counted where a data set is neither documented nor here.
    """
    documented = read_defaults(app, data).get("samples")
    if documented is None and isinstance(find_data(app, data), Path):
        return count_samples(app, data).get("train")
    return documented


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
    used = Counter(folder for own in tables.values() for folder in {r.folder for r in own.values()})
    papers: dict[str, list[str]] = {}
    for table in tables:
        papers.setdefault(load_table(table).paper, []).append(table)
    groups = {PAPER_NAMES.get(paper, paper): own for paper, own in papers.items()}
    for title, own in {**groups, **({"all papers": [*tables]} if len(groups) > 1 else {})}.items():
        listing = _start_listing(title, "table", "runs", "shared", "done", "FLOPs left")
        for table in own if title in groups else ():
            count, done, flops = _count_left(tables[table], costs)
            shared = sum(used[run.folder] > 1 for run in {*tables[table].values()})
            listing.add_row(table, count, str(shared), done, flops)
        listing.add_section()
        every = {e: run for table in own for e, run in tables[table].items()}
        count, done, flops = _count_left(every, costs)
        listing.add_row("in all", count, "", done, flops, style="bold")
        yield listing


def _start_listing(title: str, first: str, *headings: str) -> Table:
    listing = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    listing.add_column(first, overflow="fold")
    for heading in headings:
        listing.add_column(heading, justify="right", no_wrap=True)
    return listing


def list_missing(experiments: Collection[Experiment]) -> Iterator[str]:
    """Yield a sentence for the data and the weights that are not here, with their commands."""
    places = {(e.app, e.data): find_data(e.app, e.data) for e in experiments}
    absent = {key: place for key, place in sorted(places.items()) if isinstance(place, str)}
    offered = [data for app, data in absent if data in load_app(app).downloads]
    if offered:
        yield f"missing data, by make data DATA=<name>: {', '.join(offered)}"
    for (_, data), place in absent.items():
        if data not in offered:
            yield f"missing data: {data}: {escape(place)}"
    if backbones := list_missing_weights({(e.app, e.backbone) for e in experiments}):
        yield f"missing weights, by make weights MODEL=<name>: {', '.join(backbones)}"
