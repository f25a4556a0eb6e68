"""Files of the data sets with a few molecules, in every layout that is published."""

import gzip
import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attention_graph.chemistry.features import ZINC_ATOMS, featurize_zinc

SMILES = ["CCO", "c1ccccc1", "CC(=O)O.N", "C#N", "CCCCC", "C1CC1", "O=C=O", "CS", "CF", "CCl", "N"]
SPLITS = ("train", "val", "test")
PCQM_SPLIT = {"train": [0, 1, 3, 5, 6], "valid": [2, 7], "test-dev": [8], "test-challenge": [9]}


def load_splits(data: Any) -> dict[str, Any]:
    data.setup("fit")
    data.setup("test")
    return data.splits


def write_table(path: Path, rows: Iterable[Sequence[Any]], header: str = "smiles,y") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def zinc_arrays(smiles: str) -> tuple[np.ndarray, np.ndarray]:
    """Atom types, and bonds as begin, end, type."""
    graph = featurize_zinc(smiles)
    bonds = torch.cat([graph.edge_index.T, graph.edge_attr - 1], 1)[::2]
    return (graph.x[:, 0] - 1).numpy(), bonds.numpy()


def dense_molecule(smiles: str, target: float) -> dict[str, Any]:
    """A molecule of benchmarking-gnns."""
    atoms, bonds = zinc_arrays(smiles)
    matrix = torch.zeros(len(atoms), len(atoms), dtype=torch.int64)
    for begin, end, kind in bonds.tolist():
        matrix[begin, end] = matrix[end, begin] = kind
    return {
        "num_atom": len(atoms),
        "atom_type": torch.from_numpy(atoms),
        "bond_type": matrix,
        "logP_SA_cycle_normalized": torch.tensor([target]),
    }


def write_zinc_pickles(folder: Path) -> None:
    folder.mkdir(parents=True)
    for shift, split in enumerate(SPLITS):
        molecules = [dense_molecule(smiles, row + shift) for row, smiles in enumerate(SMILES)]
        molecules[0]["bond_type"] = molecules[0]["bond_type"].tril()
        molecules.append(molecules[-1] | {"atom_type": torch.tensor([256])})  # no atom of ZINC
        (folder / f"{split}.pickle").write_bytes(pickle.dumps(molecules, 2 + shift))
        (folder / f"{split}.index").write_text(f"\ufeff{4 + shift},0,{7 + shift}\n")


def write_zinc_arrays(path: Path, **changed: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"atom_types": np.array(ZINC_ATOMS)}
    atoms, bonds = zip(*map(zinc_arrays, SMILES), strict=True)
    sizes = {"n": list(map(len, atoms)), "m": list(map(len, bonds))}
    arrays = {"atom": np.concatenate(atoms), "bond": np.concatenate(bonds), **sizes}
    for split in SPLITS:
        columns |= {f"{split}_{name}": np.uint8(array) for name, array in arrays.items()}
        columns[f"{split}_y"] = np.arange(len(SMILES), dtype=np.float32)
    np.savez(path, **columns | changed)


def write_pcqm(folder: Path, split: dict[str, list[Any]], rows: int = 10) -> None:
    (folder / "raw").mkdir(parents=True)
    lines = [f"{row},{SMILES[row]},{row / 4 if row < 8 else ''}" for row in range(rows)]
    table = "\n".join(["idx,smiles,homolumogap", *lines]) + "\n"
    (folder / "raw/data.csv.gz").write_bytes(gzip.compress(table.encode()))
    arrays = {name: np.array(numbers) for name, numbers in split.items()}
    torch.save(arrays, folder / "split_dict.pt")
