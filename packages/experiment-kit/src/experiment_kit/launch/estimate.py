"""The cost of runs before they are made: FLOPs, seconds, memory and disk.

The cost of a sample is measured once for all seeds, and kept in `<folder>/estimates.json`.
"""

import json
import platform
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import mean
from typing import Any

from filelock import FileLock

from experiment_kit.cli import AppCLI
from experiment_kit.diagnostics.efficiency import MIB, count_macs
from experiment_kit.errors import UserError
from experiment_kit.launch.jobs import DEFAULT_MEMORY, GIB, count_cores, start_python
from experiment_kit.launch.overlays import command_line
from experiment_kit.launch.plan import Experiment, count_samples, load_app, plan_configs
from experiment_kit.launch.run_length import (
    RunLength,
    SplitSizes,
    count_batch,
    count_length,
    count_splits,
    find_time_budget,
    read_sizes,
)
from experiment_kit.run import Run, config_hash, describe_code, write_atomically
from experiment_kit.run_files import read_mapping, read_or_warn, read_report, read_result

FILE = "estimates.json"
MEASURED_BATCH = 8  # larger batches are scaled from it
_REPEATS = 3
_LIMIT = 600  # seconds of one measurement
_TRAINING_BYTES = 16  # of a weight: itself, its gradient, two moments of Adam, in float32
_DISK_BYTES = 2 * 12 + 4  # of a weight: two checkpoints with moments, the best one without
_PASSES = 3  # a training step is a forward pass, and a backward pass that costs two


@dataclass(frozen=True)
class Accelerator:
    """A device, and its dense peaks in FLOP/s: of 16-bit matrix products, and of float32."""

    name: str
    half: float
    single: float

    def find_peak(self, precision: str) -> float:
        """Return the peak of a trainer's precision."""
        return self.half if str(precision).startswith(("16", "bf16")) else self.single


# the data sheets of NVIDIA: A100 and H100 SXM, V100 SXM2, and the white papers of GA102 and AD102
ACCELERATORS = {
    "a100": Accelerator("A100", 312e12, 19.5e12),
    "h100": Accelerator("H100", 989e12, 67e12),
    "rtx_3090": Accelerator("RTX 3090", 71e12, 35.6e12),
    "rtx_4090": Accelerator("RTX 4090", 165.2e12, 82.6e12),
    "v100": Accelerator("V100", 125e12, 15.7e12),
}
UTILIZATION = 0.35


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


@dataclass(frozen=True)
class Estimate:
    """The cost of one run; None is unknown. `budget` is the time that ends it, in seconds."""

    length: RunLength | None
    flops: float | None
    seconds: float | None
    memory: int | None
    disk: int | None
    budget: float | None = None
    precision: str = "32-true"

    def predict_seconds(self, device: Accelerator, utilization: float) -> float | None:
        """Return the seconds of the run on a device at a share of its peak.

        >>> run = Estimate(None, 19.5e12, None, None, None)
        >>> run.predict_seconds(ACCELERATORS["a100"], 0.5)
        2.0
        """
        if self.budget is not None:
            return self.budget
        peak = device.find_peak(self.precision)
        return None if self.flops is None else self.flops / peak / utilization


def drop_seed(experiment: Experiment) -> Experiment:
    """Return the experiment whose cost is the same: no seed, no start, training itself."""
    changes: dict[str, Any] = {"seed": 0, "start": None, "source": "result", "eigenvalues": None}
    return replace(experiment, **changes)


def estimate_runs(
    runs: Mapping[Experiment, Run], folder: str = "runs", measure: bool = True
) -> dict[Experiment, Estimate]:
    """Estimate the experiments that have a run to make, by `drop_seed`, those of all seeds once.

    A finished run of another seed tells the seconds; else `measure` times a step that is not
    cached.
    """
    wanted = dict.fromkeys(drop_seed(e) for e, run in runs.items() if not run.has_result)
    configs = plan_configs(wanted)
    costs = SampleCosts(Path(folder), measure)
    found: dict[Experiment, list[float]] = {}
    for e, run in runs.items():
        if drop_seed(e) in wanted and (result := read_or_warn(read_result, run.folder)):
            found.setdefault(drop_seed(e), []).append(result["seconds"])
    estimates = {}
    for experiment in wanted:
        config, seconds = configs[experiment], found.get(experiment)
        cost = costs.find(experiment, config, is_timed=seconds is not None)
        estimate = estimate_run(config, cost, find_length(experiment, config))
        if seconds:
            estimate = replace(estimate, seconds=mean(seconds))
        estimates[experiment] = estimate
    return estimates


