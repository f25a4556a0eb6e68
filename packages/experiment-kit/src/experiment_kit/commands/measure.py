"""Commands that take the arguments of `fit`: efficiency and eigenvalues of a run.

allpass efficiency <app> ... [--device --batch_size --precision --repeats]
allpass eigenvalues <app> ... [--samples=8|all] [--epoch=best|last]
attention-<app> fit --help lists the other options.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from attention_core import spectral
from attention_core.diagnosis.diagnose import prepare_model
from attention_core.diagnosis.run import collect_maps

from experiment_kit.app import AppSpec
from experiment_kit.app_cli import AppCLI
from experiment_kit.environment import describe_environment
from experiment_kit.errors import UserError
from experiment_kit.launch.plan import EigenvalueOptions, load_app
from experiment_kit.run_files import load_state, write_atomically
from experiment_kit.training.efficiency import BATCH_SIZES, PRECISIONS, measure_efficiency
from experiment_kit.training.spectral_monitor import RepeatedCall, crop_batch

_KINDS = ("smoothing_share", "sharpening_share", "tied_share")
_SHARES = (*_KINDS, *(f"nonzero_{kind}" for kind in _KINDS))  # with the zeros of H, and without


def run_efficiency(args: Sequence[str]) -> None:
    """Measure the model of a config, without data; write `efficiency.json` into its run."""
    app, options, rest = _parse_options(args, {
        "device": {"choices": ("auto", *BATCH_SIZES), "default": "auto"},
        "precision": {"choices": PRECISIONS},
        "batch_size": {"type": int},
        "repeats": {"type": int, "default": 10},
    })  # fmt: skip
    if min(options.repeats, 1 if options.batch_size is None else options.batch_size) < 1:
        raise UserError("--repeats and --batch_size must be at least 1")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device=cuda: there is no GPU here that this PyTorch can use")
    cli = AppCLI(app, ["fit", *rest])
    model, data = cli.build_model_and_data(shape_only=True)
    size, precision = options.batch_size, options.precision
    if app.measures_recipe:
        size = size or data.batch_size
        precision = precision or cli.export_config()["trainer"]["precision"]
    settings = options.device, size, precision or PRECISIONS[0], options.repeats
    make_inputs = partial(model.example_inputs, data)
    report = measure_efficiency(model.efficiency_network(), make_inputs, *settings)
    _write_report(cli, "efficiency.json", report)


def run_eigenvalues(args: Sequence[str]) -> None:
    """Measure one epoch of a run on validation data; write `eigenvalues.json` into it."""
    epochs = {"choices": ("best", "last"), "default": "best"}
    app, options, rest = _parse_options(args, {"samples": {"default": "8"}, "epoch": epochs})
    text = options.samples
    chosen = EigenvalueOptions(int(text) if text.isdecimal() else text, options.epoch)
    cli = AppCLI(app, ["fit", *rest])
    model, data = cli.build_model_and_data()
    is_best = chosen.epoch == "best"
    path = cli.run.find_test_checkpoint() if is_best else cli.run.find_newest_checkpoint()
    if cli.run.read_result() is None or path is None:
        raise UserError(f"{cli.run.folder} is not trained: run fit")
    load_state(model, path)
    data.prepare_data()
    data.setup("validate")
    count = chosen.samples if isinstance(chosen.samples, int) else None
    report = measure_eigenvalues(model, take_samples(data.val_dataloader(), count))
    report |= {"epoch": chosen.epoch, "options": asdict(chosen)}
    if (source := getattr(model, "weights_source", None)) is not None:
        report["weights_source"] = source
    _write_report(cli, "eigenvalues.json", report)


@torch.no_grad()
def eigenvalue_shares(model: Any, batch: Any) -> list[list[float]]:
    """Return the shares of smoothing, sharpening and tied cases of each attention."""
    found: list[list[float]] = []
    with prepare_model(model):
        for layer in collect_maps(model, RepeatedCall(model.predict_step, (batch, 0), {})):
            if layer.projected is not None:
                H = spectral.value_output_eigenvalues(*layer.projected[:3])
                A = torch.linalg.eigvals(layer.A.double())
                share = partial(spectral.dominating_eigenvalue_shares, H, A)
                shares = share(count_zeros=True), share(count_zeros=False)
                found.append(torch.cat(shares).tolist())
    return found


def measure_eigenvalues(model: Any, batches: Iterable[Any]) -> dict[str, Any]:
    """Return the shares of each layer over all samples of the batches, and their means."""
    measured = [(len(batch[0]), eigenvalue_shares(model, batch)) for batch in batches]
    sizes, found = [size for size, _ in measured], [shares for _, shares in measured]
    if not found or not found[0]:
        raise UserError("the model has no attention whose value and output weights are found")
    weights = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    layers = torch.einsum("b,bls->ls", weights, torch.tensor(found, dtype=torch.float64))
    return {
        "metrics": dict(zip(_SHARES, layers.mean(0).tolist(), strict=True)),
        "layers": [dict(zip(_SHARES, layer, strict=True)) for layer in layers.tolist()],
        "samples": sum(sizes),
        "environment": describe_environment(),
    }


def take_samples(batches: Iterable[Any], count: int | None) -> Iterator[Any]:
    """Yield batches of `count` samples in all; the last one is cut to fit."""
    for batch in batches:
        yield batch if count is None else crop_batch(batch, count)
        if count is not None and (count := count - len(batch[0])) <= 0:
            return


def _parse_options(
    args: Sequence[str], options: dict[str, dict[str, Any]]
) -> tuple[AppSpec, argparse.Namespace, list[str]]:
    """Return the app, which comes first, the options of a command, and the arguments of `fit`."""
    parser = argparse.ArgumentParser(usage=__doc__, allow_abbrev=False, exit_on_error=False)
    for name, settings in options.items():
        parser.add_argument(f"--{name}", **settings)
    chosen, rest = parser.parse_known_args(args)
    if not rest:
        raise UserError("name an app: graph, nlp, sequence, speech or vision")
    return load_app(rest[0]), chosen, rest[1:]


def _write_report(cli: AppCLI, name: str, report: dict[str, Any]) -> None:
    path, config = cli.run.folder / name, cli.run.folder / "config.yaml"
    if not config.exists():  # a published number leads to it
        write_atomically(config, cli.dump_settings("config", "ckpt_path", "defaults"))
    write_atomically(path, json.dumps(report, indent=2) + "\n")
    print(f"measured {path}: {json.dumps(report['metrics'])}")
