"""Results of runs that were never trained, for tests of what reads them."""

from typing import Any

from torch.utils.tensorboard import SummaryWriter

KEYS = ("app", "data", "backbone", "method", "profile", "seed")


def write_scalars(folder, scalars: dict[str, dict[int, float]]) -> None:
    """Write values by step for each tag, as a logger does."""
    with SummaryWriter(folder / "tensorboard") as writer:
        for tag, values in scalars.items():
            for step, value in values.items():
                writer.add_scalar(tag, value, step)


def make_result(run=None, experiment=None, **fields: Any) -> dict[str, Any]:
    """Return a valid result, with the identity of a run and of its experiment if they are given."""
    result: dict[str, Any] = {"app": "sequence", "data": "heartbeat", "backbone": "uea"}
    result |= {"method": "agf", "profile": "small", "protocol": "validation", "seed": 0}
    result |= {"hash": "0123456789", "metrics": {"test/accuracy": 0.5}, "parameters": 72}
    if experiment is not None:
        result |= {key: getattr(experiment, key) for key in KEYS}
        result["profile"] = experiment.profile or "paper"
    if run is not None:
        result["hash"] = run.hash
    return result | fields
