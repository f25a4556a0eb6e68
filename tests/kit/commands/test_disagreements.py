"""Samples on which two runs differ: their order, and pairs of runs that cannot be compared."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import yaml
from experiment_kit.commands import disagreements
from experiment_kit.errors import UserError

from tests.kit.run_results import make_result
from tests.processes import run_allpass


def test_classes_come_in_their_order_and_numbers_by_their_difference() -> None:
    def answer(*answers):
        return [*zip("abc", (0, 1, 1), answers, strict=True)]

    found = disagreements.find_disagreements(answer(0, 1, 0), answer(1, 1, 1))
    assert found == [[0, "a", 0, 0, 1], [2, "c", 1, 0, 1]]
    found = disagreements.find_disagreements(answer(0.5, 1.0, 2.0), answer(1.0, 1.0, 0.0))
    assert [row[0] for row in found] == [2, 0]


def test_answers_have_the_names_of_classes_or_are_refused(monkeypatch) -> None:
    model, data = Mock(**{"predict_step.return_value": torch.eye(2)}), Mock(label_names=("1", "2"))
    data.predict_dataloader.return_value = ["b"]
    data.describe_inputs.return_value, data.list_targets.return_value = "xy", [1, 0]
    monkeypatch.setattr(disagreements, "load_best_epoch", lambda *_, **__: (model, data))
    assert disagreements.answer_split(Path(), "test", "") == [("x", "2", "1"), ("y", "1", "2")]
    monkeypatch.setattr(disagreements, "load_best_epoch", lambda *_, **__: (None, Path()))
    with pytest.raises(UserError, match="Path must define describe_inputs and list_targets"):
        disagreements.answer_split(Path(), "test", "")
    with pytest.raises(UserError, match="a distribution for every token"):
        disagreements.read_answers(torch.zeros(2, 3, 4))


def write_run(folder, seed=0, name="one"):
    folder.mkdir()
    data = {"class_path": "D", "init_args": {"dataset_name": name}}
    config = {"seed_everything": seed, "data": data}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "result.json").write_text(json.dumps(make_result()))
    return str(folder)


@pytest.mark.parametrize(("changes", "options", "sentence"), [
    ({"name": "two"}, (), "other samples: data.init_args.dataset_name is 'one' and 'two'"),
    ({}, (f"--out={__file__}",), " is there, and no file of disagreements: name another"),
    ({"seed": 1}, ("--split=val",), "seed_everything is 0 and 1"),
])  # fmt: skip
def test_runs_with_other_data_are_refused(changes, options, sentence, tmp_path, read_error) -> None:
    runs = write_run(tmp_path / "a"), write_run(tmp_path / "b", **changes)
    assert sentence in read_error(run_allpass, "disagreements", *runs, *options)
