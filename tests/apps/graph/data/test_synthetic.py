"""Synthetic molecules as a data set, and the arguments that all graph data sets share."""

import json

import pytest
from attention_graph.data import SyntheticMolecules
from attention_graph.data.graph_cache import CACHE

from tests.apps.graph.data.files import load_splits


def test_synthetic_molecules_need_no_files_and_make_batches() -> None:
    data = SyntheticMolecules(count=20, batch_size=6)
    load_splits(data)
    sizes = {split: len(store) for split, store in data.splits.items()}
    assert sizes == {"train": 16, "val": 2, "test": 2}
    batch = next(iter(data.train_dataloader()))
    assert batch.atoms.shape[0] == len(batch.y) == 6
    assert batch.mask.sum() == (batch.atoms > 0).sum()
    assert (data.target_mean, data.target_std) == (0.0, 1.0)
    assert data.splits["train"].targets.std() > 0.3
    other = SyntheticMolecules(count=20, seed=5)
    other.setup("test")
    assert other.splits["test"].rows.tolist() == data.splits["test"].rows.tolist()
    assert len(list(CACHE.glob("synthetic-*/summary.json"))) == 1
    assert json.loads(next(CACHE.glob("synthetic-*/summary.json")).read_text())["rows"] == 20


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"dataset_name": "zinc"}, "data.dataset_name must be one of synthetic, got 'zinc'"),
        ({"protocol": "best"}, "data.protocol must be one of validation, test, got 'best'"),
        ({"variant": "exact"}, "data.variant must be one of corrected, upstream, got 'exact'"),
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
        SyntheticMolecules(**arguments)
