"""Data that changed since a run started is found, and the same data in another place is not."""

import os
import shutil
from pathlib import Path

import pytest
from experiment_kit.errors import UserError
from experiment_kit.run import Run, describe_data, list_files


@pytest.fixture
def data(tmp_path) -> Path:
    for name in ("train/a.txt", "test/b.txt"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True)
        path.write_text(f"{name} {'x' * 200_000}")
    return tmp_path / "data"


@pytest.fixture
def run(tmp_path, data) -> Run:
    run = Run(tmp_path / "run")
    run.record_data([data], {})
    run.checkpoint_folder.mkdir()
    (run.checkpoint_folder / "step=3.ckpt").touch()
    return run


def edit_bytes(path: Path) -> None:
    """Change a byte, and neither the size nor the date."""
    status = path.stat()
    path.write_bytes(path.read_bytes()[:-1] + b"y")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(("change", "sentence"), [
    (lambda data: edit_bytes(data / "train/a.txt"), "train/a.txt has changed since it started"),
    (lambda data: (data / "test/b.txt").write_text("b"), "test/b.txt has changed since it"),
    (lambda data: (data / "test/b.txt").unlink(), "test/b.txt was added or removed since it"),
    (lambda data: (data / "test/c.txt").touch(), "test/c.txt was added or removed since it"),
])  # fmt: skip
def test_a_run_does_not_resume_on_changed_data(run, data, change, sentence) -> None:
    change(data)
    with pytest.raises(UserError, match=f"began with other data: {sentence}"):
        run.record_data([data], {})
    (run.checkpoint_folder / "step=3.ckpt").unlink()
    run.record_data([data], {})  # nothing was trained on the old data


def test_the_same_data_elsewhere_of_another_date_is_accepted(run, data, tmp_path) -> None:
    shutil.copytree(data, tmp_path / "moved" / "there", copy_function=shutil.copyfile)
    os.utime(tmp_path / "moved/there/train/a.txt", ns=(1, 1))
    (tmp_path / "moved/there/.cache").mkdir()
    (tmp_path / "moved/there/.cache/made").touch()
    (tmp_path / "moved/there/train/desktop.ini").touch()
    (tmp_path / "moved/there/train/again").symlink_to("..")
    run.record_data([tmp_path / "moved" / "there"], {})
    run.record_data([tmp_path / "moved/there/test", tmp_path / "moved/there/train"], {})


def test_a_damaged_record_is_named_and_that_of_an_old_run_is_written(run, data) -> None:
    (run.folder / "data.json").write_text("[]")
    with pytest.raises(UserError, match=r"data\.json .*: delete it if the data is still that of"):
        run.record_data([data], {})
    (run.folder / "data.json").unlink()
    run.record_data([data], {})
    assert (run.folder / "data.json").is_file()


def test_many_large_files_are_counted_and_sampled(tmp_path, monkeypatch) -> None:
    for number in range(30):
        (tmp_path / f"{number}").write_bytes(bytes([number]) * 300_000)
    monkeypatch.setattr("experiment_kit.run.MAX_FILES", 4)
    found = describe_data([tmp_path])
    assert (found["files"], found["bytes"], len(found["content"])) == (30, 9_000_000, 4)
    assert describe_data([tmp_path]) == found
    for name in found["content"]:  # the last byte is always read
        edit_bytes(tmp_path / name)
    changed = describe_data([tmp_path])["content"]
    assert all(changed[name] != digest for name, digest in found["content"].items())
    next(path for path in tmp_path.iterdir() if path.name not in changed).write_bytes(b"")
    assert describe_data([tmp_path])["names"] != found["names"]


def test_links_and_what_is_no_file_do_no_harm(tmp_path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe")
    assert [*list_files([tmp_path])] == [*list_files([tmp_path / "a"])] == ["a"]
    assert describe_data([])["files"] == 0
