"""ZINC and PCQM4M in every layout they come in, with files made here; and their downloads."""

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from attention_graph import download
from attention_graph.chemistry import penalised_logp, zinc_molecule
from attention_graph.chemistry.features import ZINC_ATOMS
from attention_graph.data import PCQM, Zinc, zinc_files
from attention_graph.data.pickles import read_pickle, read_split
from experiment_kit.errors import UserError

SMILES = ["CCO", "c1ccccc1", "CC(=O)O.N", "C#N", "CCCCC", "C1CC1", "O=C=O", "CS", "CF", "CCl", "N"]
PARTS = ("train", "val", "test")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATA_DIR", raising=False)
    return tmp_path


def flat(smiles: str) -> tuple[np.ndarray, np.ndarray]:
    """Atom types, and bonds as begin, end, type."""
    graph = zinc_molecule(smiles)
    bonds = torch.cat([graph.edge_index.T, graph.edge_attr - 1], 1)[::2]
    return (graph.x[:, 0] - 1).numpy(), bonds.numpy()


def dense(smiles: str, target: float) -> dict:
    """A molecule of benchmarking-gnns."""
    atoms, bonds = flat(smiles)
    matrix = torch.zeros(len(atoms), len(atoms), dtype=torch.int64)
    for begin, end, kind in bonds.tolist():
        matrix[begin, end] = matrix[end, begin] = kind
    return {
        "num_atom": len(atoms),
        "atom_type": torch.from_numpy(atoms),
        "bond_type": matrix,
        "logP_SA_cycle_normalized": torch.tensor([target]),
    }


def pickles(folder: Path) -> None:
    folder.mkdir(parents=True)
    for shift, part in enumerate(PARTS):
        molecules = [dense(smiles, row + shift) for row, smiles in enumerate(SMILES)]
        (folder / f"{part}.pickle").write_bytes(pickle.dumps(molecules))
        (folder / f"{part}.index").write_text(f"{4 + shift},0,{7 + shift}\n")


def arrays(path: Path, **changed) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"atom_types": np.array(ZINC_ATOMS)}
    for part in PARTS:
        atoms, bonds = zip(*map(flat, SMILES), strict=True)
        columns |= {
            f"{part}_n": np.array(list(map(len, atoms)), np.uint8),
            f"{part}_m": np.array(list(map(len, bonds)), np.uint8),
            f"{part}_atom": np.concatenate(atoms).astype(np.uint8),
            f"{part}_bond": np.concatenate(bonds).astype(np.uint8),
            f"{part}_y": np.arange(len(SMILES), dtype=np.float32),
        }
    np.savez(path, **columns | changed)


def lists(folder: Path) -> None:
    folder.mkdir()
    (folder / "zinc250k.smi").write_text("\n".join(SMILES) + "\n")
    (folder / "zincfull_valid.txt").write_text("C#N\nCCO\n")
    (folder / "zincfull_test.txt").write_text("CF\nN\nCCl\n")
    (folder / "zinc12k_val.index").write_text("1")
    (folder / "zinc12k_test.index").write_text("2,0")


def ready(data):
    data.setup("fit")
    return data.parts


@pytest.mark.parametrize("folder", ["molecules", "ZINC/raw", "ZINC/molecules", "graph/molecules"])
def test_zinc_as_benchmarking_gnns_has_it(folder, here, capsys) -> None:
    pickles(here / folder)
    parts = ready(Zinc("zinc", str(here)))
    assert parts["train"].rows.tolist() == [4, 0, 7]
    assert parts["val"].targets.tolist() == [6, 1, 9]
    graph, same = parts["train"][1], zinc_molecule(SMILES[0])
    assert graph.x.tolist() == same.x.tolist()
    assert sorted(map(tuple, graph.edge_index.T.tolist())) == sorted(
        map(tuple, same.edge_index.T.tolist())
    )
    assert graph.edge_attr.tolist() == same.edge_attr.tolist()
    full = ready(Zinc("zinc_full", str(here)))
    assert [len(full[part]) for part in PARTS] == [11, 11, 11]
    assert capsys.readouterr().err == ""


def test_zinc_as_arrays(here, capsys) -> None:
    arrays(here / "graph/zinc/zinc12k.npz")
    parts = ready(Zinc("zinc", str(here), protocol="test"))
    assert "a substitute of the training ones" in capsys.readouterr().err
    assert parts["val"] is parts["test"]
    for row, smiles in enumerate(SMILES):
        graph, same = parts["train"][row], zinc_molecule(smiles)
        assert graph.x.tolist() == same.x.tolist()
        assert graph.edge_index.tolist() == same.edge_index.tolist()
        assert graph.edge_attr.tolist() == same.edge_attr.tolist()
        assert graph.y.item() == row


