"""The cost of one sample: counted, measured on this machine, and kept for all seeds.

`<folder>/estimates.json` has it by config without seed, by machine and by versions.
"""

import json
import platform
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from experiment_kit.app import AppSpec
from experiment_kit.cli import AppCLI, read_option
from experiment_kit.environment import describe_code
from experiment_kit.errors import UserError
from experiment_kit.launch.jobs import count_threads, start_python
from experiment_kit.launch.overlays import command_line
from experiment_kit.launch.plan import Experiment, load_app
from experiment_kit.launch.run_length import count_batch, read_sizes
from experiment_kit.run import config_hash, write_atomically
from experiment_kit.run_files import read_mapping, read_report
from experiment_kit.training.efficiency import MIB, count_macs

FILE = "estimates.json"
MEASURED_BATCH = 8  # larger batches are scaled from it
TRAINING_BYTES = 16  # of a weight: itself, its gradient, two moments of Adam, in float32
_REPEATS = 3
_LIMIT = 600  # seconds of one measurement
_WEIGHTS = (".pth", ".pt", ".ckpt", ".safetensors")


@dataclass(frozen=True)
class SampleCost:
    """The cost of one sample, as far as it is known: None is unknown.

    `macs` are of a forward pass, at the greatest length; `activation_bytes` are held in training.
    """

    macs: int | None = None
    parameters: int | None = None
    train_seconds: float | None = None
    score_seconds: float | None = None
    activation_bytes: float | None = None
    reason: str = ""  # why it is not known


class SampleCosts:
    """The cache of the costs of samples, by config without seed, machine and versions."""

    def __init__(self, folder: Path, measure: bool) -> None:
        self.folder, self.measure, self.path = folder, measure, folder / FILE
        self.known = self._read()
        self.parsers: dict[str, AppCLI] = {}

    def read(self, app: str, config: Mapping[str, Any]) -> SampleCost:
        """Return what is cached of a config."""
        return SampleCost(**self.known.get(name_cost(app, config), {}))

    def find(
        self, experiment: Experiment, config: Mapping[str, Any], is_timed: bool = False
    ) -> SampleCost:
        """Return the cost of a sample; count what is missing, and measure it unless `is_timed`."""
        cost = self.read(experiment.app, config)
        before = cost
        if cost.macs is None:
            cost = self._count(experiment, config)
        if self.measure and cost.train_seconds is None and not is_timed:
            cost = measure_sample(experiment, config, cost)
        if replace(cost, reason="") != before:  # what failed may be there the next time
            self._add(name_cost(experiment.app, config), replace(cost, reason=""))
        return cost

    def _count(self, experiment: Experiment, config: Mapping[str, Any]) -> SampleCost:
        cost = count_documented_sample(experiment, config)
        if cost is None:
            arguments = _name_no_missing_file(experiment, config).arguments()
            try:
                if cli := self.parsers.get(experiment.app):
                    cli.parse_fit(arguments)
                else:
                    cli = AppCLI(load_app(experiment.app), ["fit", *arguments])
                    self.parsers[experiment.app] = cli
                cost = count_sample(cli)
            except (UserError, NotImplementedError, RuntimeError) as error:
                cost = SampleCost(reason=str(error).partition("\n")[0])
        return cost

    def _read(self) -> dict[str, dict[str, Any]]:
        content = read_mapping(self.path, "delete it to measure again") or {}
        names = {field.name for field in fields(SampleCost)}
        if any(not isinstance(cost, dict) or cost.keys() - names for cost in content.values()):
            raise UserError(f"{self.path} is not of this version: delete it to measure again")
        return content

    def _add(self, name: str, cost: SampleCost) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):
            self.known = {**self._read(), name: asdict(cost)}
            write_atomically(self.path, json.dumps(self.known, indent=1, sort_keys=True) + "\n")


def name_cost(app: str, config: Mapping[str, Any]) -> str:
    """Name a cost by all that it depends on: model, data and precision, machine and versions."""
    options = {k: v for k, v in config["data"]["init_args"].items() if k != "seed"}
    settings = {
        "model": config["model"],
        "data": {**config["data"], "init_args": options},
        "trainer": {"precision": config["trainer"].get("precision")},
    }
    versions = " ".join(f"{k} {v}" for k, v in describe_code()["versions"].items())
    machine = f"{platform.node()} {platform.machine()} {count_threads()} threads"
    return f"{app} {config_hash(settings)}, {machine}, {versions}"


