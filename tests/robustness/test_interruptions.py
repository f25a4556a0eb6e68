"""A small part of `make robustness`, and the comparison that it stands on."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.robustness.campaigns import Campaign, Whole, run_campaign, run_whole
from tests.robustness.compare_runs import compare_runs
from tests.robustness.interruptions import plan_campaigns

pytestmark = pytest.mark.timeout(300)  # children, on machines of two slow cores


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def whole(scratch: Path) -> Whole:
    return run_whole(scratch, "sequence", "")


@pytest.mark.parametrize(
    ("signal", "event", "numbers"),
    [
        ("KILL", "rename", (6,)),
        ("TERM", "training batch", (3, 1)),
        ("INT", "validation batch", (2,)),
        ("ENOSPC", "fsync", (4,)),
    ],
)
def test_an_interrupted_run_ends_as_the_whole_one(scratch, whole, signal, event, numbers) -> None:
    campaign = Campaign("sequence", "", signal, event, numbers)
    outcome = run_campaign(scratch, f"{signal}-{event}", campaign, whole)
    assert (outcome.lost, outcome.differences) == ("", [])
    assert outcome.interruptions == len(numbers)


def test_every_difference_is_found(whole: Whole, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(whole.folder, other)
    assert compare_runs(Path(whole.folder), other) == []
    checkpoint = torch.load(other / "checkpoints/best.ckpt", weights_only=True)
    next(iter(checkpoint["state_dict"].values())).view(-1)[0] += 1e-6
    torch.save(checkpoint, other / "checkpoints/best.ckpt")
    result = json.loads((other / "result.json").read_text())
    del result["metrics"]["test/accuracy"]
    (other / "result.json").write_text(json.dumps(result))
    shutil.rmtree(other / "tensorboard")
    (other / ".spectral.json.1.part").touch()
    found = "\n".join(compare_runs(Path(whole.folder), other))
    for expected in (
        "best: state_dict",
        "metrics.test/accuracy: ",
        "scalars: train/loss",
        "files: ",
    ):
        assert expected in found


def test_the_plan_is_the_same_each_time() -> None:
    counts = {"rename": 10, "training batch": 6, "validation batch": 4, "open": 12, "hook": 9}
    whole = Whole("", counts)
    plans = [list(plan_campaigns("graph", "", whole, quick=False)) for _ in range(2)]
    assert plans[0] == plans[1]
    every_batch = {c.numbers[0] for c in plans[0] if c.row[1:] == ("TERM", "training batch")}
    assert every_batch == {1, 2, 3, 4, 5, 6}
