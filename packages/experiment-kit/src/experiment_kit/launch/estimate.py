"""The cost of runs before they are made: FLOPs, seconds, memory and disk."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from experiment_kit.errors import UserError
from experiment_kit.launch.jobs import DEFAULT_MEMORY, GIB
from experiment_kit.launch.plan import Experiment, count_samples, load_app, plan_configs
from experiment_kit.launch.run_length import (
    RunLength,
    SplitSizes,
    count_batch,
    count_devices,
    count_length,
    count_splits,
    find_time_budget,
    read_sizes,
)
from experiment_kit.launch.sample_cost import (
    FILE,
    TRAINING_BYTES,
    SampleCost,
    SampleCosts,
    list_missing_files,
)
from experiment_kit.run import Run
from experiment_kit.run_files import read_result, try_read

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
class Estimate:
    """The cost of one run; None is unknown. `budget` is the time that ends it.

    Seconds are those of one device: a run on two of them takes half as long, or needs twice.
    """

    length: RunLength | None
    flops: float | None
    seconds: float | None
    memory: int | None
    disk: int | None
    budget: float | None = None
    precision: str = "32-true"
    reason: str = ""  # why the FLOPs are not known
    missing: tuple[str, ...] = ()  # options whose files are not here

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
        if drop_seed(e) in wanted and (result := try_read(read_result, run.folder)):
            found.setdefault(drop_seed(e), []).append(result["seconds"])
    estimates = {}
    for experiment in wanted:
        config, seconds = configs[experiment], found.get(experiment)
        cost = costs.find(experiment, config, is_timed=seconds is not None)
        estimate = estimate_run(config, cost, find_length(experiment, config))
        missing = list_missing_files(load_app(experiment.app), config)
        options = (f"{option}={name}" for option, name in missing.items())
        estimate = replace(estimate, missing=tuple(options))
        if seconds:
            estimate = replace(estimate, seconds=mean(seconds) * count_devices(config))
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
    if budget is not None:
        budget *= count_devices(config)
    return Estimate(
        length,
        flops,
        seconds if budget is None else budget,
        count_memory(config, cost),
        None if cost.parameters is None else _DISK_BYTES * cost.parameters,
        budget,
        config["trainer"].get("precision") or "32-true",
        cost.reason or ("" if length else "the size of its data is not known"),
    )


def count_memory(config: Mapping[str, Any], cost: SampleCost) -> int | None:
    """Return the bytes of a run: on each device the weights, a batch, and 1 GiB for the rest."""
    if cost.parameters is None or cost.activation_bytes is None:
        return None
    batch = cost.activation_bytes * count_batch(config)
    return round(count_devices(config) * (GIB + TRAINING_BYTES * cost.parameters + batch))


def estimate_needs(
    experiments: Iterable[Experiment], folder: str = "runs"
) -> dict[Experiment, tuple[int, int]]:
    """Return the bytes and the devices that each run needs as a job.

    The bytes are measured ones, else `DEFAULT_MEMORY` for each device, as beside a GPU, which holds
    what was measured. Raises UserError for a run on several machines.
    """
    experiments = list(experiments)
    is_measured = not torch.cuda.is_available() and (Path(folder) / FILE).is_file()
    costs = SampleCosts(Path(folder), measure=False) if is_measured else None
    found = {}
    for e, config in plan_configs(dict.fromkeys(map(drop_seed, experiments))).items():
        devices, nodes = count_devices(config), config["trainer"].get("num_nodes") or 1
        if nodes > 1:
            raise UserError(
                f"trainer.num_nodes={nodes}: a launcher starts a run on one machine, with"
                " trainer.devices; start one on several by torchrun"
            )
        memory = count_memory(config, costs.read(e.app, config)) if costs else None
        found[e] = (memory or devices * DEFAULT_MEMORY, devices)
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
