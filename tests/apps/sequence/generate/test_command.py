"""The command that draws data sets: its options, what it leaves alone, workers, interrupts."""

import json
import os
import signal
import sys
import time
from functools import partial

import numpy as np
import pytest
from attention_sequence.generate.__main__ import main
from attention_sequence.generate.pathfinder import dataset_folder, draw_picture
from PIL import Image

from tests.processes import start_python


def call(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["generate", *arguments])
        patch.setattr(signal, "signal", lambda *_: None)
        try:
            main()
        except SystemExit as error:
            return error.code
    return 0


@pytest.mark.parametrize(
    ("name", "option", "sentence"),
    [
        ("listops", "--count=49", "--count must be at least 50, got 49"),
        ("listops", "--count=1.5", "count: Expected a <class 'int'>. Got value: 1.5"),
        ("listops", "--colour=1", "colour"),
        ("pathfinder", "--contour_length=2", "--contour_length must be at least 3, got 2"),
    ],
)
def test_bad_options_get_one_sentence(name, option, sentence, tmp_path, capsys) -> None:
    assert call(name, f"--out={tmp_path}", option) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_data_goes_to_the_folder_of_data_and_that_of_other_options_is_refused(
    tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.delenv("DATA_DIR", raising=False)
    run = partial(call, "listops", "--count=60", "--num_workers=1")
    assert run() == 2
    assert "set DATA_DIR, or give --out" in capsys.readouterr().err
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    assert run() == run() == 0
    printed = capsys.readouterr().out
    assert "listops-1000 is complete" in printed
    assert "exists; nothing to do" in printed
    assert run("--seed=1") == 2
    assert "was generated with --count=60 --seed=0: remove it" in capsys.readouterr().err


def test_workers_and_interrupts(tmp_path) -> None:
    run = ["-m", "attention_sequence.generate", "pathfinder", f"--out={tmp_path}"]
    options = ["--count=9000", "--contour_length=6", "--num_workers=2"]
    part = dataset_folder(tmp_path, 6).with_name("curv_baseline.part")
    with start_python([*run, *options], tmp_path / "log") as process:
        while not list(part.glob("metadata/*.npy")):
            assert process.is_alive(), (tmp_path / "log").read_text()
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        process.join(60)
        assert process.exitcode == 130
    assert not dataset_folder(tmp_path, 6).exists()
    assert json.loads((part / "generated.json").read_text())["count"] == 9000
    for metadata in part.glob("metadata/*.npy"):  # what looks whole is whole
        images = list((part / "imgs" / metadata.stem).iterdir())
        assert len(images) == len(metadata.read_text().splitlines()) == 1000
        drawn = draw_picture(0, 1000 * int(metadata.stem) + 7, 6).image  # whoever drew it
        file = part / "imgs" / metadata.stem / "sample_7.png"
        np.testing.assert_array_equal(np.asarray(Image.open(file)), drawn)
