"""The data module of all graph data sets: encoded graphs in three splits."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from attention_core.checks import check_ints
from experiment_kit.data.csv_files import read_text_lines
from experiment_kit.data.datamodule import SplitDataModule, check_one_of
from experiment_kit.errors import UserError
from torch.utils.data import Dataset
from torch_geometric.data import Data

from attention_graph.chemistry.features import featurize_ogb
from attention_graph.data.graph_cache import EncodingOptions, MoleculeSource, encode_source
from attention_graph.data.graph_store import GraphStore, UnpackedGraphs, encode_graphs
from attention_graph.encodings.batch import collate_graphs
from attention_graph.encodings.paths import MAX_NODES, Variant

SUBFOLDERS = ("", "graph/")  # below DATA_DIR


class GraphData(SplitDataModule):
    """Molecules as graphs with their shortest paths, and one target for each.

    They are encoded once, into `runs/data/graph`. Unusable molecules are left out and counted on
    standard error: an invalid SMILES, a missing target, no atoms or too many. A batch is an
    `encodings.batch.Batch`. The sizes of the model's tables and the scale of the targets,
    `LINKED_SIZES`, `target_mean` and `target_std`, are linked to the model.

    Args:
        variant: Shortest paths: `corrected`, or `upstream` with the quirks of Graphormer's code.
        max_nodes: Atoms above which a molecule is left out.
        workers: Processes that encode; 0 is this one.
    """

    LINKED_SIZES = ("atom_rows", "bond_rows")
    atom_rows: int
    bond_rows: int
    target_mean: float = 0.0
    target_std: float = 1.0
    featurize: Callable[[str], Data] = staticmethod(featurize_ogb)
    collate = staticmethod(collate_graphs)

    def __init__(
        self,
        dataset_name: str,
        batch_size: int = 256,
        variant: Variant = "corrected",
        max_nodes: int = 512,
        workers: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset_name, batch_size=batch_size, **kwargs)
        check_one_of("variant", variant, get_args(Variant))
        check_ints("data", 1, MAX_NODES, max_nodes=max_nodes)
        check_ints("data", 0, 256, workers=workers)
        self.encoding, self.workers = EncodingOptions(variant, max_nodes), workers

    def read_splits(self) -> Mapping[str, Dataset[Any]]:
        """Read train, val and test; raises UserError for wrong files."""
        raise NotImplementedError

    def load_splits(self, split: str) -> dict[str, Any]:
        """Load all splits at once; protocol `test` takes the test split for validation."""
        splits = dict(self.read_splits())
        if self.protocol == "test":
            splits["val"] = splits["test"]
        return splits

    def list_targets(self, batch: Any) -> list[float]:
        """Return the target of each graph."""
        return batch.y.tolist()

    def read_files(self, files: Sequence[Path]) -> tuple[list[str], list[Data]]:
        """Read a molecule from each line that is not blank, a SMILES up to the first space."""
        rows = [(p, *x) for p in files for x in enumerate(read_text_lines(p), 1) if x[1].strip()]
        if not rows:
            raise UserError(f"{files[0]} has no SMILES")
        names = [line.split()[0] for *_, line in rows]
        packed = encode_graphs(enumerate(names), self._featurize_unlabeled, *self.encoding)
        for number, reason in packed["skipped"]:
            path, line, _ = rows[number]
            hint = ": write one in a line, without header or target" * ("SMILES" in reason)
            raise UserError(f"{path}, line {line}: {names[number]!r:.60} has {reason}{hint}")
        graphs = UnpackedGraphs(packed)
        return names, [graphs[number] for number in range(len(names))]

    def _featurize_unlabeled(self, smiles: str) -> Data:
        graph = self.featurize(smiles)
        graph.y = torch.zeros(1)
        return graph

    def open_store(self, source: MoleculeSource) -> GraphStore:
        """Open the graphs of a source, encoded now if they were not before."""
        store = GraphStore(encode_source(source, self.encoding, self.workers))
        if note := store.describe_skipped():
            print(note, file=sys.stderr)
        return store
