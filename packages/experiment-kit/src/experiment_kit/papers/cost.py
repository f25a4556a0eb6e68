"""The cost of tables: the FLOPs of their runs, each model counted once without computing."""

import json
import math
import os
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from pydoc import locate
from typing import Any

import pandas as pd
import torch
from jsonargparse import Namespace
from lightning.fabric.utilities.throughput import measure_flops
from rich.console import Console
from rich.markup import escape
from rich.progress import track

from experiment_kit.data import download
from experiment_kit.errors import UserError
from experiment_kit.launch import plan
from experiment_kit.launch.overlays import read_defaults, read_overlay
from experiment_kit.pages.tables import PageTable
from experiment_kit.papers.spec import Cell
from experiment_kit.papers.values import PAPER_NAMES, load_table
from experiment_kit.run import config_hash
from experiment_kit.run_files import read_mapping, try_read, write_atomically

PASSES = 3  # a training step is a forward pass, and a backward pass that costs two
A100_FLOPS = 0.35 * 312e12  # per second: 35 % of the peak of 16-bit products
EXPLANATION = (
    "FLOPs are those of training alone, 3 forward passes a step, at the greatest length; '>' marks"
    f" a sum of what is known. An A100 at 35 % of its 16-bit peak makes {A100_FLOPS * 3600:.1e} an"
    " hour. Minutes are the mean of finished runs."
)
# options that change no product of a forward pass
_FREE = {"optimizer", "schedule", "weight_decay", "decay_norm_and_bias", "loss", "mix", "dropout",
         "attention_dropout", "seed", "batch_size", "val_fraction", "protocol", "augment",
         "weights", "tokenizer", "num_workers", "data_dir", "dropout_mask", "score_metric",
         "speeds", "dev", "batch_seconds", "max_batch_size", "global_batch", "ema", "drop_path",
         "input_dropout", "label_smoothing", "spec_augment", "checkpoint", "line_end",
         "learn", "w0", "w1", "wK", "a", "b", "gamma", "rho", "penalty_variant",
         "scale"}  # fmt: skip
_FREE_K = {"attention_core.GFSA", "attention_core.AGF"}  # whose K changes none either
# FLOPs and seconds are NaN if unknown; experiments are without their seed
COLUMNS = ["paper", "table", "row", "experiment", "folder", "is_done", "flops", "seconds"]


def plan_costs(cells: Mapping[str, Sequence[Cell]], folder: Path, console: Console) -> pd.DataFrame:
    """Plan the runs of the cells of each table, one a line, and count their FLOPs."""
    wanted = dict.fromkeys(
        (table, cell.row, e)
        for table, own in cells.items()
        for cell in own
        for e in (cell.experiment.start, cell.experiment)
        if e and cell.experiment.is_trained
    )
    shown = track([e for _, _, e in wanted], "planning", console=console, transient=True)
    planned = plan.plan_configs_and_runs(shown, str(folder))
    # experiments of the same cost
    alike = {e: replace(e, seed=0, start=None, source="result", eigenvalues=None) for e in planned}
    # a model is counted once, by the config of the first seed
    flops = find_flops({alike[e]: planned[e][0] for e in reversed(planned)}, folder, console)
    lines = []
    for table, row, e in wanted:
        paper, run = load_table(table).paper, planned[e][1]
        seconds = (try_read(run.read_result) or {}).get("seconds", math.nan)
        place = PAPER_NAMES.get(paper, paper), table, row, alike[e], run.folder
        lines.append((*place, run.has_result, flops[alike[e]], seconds))
    return pd.DataFrame(lines, columns=COLUMNS)


def find_flops(
    configs: Mapping[plan.Experiment, dict[str, Any]], folder: Path, console: Console
) -> dict[plan.Experiment, float]:
    """Return the FLOPs of each experiment, else NaN; count models that are new."""
    path = folder / "macs.json"
    known = read_mapping(path, "delete it to count again") or {}
    names = {e: f"{e.app} {name_model(config)}" for e, config in configs.items()}
    new = {name: e for e, name in names.items() if name not in known}
    os.environ["HF_HUB_OFFLINE"] = "1"  # else a hub that is not reached is asked for minutes
    try:
        for name, e in track(new.items(), "counting", console=console, transient=True):
            known[name] = count_sample_macs(e.app, configs[e])
    finally:  # an interrupt keeps what is counted
        with suppress(OSError):  # a disk that cannot be written
            write_atomically(path, json.dumps(known, indent=1, sort_keys=True) + "\n")
    macs = {e: known[name] or math.nan for e, name in names.items()}
    samples = {e: count_trained_samples(e, config) or math.nan for e, config in configs.items()}
    return {e: 2.0 * PASSES * macs[e] * samples[e] for e in configs}


def name_model(config: Mapping[str, Any]) -> str:
    """Return a hash over what the multiply-adds of a sample depend on."""
    data = config["data"]
    kind: Any = locate(data["class_path"])
    if hasattr(kind, "num_labels"):  # texts, whose data sets only differ in the number of labels
        labels = kind(data["init_args"]["dataset_name"]).num_labels
        data = {**data, "init_args": {**data["init_args"], "dataset_name": labels}}
    return config_hash({"model": _drop_free(config["model"]), "data": _drop_free(data)})


