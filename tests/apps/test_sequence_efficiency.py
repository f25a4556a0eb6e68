"""What a sequence model costs is measured for every kind of data set, without its files."""

import json

import pytest
import torch
from attention_core import AGF
from attention_sequence.__main__ import APP
from attention_sequence.data import UEA, ListOps, Retrieval
from attention_sequence.efficiency import Printed, parts
from attention_sequence.models import PairClassifier, TokenClassifier
from attention_sequence.module import SequenceClassifier
from experiment_kit.counting import multiply_adds
from experiment_kit.efficiency import main
from experiment_kit.launch import compose
from experiment_kit.tables import load

from tests.apps.tiny import NARROW

LONG = {"truncate": 19, "max_length": 23}
KINDS = {
    "series": (lambda: Printed("Heartbeat", max_length=23), None, (23, 61)),
    "tokens": (lambda: ListOps("listops-1000", **LONG), TokenClassifier, (23,)),
    "pairs": (lambda: Retrieval("aan", **LONG), PairClassifier, (2, 23)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_set_is_counted(kind) -> None:
    make, network, shape = KINDS[kind]
    data = make()
    facts = (data.num_features, data.num_classes, data.max_length)
    size = {"width": 8, "heads": 2, "hidden": 12, "depth": 1}
    module = SequenceClassifier(*facts, **size, kernel=AGF, network=network)
    model, inputs = parts(module, data)
    x, mask = inputs(3)
    assert x.shape == (3, *shape)
    assert mask.all()
    assert model(x, mask).shape == (3, data.num_classes)
    assert multiply_adds(model, inputs(1))[0] > 23 * 8**2


@pytest.mark.parametrize("row", load("agf-table-9").rows, ids=lambda row: row.key)
def test_a_stand_in_has_the_printed_sizes(row, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("DATA_DIR", str(tmp_path))  # which is empty
    data = Printed(row.label)
    sizes = {"features": data.num_features, "classes": data.num_classes, "length": data.max_length}
    assert sizes == {name: row.values[name] for name in sizes}


def test_what_is_not_printed_is_read_from_its_file() -> None:
    data, file = Printed("BasicMotions"), UEA("BasicMotions")
    assert (data.num_features, data.max_length) == (file.num_features, file.max_length)


def test_the_cost_of_a_data_set_that_is_not_here_lies_in_the_folder_of_its_run(tmp_path) -> None:
    chosen = {"data": "handwriting", "backbone": "uea", "method": "agf"}
    arguments = compose.arguments("sequence", (*NARROW, f"--run.folder={tmp_path}"), **chosen)
    main(
        APP,
        parts,
        [*arguments, "--device=cpu", "--repeats=1"],
        batch_size=lambda data: data.batch_size,
        stand_ins={UEA: Printed},
    )
    (path,) = tmp_path.rglob("efficiency.json")
    report = json.loads(path.read_text())
    assert path.parts[-4:-2] == ("handwriting-uea", "agf")
    assert report["batch_size"] == 16
    weights = report["metrics"]["parameters"] * torch.float32.itemsize / 2**20
    assert report["metrics"]["train_peak_mib"] > 4 * weights  # gradients, and two moments
