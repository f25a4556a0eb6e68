"""Pre-processing and its cache: what is skipped, resumed, made anew; the data modules on top."""

import gzip
import json
import os
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from attention_graph.chemistry import molecule
from attention_graph.data import Invented, MoleculeNet, prepare
from attention_graph.data import source as sources
from attention_graph.data.molecules import csv_records, labelled, line_records
from attention_graph.data.prepare import CACHE
from attention_graph.data.source import Options, Record, Source
from attention_graph.data.store import Store
from attention_graph.encodings import ShortestPaths
from experiment_kit.errors import UserError
from torch.utils.data import DataLoader

SMILES = ["CCO", "c1ccccc1", "C", "CC(=O)O.N", "C#N", "CCCCC", "C1CC1", "O=C=O"]
CHAIN = "C" * 600


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATA_DIR", raising=False)
    return tmp_path


def table(path: Path, rows, header: str = "smiles,y") -> Path:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def source(path: Path, make=labelled) -> Source:
    return Source("tiny", (path,), partial(csv_records, path, ("smiles",), ("y",)), make)


def good(path: Path = Path("a.csv")) -> Path:
    return table(path, [(smiles, 0.5 * row) for row, smiles in enumerate(SMILES)])


def stored(path: Path, workers: int = 0, **options) -> Store:
    return Store(prepare.prepare(source(path), Options(**options), workers))


@pytest.mark.parametrize("fidelity", ["right", "released"])
def test_graphs_come_back_as_they_were(fidelity) -> None:
    store = stored(good(), fidelity=fidelity)
    assert len(store) == len(SMILES)
    assert store.note() == ""
    for row, smiles in enumerate(SMILES):
        graph = ShortestPaths(fidelity)(molecule(smiles))
        assert set(store[row].keys()) == {*graph.keys(), "y", "row"}
        assert store[row].y.item() == 0.5 * row
        for name in graph.keys():  # noqa: SIM118 -- a Data is no mapping
            assert store[row][name].dtype == graph[name].dtype
            torch.testing.assert_close(store[row][name], graph[name], rtol=0, atol=0)
            assert store[row][name].is_contiguous()


def test_a_store_travels_to_workers() -> None:
    store = stored(good())
    assert store[-1].row.item() == len(SMILES) - 1
    there = pickle.loads(pickle.dumps(store))
    assert there[1].x.tolist() == store[1].x.tolist()
    loader = DataLoader(store, 3, num_workers=1, collate_fn=lambda graphs: [g.row for g in graphs])
    assert [int(row) for rows in loader for row in rows] == list(range(len(SMILES)))
    with pytest.raises(IndexError):
        store[len(SMILES)]


BAD = [("CCO", 1), ("C1CC", 2), ("CC", "nan"), ("CN", ""), ("", 3), (CHAIN, 4), ("x", 5), ("O", 6),
       ("C", "inf"), ("c1cc", 7), ("C(", 8)]  # fmt: skip


def test_bad_rows_are_skipped_counted_and_named() -> None:
    store = stored(table(Path("a.csv"), BAD))
    assert store.rows.tolist() == [0, 7]
    assert store.targets.tolist() == [1, 6]
    assert store.note() == (
        "note: 9 of 11 molecules of tiny are skipped:"
        " 4 with an invalid SMILES (rows 2, 7, 10, ...), 3 with no finite target (rows 3, 4, 9),"
        " 1 with no atoms (row 5), 1 with more than 512 atoms (row 6)"
    )


def test_a_large_graph_is_taken_where_it_may_be() -> None:
    store = stored(table(Path("a.csv"), BAD[-3:] + BAD[5:6]), max_nodes=600)
    assert store.rows.tolist() == [3]
    assert len(store[0].x) == 600
    assert store[0].hops.view(600, 600)[0, 599] == 599
    assert store[0].step_hop.max() == 599


def test_nothing_left_is_said() -> None:
    path = table(Path("a.csv"), [("C1CC", 2), ("CC", "")])
    sentence = (
        r"tiny has no molecule .* in a.csv: 1 with an invalid SMILES \(row 1\), 1 with no fin"
    )
    for _ in range(2):
        with pytest.raises(UserError, match=sentence):
            stored(path)
    with pytest.raises(UserError, match=r"tiny has no molecule that can be used in b.csv$"):
        stored(table(Path("b.csv"), []))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"a.csv is empty"),
        (b"name,y\nCC,1\n", r"a.csv has no column 'smiles', but name, y"),
        (b"smiles,z\nCC,1\n", r"a.csv has no column 'y', but smiles, z"),
        (b"smiles,y\nC\xff,1\n", r"a.csv is not text in UTF-8 \(invalid start byte\)"),
        (b'smiles,y\n"' + b"C" * 200_000 + b'",1\n', r"a.csv cannot be read: field larger"),
    ],
)
def test_bad_tables_get_a_sentence(content, sentence) -> None:
    Path("a.csv").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        stored(Path("a.csv"))