def list_missing_files(app: AppSpec, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a config that name files of weights which are not here."""
    named = {key: read_option(config, key) for key in app.hashed_files}
    return {
        key: name
        for key, name in named.items()
        if isinstance(name, str) and Path(name).suffix in _WEIGHTS and not Path(name).is_file()
    }


def _name_no_missing_file(experiment: Experiment, config: Mapping[str, Any]) -> Experiment:
    """Return the experiment from random weights, which cost the same as those of a file."""
    missing = list_missing_files(load_app(experiment.app), config)
    return replace(experiment, args=(*experiment.args, *(f"--{key}=null" for key in missing)))


def count_documented_sample(experiment: Experiment, config: Mapping[str, Any]) -> SampleCost | None:
    """Count the multiply-adds of a sample by `sizes.yaml` of the app; None if it lacks them."""
    sizes = read_sizes(experiment.app)
    network = sizes.get("backbone", {}).get(experiment.backbone)
    if network is None:
        return None
    data = sizes.get("data", {}).get(experiment.data, {})
    tokens = data.get("tokens") or config["data"]["init_args"].get("max_length") or 1
    made = config["model"].get("filter") or {}
    products = 3 if str(made.get("class_path", "")).endswith(".GFSA") else 2
    settings = network["weights"], network["num_layers"], network["dim"]
    macs = count_transformer_macs(*settings, tokens, products)
    return SampleCost(macs * data.get("sequences", 1), network["parameters"])


def count_sample(cli: AppCLI) -> SampleCost:
    """Count the multiply-adds of a sample of a parsed config, and the trainable parameters."""
    model, data = cli.build_model_and_data(shape_only=True)
    executed, _ = count_macs(model.efficiency_network(), model.example_inputs(data, 1))
    return SampleCost(executed, sum(p.numel() for p in model.parameters() if p.requires_grad))


def count_transformer_macs(
    weights: int, num_layers: int, dim: int, tokens: int, products: int = 2
) -> int:
    r"""Count the multiply-adds of a transformer on one sequence.

    .. math:: n W + p L n^2 d

    with W weights that multiply each of n tokens, and in each of L attentions of width d, p
    products of an (n, n) matrix: two of softmax attention, three of a filter with A^2 v.

    >>> count_transformer_macs(weights=100, num_layers=2, dim=3, tokens=5)
    800
    """
    return tokens * weights + products * num_layers * tokens**2 * dim


def measure_sample(
    experiment: Experiment, config: Mapping[str, Any], cost: SampleCost
) -> SampleCost:
    """Time a training step and a forward pass in a process of their own, on this machine.

    A batch of more than `MEASURED_BATCH` samples is taken to need as much for each of them.
    """
    size = min(count_batch(config), MEASURED_BATCH)
    options = (f"--batch_size={size}", f"--repeats={_REPEATS}")
    experiment = _name_no_missing_file(experiment, config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*experiment.arguments(folder), f"--run.folder={folder}", *options]
        report = _run_measurement(command_line(experiment.app, "efficiency", arguments), folder)
    if isinstance(report, str):
        return replace(cost, reason=cost.reason or report)
    metrics = report["metrics"]
    held = TRAINING_BYTES * metrics["parameters"]
    return replace(
        cost,
        macs=metrics["multiply_adds"] if cost.macs is None else cost.macs,
        parameters=cost.parameters or metrics["parameters"],
        train_seconds=metrics["train_seconds_per_sample"],
        score_seconds=metrics["seconds_per_sample"],
        activation_bytes=max(0.0, metrics["train_peak_mib"] * MIB - held) / size,
        reason="",
    )


def _run_measurement(command: Sequence[str], folder: str) -> dict[str, Any] | str:
    """Return the report of a measurement, or the last line that its process printed."""
    environment = {"OMP_NUM_THREADS": str(count_threads())}  # as runs have
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with start_python(command, environment, **pipe) as process:
        try:
            output, _ = process.communicate(timeout=_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"a step took more than {_LIMIT} s"
    found = next(Path(folder).rglob("efficiency.json"), None)
    if process.returncode == 0 and found:
        return read_report(found.parent, "efficiency") or "no report"
    return output.decode(errors="replace").strip().rpartition("\n")[2]