def estimate_run(config: Mapping[str, Any], cost: SampleCost, length: RunLength | None) -> Estimate:
    """Return the cost of a run of a merged config, linear in its samples and in its batch."""
    flops = seconds = None
    if length and cost.macs is not None:
        flops = 2.0 * cost.macs * (_PASSES * length.trained + length.scored)
    if length and cost.train_seconds is not None and cost.score_seconds is not None:
        seconds = cost.train_seconds * length.trained + cost.score_seconds * length.scored
    budget = find_time_budget(config)
    return Estimate(
        length,
        flops,
        seconds if budget is None else budget,
        count_memory(config, cost),
        None if cost.parameters is None else _DISK_BYTES * cost.parameters,
        budget,
        config["trainer"].get("precision") or "32-true",
    )


def count_memory(config: Mapping[str, Any], cost: SampleCost) -> int | None:
    """Return the bytes of a training process: the weights, a batch, and 1 GiB for the rest."""
    if cost.parameters is None or cost.activation_bytes is None:
        return None
    batch = cost.activation_bytes * count_batch(config)
    return round(GIB + _TRAINING_BYTES * cost.parameters + batch)


def estimate_memory(experiments: Iterable[Experiment], folder: str = "runs") -> dict[Any, int]:
    """Return the bytes that each run needs as a job: measured ones, else `DEFAULT_MEMORY`."""
    experiments = list(experiments)
    if not (Path(folder) / FILE).is_file():
        return dict.fromkeys(experiments, DEFAULT_MEMORY)
    costs = SampleCosts(Path(folder), measure=False)
    configs = plan_configs(dict.fromkeys(map(drop_seed, experiments)))
    found = {
        e: count_memory(config, costs.read(e.app, config)) or DEFAULT_MEMORY
        for e, config in configs.items()
    }
    return {e: found[drop_seed(e)] for e in experiments}


def find_length(experiment: Experiment, config: Mapping[str, Any]) -> RunLength | None:
    """Return the length of a run: of the data that is here, else of its documented sizes."""
    app, options = experiment.app, config["data"]["init_args"]
    sizes = count_splits(read_sizes(app).get("data", {}).get(experiment.data, {}), options)
    try:
        counted = count_samples(app, experiment.data)
    except (UserError, OSError):
        counted = {}
    if counted.keys() >= {"train", "test"}:
        sizes = SplitSizes(counted["train"], counted["test"], sizes.val if sizes else None)
    return count_length(config, sizes, 1 + load_app(app).score_last) if sizes else None


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
        if cost.macs is None and not cost.reason:
            cost = self._count(experiment, config)
        if self.measure and cost.train_seconds is None and not is_timed:
            cost = measure_sample(experiment, config, cost)
        if cost != before:
            self._add(name_cost(experiment.app, config), cost)
        return cost

    def _count(self, experiment: Experiment, config: Mapping[str, Any]) -> SampleCost:
        cost = count_documented_sample(experiment, config)
        if cost is None:
            arguments = experiment.arguments()
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
    machine = f"{platform.node()} {platform.machine()} {count_cores()} cores"
    return f"{app} {config_hash(settings)}, {machine}, {versions}"


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
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*experiment.arguments(folder), f"--run.folder={folder}", *options]
        report = _run_measurement(command_line(experiment.app, "efficiency", arguments), folder)
    if isinstance(report, str):
        return replace(cost, reason=cost.reason or report)
    metrics = report["metrics"]
    held = _TRAINING_BYTES * metrics["parameters"]
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
    with start_python(command, {}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            output, _ = process.communicate(timeout=_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"a step took more than {_LIMIT} s"
    found = next(Path(folder).rglob("efficiency.json"), None)
    if process.returncode == 0 and found:
        return read_report(found.parent, "efficiency") or "no report"
    return output.decode(errors="replace").strip().rpartition("\n")[2]
