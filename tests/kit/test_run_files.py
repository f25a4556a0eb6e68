"""Files of runs that are damaged, edited, or of another run are named with their remedy."""

import json

import pytest
import torch
from experiment_kit import run_files
from experiment_kit.errors import UserError
from experiment_kit.run import Run

from tests.kit.run_results import make_result

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def run(tmp_path):
    """Return a run that has finished, in a folder of an odd name."""
    run = Run(tmp_path / "my runs [x]*?'$;" / "seed-0-0123456789")
    run.write_result(make_result(run))
    return run


def edit(run, **fields):
    """Change fields of a result that has no digest, as older ones."""
    (run.folder / "result.json").write_text(json.dumps(make_result(run, **fields)))


def read_error(run) -> str:
    with pytest.raises(UserError) as error:
        run.read_result()
    text = str(error.value)
    assert text.startswith(f"{run.folder / 'result.json'} ")
    assert text.endswith(": delete it, and the next fit of the run scores it again")
    assert "\n" not in text
    return text


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"{}"])
def test_a_damaged_file_is_not_a_result(run, content) -> None:
    (run.folder / "result.json").write_bytes(content)
    read_error(run)


@pytest.mark.parametrize("position", [0.3, 0.6])
def test_a_checkpoint_with_one_wrong_bit_is_not_whole(tmp_path, position) -> None:
    path = tmp_path / "best.ckpt"
    torch.save({"state_dict": {"weight": torch.zeros(10_000)}}, path)
    assert run_files.is_whole_checkpoint(path)
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 1
    path.write_bytes(content)
    assert not run_files.is_whole_checkpoint(path)


def test_a_result_of_another_run_is_refused(run) -> None:
    edit(run, seed=1)
    assert "is of another run: seed 1, not 0" in read_error(run)
    edit(run, hash="abc")
    assert "is of another run: hash 'abc', not '0123456789'" in read_error(run)


def test_a_result_of_another_profile_is_refused_where_one_is_planned(run) -> None:
    assert run_files.read_report(run.folder, "result", profile="small")
    with pytest.raises(UserError, match="is of another run: profile 'small', not 'paper'"):
        run_files.read_report(run.folder, "result", profile="paper")


def test_an_edited_result_is_refused_and_one_without_a_digest_is_not(run) -> None:
    path = run.folder / "result.json"
    path.write_text(path.read_text().replace("0.5", "0.9"))
    assert "was changed after the run had written it" in read_error(run)
    edit(run, metrics={"test/accuracy": 0.9})
    assert run.read_result()["metrics"] == {"test/accuracy": 0.9}


@pytest.mark.parametrize(("value", "finite"), [
    (-0.5, True), (1e308, False), (NAN, False), (True, False), ("1", False),
])  # fmt: skip
def test_a_published_number_is_finite(value, finite) -> None:
    assert run_files.is_finite(value) == finite


def test_a_bad_list_of_starts_is_refused(tmp_path) -> None:
    (tmp_path / "environment.yaml").write_text("a: [")
    with pytest.raises(UserError, match=r"environment\.yaml .*: delete it"):
        run_files.read_starts(tmp_path)


def test_a_bad_file_is_warned_of_once(tmp_path, capsys) -> None:
    (tmp_path / "efficiency.json").write_text("{}")
    for _ in range(2):
        assert run_files.try_read(run_files.read_report, tmp_path, "efficiency") is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("efficiency.json has no mapping metrics: delete it to measure again")