def test_gzipped_tables_and_broken_ones() -> None:
    whole = gzip.compress(good().read_bytes())
    Path("a.csv.gz").write_bytes(whole)
    assert len(stored(Path("a.csv.gz"))) == len(SMILES)
    for content in (whole[:-12], b"CCO"):
        Path("a.csv.gz").write_bytes(content)
        with pytest.raises(UserError, match=r"a.csv.gz cannot be read"):
            stored(Path("a.csv.gz"))


def test_tables_with_bom_quotes_short_and_blank_rows() -> None:
    Path("a.csv").write_bytes(b'\xef\xbb\xbfy, smiles\n\n1,"CC" \n2\n')
    found = list(csv_records(Path("a.csv"), ("smiles",), ("y",)))
    assert found == [Record(0, ("CC", 1.0), 2), Record(1, ("", 2.0), 0)]


def test_lists_of_smiles() -> None:
    Path("a.smi").write_text("CCO ethanol\n\nC\n")
    assert [record.content for record in line_records(Path("a.smi"))] == ["CCO", "", "C"]
    Path("a.smi").write_text("")
    with pytest.raises(UserError, match=r"a.smi is empty"):
        list(line_records(Path("a.smi")))


def test_content_and_options_decide_where_the_cache_is(monkeypatch) -> None:
    first, again = stored(good()).folder, stored(good(Path("other.csv"))).folder
    assert first == again
    assert first.parent == CACHE
    assert stored(good(), max_nodes=9).folder != first
    assert stored(good(), fidelity="released").folder != first
    assert stored(table(Path("a.csv"), [("CC", 1)])).folder != first
    monkeypatch.setattr(sources, "VERSION", -1)
    assert stored(good()).folder != first


def test_what_is_there_is_not_made_again(monkeypatch) -> None:
    folder = stored(good()).folder
    monkeypatch.setattr(prepare, "encode", None)
    assert stored(good()).folder == folder


made: list[str] = []


def counted(content):
    made.append(content[0])
    if len(made) == 5:
        raise KeyboardInterrupt
    return labelled(content)


def test_a_killed_call_is_continued(monkeypatch) -> None:
    monkeypatch.setattr(prepare, "_ROWS", 2)
    made.clear()
    with pytest.raises(KeyboardInterrupt):
        prepare.prepare(source(good(), counted), Options())
    (folder,) = [path for path in CACHE.iterdir() if path.is_dir()]
    assert sorted(path.name for path in folder.iterdir()) == ["part-000000.pt", "part-000001.pt"]
    (folder / ".part-000002.pt.7.part").write_bytes(b"half")
    (folder / "part-000001.pt").write_bytes(b"damaged while nobody looked")
    store = Store(prepare.prepare(source(good(), counted), Options()))
    assert made == SMILES[:5] + SMILES[2:]
    assert store.rows.tolist() == list(range(len(SMILES)))
    assert len(store.summary["parts"]) == 4
    assert not list(folder.glob(".*"))


def test_a_part_that_is_damaged_is_made_anew(monkeypatch, capsys) -> None:
    monkeypatch.setattr(prepare, "_ROWS", 3)
    store = stored(good())
    cut, kept, gone = (store.folder / f"part-00000{number}.pt" for number in range(3))
    os.truncate(cut, 100)
    gone.unlink()
    before = kept.stat().st_mtime_ns
    assert [graph.row.item() for graph in stored(good())] == list(range(len(SMILES)))
    assert "part-000000.pt is damaged and made anew" in capsys.readouterr().err
    assert kept.stat().st_mtime_ns == before
    kept.write_bytes(b"x" * kept.stat().st_size)
    with pytest.raises(UserError, match=r"part-000001.pt cannot be read: delete it"):
        stored(good())[4]


def test_chunks_are_bounded_in_rows_and_in_pairs(monkeypatch) -> None:
    monkeypatch.setattr(prepare, "_ROWS", 3)
    monkeypatch.setattr(prepare, "_PAIRS", 100)
    records = [Record(row, None, size) for row, size in enumerate([1, 1, 1, 9, 9, 5, 20, 1])]
    chunks = [[record.size for record in chunk] for chunk in prepare._chunks(iter(records))]
    assert chunks == [[1, 1, 1], [9], [9], [5], [20], [1]]