def test_official_pickles_come_before_a_substitute(here, capsys) -> None:
    arrays(here / "zinc12k.npz")
    pickles(here / "zinc/molecules")
    assert len(ready(Zinc("zinc", str(here)))["train"]) == 3
    assert capsys.readouterr().err == ""


def test_zinc_as_smiles(here, capsys, monkeypatch) -> None:
    lists(here / "zinc")
    full = ready(Zinc("zinc_full", str(here)))
    assert capsys.readouterr().err == ""
    held = ["C#N", "CCO", "CF", "N", "CCl"]
    train = [row for row, smiles in enumerate(SMILES) if smiles not in held]
    assert full["train"].rows.tolist() == train
    assert [len(full[part]) for part in PARTS] == [6, 2, 3]
    expected = [penalised_logp(SMILES[row]) for row in train]
    np.testing.assert_allclose(full["train"].targets, expected, rtol=1e-6)
    monkeypatch.setattr(zinc_files, "_DRAWN", 4)
    small = ready(Zinc("zinc", str(here)))
    assert "official validation and test molecules" in capsys.readouterr().err
    assert set(small["train"].rows.tolist()) < set(train)
    assert [len(small[part]) for part in PARTS] == [4, 1, 2]
    assert small["test"].targets.tolist() == full["test"].targets[[2, 0]].tolist()


def test_no_zinc_is_said(here, monkeypatch) -> None:
    with pytest.raises(
        UserError, match=r"no ZINC/molecules in DATA_DIR .* or its folders graph/ .*downl"
    ):
        ready(Zinc("zinc", str(here)))
    arrays(here / "zinc/zinc12k.npz")
    with pytest.raises(UserError, match=r"no ZINC/molecules"):
        ready(Zinc("zinc_full", str(here)))
    monkeypatch.setenv("DATA_DIR", str(here))
    assert Zinc.whereabouts("zinc") == here / "zinc"


class Evil:
    def __reduce__(self):
        return os.mkdir, ("owned",)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (pickle.dumps([Evil()]), r"val.pickle cannot .* needs posix.mkdir, and only data is read"),
        (b"", r"val.pickle cannot be read as a pickle of data: Ran out of input"),
        (pickle.dumps([torch.nn.ReLU()]), r"needs torch.nn.modules.activation.ReLU"),
        (pickle.dumps(5), r"val.pickle holds a int, not a list of molecules"),
        (pickle.dumps([]), r"val.index names molecule 8, and .*val.pickle has 0"),
        (pickle.dumps([{}] * 11), r"val.pickle: molecule 6 must be a dict with atom_type"),
        (pickle.dumps([3] * 11), r"val.pickle: molecule 6 must be a dict"),
        (
            pickle.dumps([dense("CC", 1) | {"atom_type": torch.tensor([1])}] * 11),
            r"molecule 6 must be a dict .* of one size",
        ),
    ],
)
def test_other_pickles_are_refused(content, sentence, here) -> None:
    pickles(here / "molecules")
    (here / "molecules/val.pickle").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        ready(Zinc("zinc", str(here)))
    assert not (here / "owned").exists()