def _drop_free(value: Any, free: Collection[str] = _FREE) -> Any:
    if not isinstance(value, dict):
        return value
    inner = _FREE | {"K"} if value.get("class_path") in _FREE_K else _FREE
    return {key: _drop_free(part, inner) for key, part in value.items() if part and key not in free}


def count_sample_macs(name: str, config: Mapping[str, Any]) -> int | None:
    """Count the multiply-adds of a forward pass of one sample; None if this fails."""
    cli: Any = plan.load_planner(name).cli  # it has parsed this config, and maybe others later
    others = {k: v for k, v in vars(cli.settings).items() if k not in ("model", "data")}
    files = {key.partition(".")[2] for key in plan.load_app(name).hashed_files}
    model = {k: None if k in files else value for k, value in config["model"].items()}
    try:
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):
            own, base = {"model": model, "data": config["data"]}, Namespace(others)
            parsed = cli.subparser.parse_object(own, cfg_base=base, defaults=False)
            cli.config = Namespace(subcommand="fit", fit=parsed)
            module, data = cli.build_model_and_data(shape_only=True)
            network = module.efficiency_network().eval().requires_grad_(False)
            inputs = module.example_inputs(data, 1)
            return measure_flops(network, lambda: network(*inputs)) // 2
    except (UserError, NotImplementedError, RuntimeError, OSError):  # needs data or a vocabulary
        return None


def count_trained_samples(experiment: plan.Experiment, config: Mapping[str, Any]) -> int | None:
    """Count the samples that a run trains on if nothing stops it early; None where unknown."""
    trainer, options = config["trainer"], config["data"]["init_args"]
    batch = options.get("max_batch_size") or options.get("batch_size") or 1
    step = batch * (trainer.get("accumulate_grad_batches") or 1)
    bounds = [steps * step] if (steps := trainer.get("max_steps") or -1) > 0 else []
    samples = read_defaults(experiment.app, experiment.data).get("samples")  # as documented
    if samples is None and isinstance(plan.find_data(experiment.app, experiment.data), Path):
        samples = plan.count_samples(experiment.app, experiment.data).get("train")
    if samples and (trainer.get("max_epochs") or -1) > 0:
        limit = trainer.get("limit_train_batches")
        share = samples * limit if isinstance(limit, float) else (limit or math.inf) * batch
        bounds.append(round(min(samples, share)) * trainer["max_epochs"])
    return min(bounds, default=None)


def tabulate_costs(runs: pd.DataFrame) -> Iterator[PageTable]:
    """Yield the costs of one table by row; of several tables, by paper and table, and the sum."""
    if runs["table"].nunique() == 1:
        yield _tabulate_groups(runs["table"][0], runs, "row")
        return
    for paper, own in runs.groupby("paper", sort=False):
        yield _tabulate_groups(str(paper), own, "table")
    if runs["paper"].nunique() > 1:
        yield _tabulate_groups("all papers", runs, "paper")


def _tabulate_groups(title: str, runs: pd.DataFrame, by: str) -> PageTable:
    """Return a line for each group of runs, and their sum; runs that groups share count once."""
    rows = []
    for label, group in [*runs.groupby(by, sort=False), ("in all", runs)]:
        own = group.drop_duplicates("folder")
        left = own.loc[~own["is_done"], "flops"]
        known, minutes = left.dropna(), own["seconds"].mean() / 60
        flops = f"{'>' if len(known) < len(left) else ''}{known.sum():.3g}"
        flops = "?" if known.empty and len(left) else flops
        here = "" if math.isnan(minutes) else f"{minutes:.1f}"
        rows.append([str(label), str(len(own)), str(len(own) - len(left)), flops, here])
    return PageTable(title, [by, "runs", "done", "FLOPs left", "minutes here"], rows)


def list_missing(experiments: Collection[plan.Experiment]) -> Iterator[str]:
    """Yield a sentence for the data and the weights that are not here, with their commands."""
    absent = plan.find_absent_data(experiments)
    offered = [data for app, data in absent if data in plan.load_app(app).downloads]
    if offered:
        yield f"missing data, by allpass data <name>: {', '.join(offered)}"
    for (_, data), place in absent.items():
        if data not in offered:
            yield f"missing data: {data}: {escape(place)}"
    if backbones := list_missing_weights(experiments):
        yield f"missing weights, by allpass weights <name>: {', '.join(backbones)}"


def list_missing_weights(experiments: Iterable[plan.Experiment]) -> list[str]:
    """List the backbones whose weights are on the hub, but not in its local cache."""
    missing = set()
    for app, backbone, recipe in {(e.app, e.backbone, e.recipe) for e in experiments}:
        model = read_overlay(app, "backbone", backbone).get("model", {})
        start = read_overlay(app, "recipe", recipe).get("model", {}) if recipe else {}
        is_start = start.get("checkpoint") == download.PRETRAINED
        weights = model["backbone"] if is_start else model.get("weights")
        if weights and weights not in download.WEIGHT_PACKAGES and not Path(weights).exists():
            find = download.find_model_files if is_start else download.name_model_files
            try:
                download.fetch_hub_files(find(weights), cached=True)
            except UserError:
                missing.add(backbone)
    return sorted(missing)
