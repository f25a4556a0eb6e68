"""A run's identity, its files, its lock."""

import copy
import os
import signal
from functools import reduce
from pathlib import Path

import pytest
import torch
from experiment_kit.errors import UserError
from experiment_kit.run import Run, config_hash
from experiment_kit.run_files import write_atomically, write_folder_once

CONFIG = {
    "seed_everything": 0,
    "run": {"data": "jv", "backbone": "uea", "method": "gfsa", "profile": "small", "folder": "r"},
    "trainer": {"max_epochs": 3, "devices": 1, "limit_train_batches": 3, "accelerator": "cpu"},
    "model": {"filter": {"class_path": "attention_core.GFSA", "init_args": {"K": 3}}},
    "data": {"class_path": "attention_nlp.UEA", "init_args": {"data_dir": None, "num_workers": 0}},
    "spectral": {"every_n_steps": 50},
}


def hash_with(path: str, value: object) -> str:
    config = copy.deepcopy(CONFIG)
    *groups, key = path.split(".")
    reduce(dict.__getitem__, groups, config)[key] = value
    return config_hash(config)


@pytest.mark.parametrize(("path", "value", "is_other"), [
    ("seed_everything", 1, True),
    ("trainer.max_epochs", 4, True),
    ("model.filter.init_args.K", 5, True),
    ("model.layers", "1:", True),
    ("data.init_args.batch_size", 8, True),
    ("model_class", "mine.Model", True),
    ("run.folder", "elsewhere", False),
    ("run.method", "renamed", False),
    ("trainer.devices", 8, False),
    ("trainer.logger", False, False),
    ("trainer.limit_train_batches", 3.0, False),  # what a parser makes of 3 depends on imports
    ("data.init_args.data_dir", "/data", False),
    ("data.init_args.num_workers", 4, False),
    ("spectral.every_n_steps", 0, False),
    ("ckpt_path", "x.ckpt", False),
    ("model.new_slot", None, False),
])  # fmt: skip
def test_what_can_change_the_result_makes_another_run(path, value, is_other) -> None:
    assert (hash_with(path, value) != config_hash(CONFIG)) == is_other


def test_one_batch_and_all_batches_are_two_runs_and_so_are_two_folders_of_own_data() -> None:
    one, everything = (hash_with("trainer.limit_train_batches", x) for x in (1, 1.0))
    mine = [{"class_path": "attention_mine.Data", "init_args": {"data_dir": name}} for name in "ab"]
    assert one != everything
    assert hash_with("data", mine[0]) != hash_with("data", mine[1])


def test_a_rename_outlives_a_power_cut(tmp_path, monkeypatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda n: synced.append((os.fstat(n).st_ino, path.exists())))
    monkeypatch.setattr(os, "sync", lambda: synced.append(("all", path.exists())))
    path = tmp_path / "new" / "run" / "result.json"
    write_atomically(path, "{}")
    inode, parent, top = (p.stat().st_ino for p in (path, path.parent, tmp_path))
    assert synced == [(inode, False), (parent, True)]
    path = tmp_path / "data"
    write_folder_once(path, lambda folder: (folder / "a").touch())
    assert synced[-2:] == [("all", False), (top, True)]


def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(tmp_path, capsys) -> None:
    run = Run(tmp_path)
    run.checkpoint_folder.mkdir()
    empty = {name: [] for name in ("callbacks", "optimizer_states", "lr_schedulers")}
    whole = {
        "state_dict": {"w": torch.ones(99)},
        "loops": {"fit_loop": {"epoch_progress": {"total": {}}}},
        **empty,
    }
    lost = {**whole, "state_dict": {"w": torch.tensor([1.0, torch.nan])}}  # as older versions saved
    damaged = {"102": lost, "101": {"state_dict": {}}, "100": whole}
    for step, content in {"9": whole, **damaged}.items():
        torch.save(content, run.checkpoint_folder / f"step={step}.ckpt")
    truncated = run.checkpoint_folder / "step=100.ckpt"
    truncated.write_bytes(truncated.read_bytes()[:-50])
    assert run.find_newest_checkpoint() == run.checkpoint_folder / "step=9.ckpt"
    warnings = capsys.readouterr().err
    for step in damaged:
        assert f"step={step}.ckpt is damaged" in warnings
        assert (run.checkpoint_folder / f"step={step}.damaged").exists()
    assert run.find_latest_step() == 9


def test_best_weights_that_are_gone_or_damaged_are_not_replaced_in_silence(tmp_path) -> None:
    run = Run(tmp_path)
    assert run.find_best_checkpoint(is_validated=False) is None
    with pytest.raises(UserError, match=r"best.ckpt, the weights of the best epoch, is gone: put"):
        run.find_best_checkpoint(is_validated=True)
    best = run.checkpoint_folder / "best.ckpt"
    for make in (best.mkdir, lambda: (best.rmdir(), best.write_bytes(b"PK"))):
        run.checkpoint_folder.mkdir(exist_ok=True)
        make()
        with pytest.raises(UserError, match="is damaged: put it back, or remove"):
            run.find_test_checkpoint()


def test_a_finished_run_keeps_its_best_and_its_two_newest_checkpoints(tmp_path) -> None:
    run = Run(tmp_path)
    run.checkpoint_folder.mkdir()
    others = {"best", "step=6-v1"}  # the second one of a callback
    for name in (*others, "step=8", "step=9", "step=10"):
        (run.checkpoint_folder / f"{name}.ckpt").touch()
    run.write_result({})
    assert {path.stem for path in run.checkpoint_folder.iterdir()} == {*others, "step=9", "step=10"}


def test_a_folder_is_there_whole_or_not_at_all(tmp_path) -> None:
    path = tmp_path / "new" / "data"

    def fail(folder: Path) -> None:
        (folder / "a").touch()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_folder_once(path, fail)
    assert os.listdir(path.parent) == ["data.lock"]
    for content in ("first", "second"):
        assert write_folder_once(path, lambda new: (new / "a").write_text(content)) == path  # noqa: B023
    assert (path / "a").read_text() == "first"
    assert sorted(os.listdir(path.parent)) == ["data", "data.lock"]


def test_the_next_call_removes_what_a_killed_process_left(tmp_path) -> None:
    path = tmp_path / "data"

    def write_half(folder: Path) -> None:
        (folder / "half").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    process = os.fork()
    if process == 0:
        write_folder_once(path, write_half)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
    assert [name for name in os.listdir(tmp_path) if name.endswith(".part")]
    write_folder_once(path, lambda new: (new / "whole").touch())
    assert os.listdir(path) == ["whole"]
    assert set(os.listdir(tmp_path)) <= {"data", "data.lock"}