def test_a_tensors_bytes_are_no_way_in(here) -> None:
    class Inside:
        def __reduce__(self):
            return torch.storage._load_from_bytes, (pickle.dumps(Evil(), 2),)

    (here / "a.pickle").write_bytes(pickle.dumps(Inside()))
    with pytest.raises(UserError, match=r"a.pickle cannot be read as a pickle of data"):
        read_pickle(here / "a.pickle")
    torch.save({"train": Evil()}, here / "split.pt")
    with pytest.raises(UserError, match=r"split.pt cannot be read as arrays of row numbers"):
        read_split(here / "split.pt")
    assert not (here / "owned").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("", "is empty"), ("1,x", "must hold numbers"), ("3,-1", "names molecule -1"), ("11", "11,")],
)
def test_bad_index_files(text, sentence, here) -> None:
    pickles(here / "molecules")
    (here / "molecules/train.index").write_text(text)
    with pytest.raises(UserError, match=rf"train.index .*{sentence}|train.index {sentence}"):
        ready(Zinc("zinc", str(here)))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"atom_types": np.array(["C", "O"])}, "atom_types are not the 28 of ZINC"),
        ({"train_n": np.ones(11, np.uint8)}, "arrays of train disagree"),
        ({"train_y": np.ones(3)}, "arrays of train disagree"),
        ({"train_y": np.array([None])}, "cannot be read"),
    ],
)
def test_bad_arrays(changed, sentence, here) -> None:
    arrays(here / "zinc/zinc12k.npz", **changed)
    with pytest.raises(UserError, match=rf"zinc12k.npz.*{sentence}"):
        ready(Zinc("zinc", str(here)))
    (here / "zinc/zinc12k.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"zinc12k.npz cannot be read"):
        ready(Zinc("zinc", str(here)))


def test_wrong_types_and_bonds_to_nowhere_or_twice_are_skipped(here, capsys) -> None:
    arrays(here / "zinc/zinc12k.npz")
    with np.load(here / "zinc/zinc12k.npz") as file:
        atom, bond = file["train_atom"].copy(), file["train_bond"].copy()
    atom[0], bond[2, 0], bond[9] = 28, 9, bond[8]
    arrays(here / "zinc/zinc12k.npz", train_atom=atom, train_bond=bond)
    assert ready(Zinc("zinc", str(here)))["train"].rows.tolist() == list(range(3, 11))
    err = capsys.readouterr().err
    assert (
        "1 with atoms or bonds ZINC has not (row 1), 1 with bonds to nowhere (row 2),"
        " 1 with bonds given twice (row 3)"
    ) in err


def pcqm(folder: Path, split: dict, rows: int = 10) -> None:
    (folder / "raw").mkdir(parents=True)
    lines = [f"{row},{SMILES[row]},{row / 4 if row < 8 else ''}" for row in range(rows)]
    table = "\n".join(["idx,smiles,homolumogap", *lines]) + "\n"
    (folder / "raw/data.csv.gz").write_bytes(gzip.compress(table.encode()))
    torch.save(
        {name: np.array(numbers) for name, numbers in split.items()}, folder / "split_dict.pt"
    )


SPLIT = {"train": [0, 1, 3, 5, 6], "valid": [2, 7], "test-dev": [8], "test-challenge": [9]}


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("pcqm4mv2", "pcqm4m-v2"),
        ("pcqm4mv2", "pcqm4mv2/pcqm4m-v2"),
        ("pcqm4m", "graph/pcqm4m_kddcup2021"),
    ],
)
def test_pcqm_by_its_official_split(name, folder, here, capsys) -> None:
    pcqm(here / folder, SPLIT)
    parts = ready(PCQM(name, str(here), share=0.4))
    assert parts["test"].rows.tolist() == [2, 7]
    assert parts["test"].targets.tolist() == [0.5, 1.75]
    held, kept = (set(parts[part].rows.tolist()) for part in ("val", "train"))
    assert len(held) == 2
    assert held | kept == set(SPLIT["train"])
    assert not held & kept
    others = [
        ready(PCQM(name, str(here), share=0.4, seed=seed))["val"].rows.tolist() for seed in range(5)
    ]
    assert others[0] == sorted(held)
    assert len(set(map(tuple, others))) > 1
    papers = ready(PCQM(name, str(here), protocol="test"))
    assert papers["train"].rows.tolist() == SPLIT["train"]
    assert papers["val"] is papers["test"]
    assert parts["test"][0].x.shape[1] == 9
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
    pcqm(here / "pcqm4m-v2", split)
    with pytest.raises(UserError, match=sentence):
        ready(PCQM("pcqm4mv2", str(here)))


def test_pcqm_arguments_and_places(here) -> None:
    with pytest.raises(ValueError, match=r"data.share, .*, must be in \(0, 1\), got 1"):
        PCQM("pcqm4m", share=1)
    with pytest.raises(UserError, match=r"no pcqm4m-v2 in DATA_DIR .*download pcqm4mv2"):
        ready(PCQM("pcqm4mv2", str(here)))


@pytest.mark.parametrize("names", [[], ["cifar10"], ["zinc", "imagenet"]])
def test_download_names_what_there_is(names, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["download", *names])
    with pytest.raises(SystemExit) as left:
        download.main()
    assert left.value.code == 2
    assert "name some of zinc, pcqm4m, pcqm4mv2, esol" in capsys.readouterr().err


def test_download_needs_a_folder(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["download", "esol"])
    with pytest.raises(SystemExit):
        download.main()
    assert "set DATA_DIR" in capsys.readouterr().err


def test_what_is_downloaded_is_found(monkeypatch, here, capsys) -> None:
    monkeypatch.setenv("DATA_DIR", str(here))
    fetched: list[tuple[str, str]] = []

    def fetch(url, path):
        fetched.append((url, path.name))
        if path.suffix == ".csv":
            path.parent.mkdir(exist_ok=True)
            path.write_text("")
        return path

    def extract(archive, folder):
        (pickles if folder.name == "ZINC" else partial_pcqm)(folder / Path(archive).stem)
        return folder

    def partial_pcqm(folder):
        pcqm(folder, SPLIT)

    monkeypatch.setattr(download, "fetch", fetch)
    monkeypatch.setattr(download, "extract", extract)
    monkeypatch.setattr("sys.argv", ["download", *download.SOURCES])
    download.main()
    assert all(url.startswith("https://") for url, _ in fetched)
    names = [name for _, name in fetched]
    assert names[:4] == ["molecules.zip", "train.index", "val.index", "test.index"]
    from attention_graph.data import MoleculeNet

    for module in (Zinc, PCQM, MoleculeNet):
        for name in module.known:
            assert here in module.whereabouts(name).parents