def test_workers_write_the_same_parts(monkeypatch, here) -> None:
    monkeypatch.setattr(prepare, "_ROWS", 2)
    path = table(here / "a.csv", BAD + [(smiles, 1) for smiles in SMILES])
    contents = []
    for workers in (0, 2):
        (here / str(workers)).mkdir()
        monkeypatch.chdir(here / str(workers))
        folder = stored(path, workers).folder
        contents.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert contents[0] == contents[1]
    assert len(contents[0]) == 11


def esol(folder: Path, rows: int = 40, name: str = "moleculenet/esol.csv") -> Path:
    lines = [(SMILES[row % 8], row / 7) for row in range(rows)]
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return table(path, lines, "smiles,logSolubility")


def test_moleculenet_splits_rows_and_scales_by_the_training_part(here, capsys) -> None:
    path = esol(here)
    data = MoleculeNet("esol", str(here), batch_size=5, seed=1)
    data.setup("fit")
    parts = {part: set(store.rows.tolist()) for part, store in data.parts.items()}
    assert [len(parts[part]) for part in ("train", "val", "test")] == [32, 4, 4]
    assert set.union(*parts.values()) == set(range(40))
    targets = np.array(sorted(parts["train"])) / 7
    assert data.target_mean == pytest.approx(targets.mean(), rel=1e-6)
    assert data.target_std == pytest.approx(targets.std(), rel=1e-6)
    text = path.read_text().replace("CCO,0.0\n", "C1CC,0.0\n")
    path.write_text(text)
    again = MoleculeNet("esol", str(here), protocol="test", seed=2)
    again.setup("fit")
    assert "1 of 40 molecules of esol are skipped: 1 with an invalid SMILES (row 1)" in (
        capsys.readouterr().err
    )
    assert set(again.parts["train"].rows.tolist()) == parts["train"] - {0}
    assert set(again.parts["test"].rows.tolist()) == parts["test"] - {0}
    assert again.parts["val"] is again.parts["test"]


def test_moleculenet_reads_deepchems_own_columns(here) -> None:
    header = "Compound ID,measured log solubility in mols per litre,smiles"
    table(here / "delaney-processed.csv", [(f"c{row}", row, "CCO ") for row in range(10)], header)
    data = MoleculeNet("esol", str(here))
    assert data.target_mean == np.mean(data.stores["train"].rows)
    with pytest.raises(UserError, match=r"no moleculenet/SAMPL.csv in DATA_DIR .*download"):
        MoleculeNet("freesolv", str(here)).setup("fit")
    with pytest.raises(UserError, match=r"set DATA_DIR"):
        MoleculeNet.whereabouts("esol")


def test_too_few_molecules_to_split(here) -> None:
    esol(here, rows=5)
    with pytest.raises(UserError, match=r"esol has 5 molecules: too few .*no val"):
        MoleculeNet("esol", str(here)).setup("fit")


def test_invented_needs_no_files_and_makes_batches() -> None:
    data = Invented(count=20, batch_size=6)
    data.setup("fit")
    assert {part: len(store) for part, store in data.parts.items()} == {
        "train": 16,
        "val": 2,
        "test": 2,
    }
    batch = next(iter(data.train_dataloader()))
    assert batch.atoms.shape[0] == len(batch.y) == 6
    assert batch.mask.sum() == (batch.atoms > 0).sum()
    assert (data.target_mean, data.target_std) == (0.0, 1.0)
    assert data.parts["train"].targets.std() > 0.3
    other = Invented(count=20, seed=5)
    other.setup("test")
    assert other.parts["test"].rows.tolist() == data.parts["test"].rows.tolist()
    assert len(list(CACHE.glob("invented-*/summary.json"))) == 1
    assert json.loads(next(CACHE.glob("invented-*/summary.json")).read_text())["rows"] == 20


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": "zinc"}, "data.name must be one of invented, got 'zinc'"),
        ({"protocol": "best"}, "data.protocol must be validation or test, got 'best'"),
        ({"fidelity": "exact"}, "data.fidelity must be right or released, got 'exact'"),
        ({"batch_size": 0}, "data.batch_size must be at least 1, got 0"),
        ({"max_nodes": 0}, "data.max_nodes must be at least 1, got 0"),
        ({"max_nodes": 20000}, "data.max_nodes must be at most 16383, got 20000"),
        ({"workers": -1}, "data.workers must be at least 0, got -1"),
        ({"num_workers": -1}, "data.num_workers must be at least 0, got -1"),
        ({"count": 9}, "data.count must be at least 10, got 9"),
    ],
)
def test_bad_arguments_get_a_sentence(arguments, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        Invented(**arguments)
