"""Encoded molecules on disk: skipped ones, workers, killed workers."""

import os
import pickle
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from attention_graph.chemistry.features import featurize_ogb
from attention_graph.data import graph_cache
from attention_graph.data.graph_cache import CACHE, EncodingOptions, MoleculeSource, Record
from attention_graph.data.graph_store import GraphStore
from attention_graph.data.smiles_files import featurize_row, read_csv_rows
from attention_graph.encodings.paths import ShortestPaths
from experiment_kit.errors import UserError
from torch.utils.data import DataLoader

from tests.apps.graph.data.files import SMILES, write_table

pytestmark = pytest.mark.usefixtures("workdir")

CHAIN = "C" * 600


def source(path: Path, make=featurize_row) -> MoleculeSource:
    return MoleculeSource("tiny", (path,), partial(read_csv_rows, path, ("smiles",), ("y",)), make)


def write_smiles(path: Path = Path("a.csv")) -> Path:
    return write_table(path, [(smiles, 0.5 * row) for row, smiles in enumerate(SMILES)])


def encode(path: Path, workers: int = 0, **options) -> GraphStore:
    return GraphStore(graph_cache.encode_source(source(path), EncodingOptions(**options), workers))


@pytest.mark.parametrize("variant", ["corrected", "upstream"])
def test_graphs_come_back_as_they_were(variant) -> None:
    store = encode(write_smiles(), variant=variant)
    assert len(store) == len(SMILES)
    assert store.describe_skipped() == ""
    for row, smiles in enumerate(SMILES):
        graph = ShortestPaths(variant)(featurize_ogb(smiles))
        assert set(store[row].keys()) == {*graph.keys(), "y", "row"}
        assert store[row].y.item() == 0.5 * row
        for name in graph.keys():  # noqa: SIM118 -- a Data is no mapping
            assert store[row][name].dtype == graph[name].dtype
            torch.testing.assert_close(store[row][name], graph[name], rtol=0, atol=0)
            assert store[row][name].is_contiguous()


def test_a_store_travels_to_workers() -> None:
    store = encode(write_smiles())
    assert pickle.loads(pickle.dumps(store))[1].x.tolist() == store[1].x.tolist()
    loader = DataLoader(store, 3, num_workers=1, collate_fn=lambda graphs: [g.row for g in graphs])
    assert [int(row) for rows in loader for row in rows] == list(range(len(SMILES)))


BAD = [("CCO", 1), ("C1CC", 2), ("CC", "nan"), ("CN", ""), ("", 3), (CHAIN, 4), ("x", 5), ("O", 6),
       ("C", "inf"), ("c1cc", 7), ("C(", 8)]  # fmt: skip


def test_bad_rows_are_skipped_counted_and_named() -> None:
    store = encode(write_table(Path("a.csv"), BAD))
    assert store.rows.tolist() == [0, 7]
    assert store.targets.tolist() == [1, 6]
    assert store.describe_skipped() == (
        "note: 9 of 11 molecules of tiny are skipped:"
        " 4 with an invalid SMILES (rows 2, 7, 10, ...), 3 with no finite target (rows 3, 4, 9),"
        " 1 with no atoms (row 5), 1 with more than 512 atoms (row 6)"
    )


def test_a_source_without_a_usable_molecule_is_refused() -> None:
    sentence = r"tiny has no molecule .* in a.csv: 1 with an invalid SMILES \(row 1\), 1 with no"
    with pytest.raises(UserError, match=sentence):
        encode(write_table(Path("a.csv"), [("C1CC", 2), ("CC", "")]))


def test_content_and_options_decide_where_the_cache_is(monkeypatch) -> None:
    first = encode(write_smiles()).folder
    assert first.parent == CACHE
    with patch.object(graph_cache, "encode_graphs", None):  # nothing is encoded again
        assert encode(write_smiles(Path("other.csv"))).folder == first
    assert encode(write_smiles(), max_nodes=9).folder != first
    assert encode(write_smiles(), variant="upstream").folder != first
    assert encode(write_table(Path("a.csv"), [("CC", 1)])).folder != first
    monkeypatch.setattr(graph_cache, "VERSION", -1)
    assert encode(write_smiles()).folder != first


def test_workers_write_the_same_chunks(monkeypatch, workdir) -> None:
    monkeypatch.setattr(graph_cache, "_MAX_ROWS", 2)
    path = write_table(workdir / "a.csv", BAD + [(smiles, 1) for smiles in SMILES])
    contents = []
    for workers in (0, 2):
        (workdir / str(workers)).mkdir()
        monkeypatch.chdir(workdir / str(workers))
        folder = encode(path, workers).folder
        contents.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert contents[0] == contents[1]
    assert len(contents[0]) == 13


def test_a_killed_worker_is_reported() -> None:
    exits = MoleculeSource("tiny", (), lambda: iter([Record(0, 1, 1)]), os._exit)
    killed = "a worker that encodes graphs was killed, .*: run again with fewer data.workers"
    with pytest.raises(UserError, match=killed):
        graph_cache.encode_source(exits, EncodingOptions(), workers=1)
