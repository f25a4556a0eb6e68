"""Synthetic molecules, which need no file: ZINC's features and ZINC's target."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiment_kit.data.datamodule import check_at_least
from torch.utils.data import Dataset

from attention_graph.chemistry.features import ZINC_ROWS, featurize_zinc
from attention_graph.chemistry.penalized_logp import featurize_with_target
from attention_graph.chemistry.synthetic import LINKERS, RINGS, SUBSTITUENTS, generate_molecules
from attention_graph.data.base import GraphData
from attention_graph.data.graph_cache import CACHE, MoleculeSource, Record
from attention_graph.data.graph_store import split_by_tenths

_SEED = 0  # draws the same molecules for every run


class SyntheticMolecules(GraphData):
    """Molecules assembled from fragments, and their penalized logP; no result is worth reporting.

    80 % are for training, 10 % for validation and 10 % for testing, the same for every run.

    Args:
        count: Number of molecules.
    """

    DATASETS = ("synthetic",)
    IS_GENERATED = True
    atom_rows = bond_rows = ZINC_ROWS
    featurize = staticmethod(featurize_zinc)

    def __init__(self, dataset_name: str = "synthetic", count: int = 3000, **kwargs: Any) -> None:
        check_at_least(10, count=count)
        super().__init__(dataset_name, **kwargs)
        self.count = count

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Return the folder of the cache; the molecules are generated on first use."""
        return CACHE

    def read_splits(self) -> Mapping[str, Dataset[Any]]:
        """Generate the molecules, or open those of the cache."""

        def generate_records() -> Iterator[Record]:
            for row, smiles in enumerate(generate_molecules(self.count, _SEED)):
                yield Record(row, smiles, len(smiles))

        options = {"count": self.count, "seed": _SEED, "of": [RINGS, LINKERS, SUBSTITUENTS]}
        name, featurize = self.dataset_name, featurize_with_target
        source = MoleculeSource(name, (), generate_records, featurize, options, self.count)
        return split_by_tenths(self.open_store(source), ("val", "test"))
