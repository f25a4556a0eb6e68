"""PCQM4M by its official split, with a few molecules."""

import pytest
from attention_graph.data import PCQM
from experiment_kit.errors import UserError

from tests.apps.graph.data.files import PCQM_SPLIT, load_splits, write_pcqm


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("pcqm4mv2", "pcqm4m-v2"),
        ("pcqm4mv2", "pcqm4mv2/pcqm4m-v2"),
        ("pcqm4m", "graph/pcqm4m_kddcup2021"),
    ],
)
def test_pcqm_by_its_official_split(name, folder, here, capsys) -> None:
    write_pcqm(here / folder, PCQM_SPLIT)
    splits = load_splits(PCQM(name, data_dir=str(here), val_fraction=0.4))
    assert splits["test"].rows.tolist() == [2, 7]
    assert splits["test"].targets.tolist() == [0.5, 1.75]
    held, kept = (set(splits[split].rows.tolist()) for split in ("val", "train"))
    assert len(held) == 2
    assert held | kept == set(PCQM_SPLIT["train"])
    assert not held & kept
    others = [
        load_splits(PCQM(name, data_dir=str(here), val_fraction=0.4, seed=seed))[
            "val"
        ].rows.tolist()
        for seed in range(5)
    ]
    assert others[0] == sorted(held)
    assert len(set(map(tuple, others))) > 1
    papers = load_splits(PCQM(name, data_dir=str(here), protocol="test"))
    assert papers["train"].rows.tolist() == PCQM_SPLIT["train"]
    assert papers["val"] is papers["test"]
    assert splits["test"][0].x.shape[1] == 9
    assert capsys.readouterr().err == "", "hidden labels are not skipped molecules"


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        ({"train": [0, 1]}, "split_dict.pt has no part valid, but train"),
        ({"train": [0, 30], "valid": [2]}, "data.csv.gz has 10 rows, and its split names row 31"),
        ({"train": [0], "valid": [2]}, "has 1 training and 1 validation molecules"),
        ({"train": [0.5], "valid": ["x"]}, "split_dict.pt cannot be read as arrays"),
    ],
)
def test_bad_splits(split, sentence, here) -> None:
    write_pcqm(here / "pcqm4m-v2", split)
    with pytest.raises(UserError, match=sentence):
        load_splits(PCQM("pcqm4mv2", data_dir=str(here)))


def test_pcqm_arguments_and_places(here) -> None:
    with pytest.raises(ValueError, match=r"data.val_fraction must be in \(0, 1\), got 1"):
        PCQM("pcqm4m", val_fraction=1)
    with pytest.raises(UserError, match=r"no pcqm4m-v2 in DATA_DIR .*download graph pcqm4mv2"):
        load_splits(PCQM("pcqm4mv2", data_dir=str(here)))
