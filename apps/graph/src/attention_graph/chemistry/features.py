"""Molecules as graphs of ids: the features of the Open Graph Benchmark, and those of ZINC.

https://github.com/snap-stanford/ogb, https://arxiv.org/abs/2003.00982
"""

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from experiment_kit.errors import UserError
from torch_geometric.data import Data

from attention_graph.encodings.batch import ID_OFFSET

if TYPE_CHECKING:
    from rdkit.Chem import Atom, Bond, Mol

OGB_ATOM_ROWS, OGB_BOND_ROWS = 9 * ID_OFFSET + 1, 3 * ID_OFFSET + 1
ZINC_ROWS = 64  # rows for atoms, and for bonds
ZINC_ATOMS = (
    "C", "O", "N", "F", "C H1", "S", "Cl", "O -", "N H1 +", "Br", "N H3 +", "N H2 +", "N +", "N -",
    "S -", "I", "P", "O H1 +", "N H1 -", "O +", "S +", "P H1", "P H2", "C H2 -", "P +", "S H1 +",
    "C H1 -", "P H1 +",
)  # fmt: skip
_ZINC_CODES = {name: code for code, name in enumerate(ZINC_ATOMS)}

_SMILES = re.compile(r"[!-~]*([ \t].*)?")  # RDKit drops other characters at its ends, and lines

# From RDKit's numbers to those of OGB's vocabularies. Hybridization: none, S, SP, SP2, SP3, SP2D,
# SP3D, SP3D2, other; of these OGB has SP, SP2, SP3, SP3D, SP3D2, and 5 for others.
_HYBRIDIZATION = (5, 5, 0, 1, 2, 5, 3, 4, 5)
# single, double, triple, aromatic; 4 for others
_BOND_TYPE = {1: 0, 2: 1, 3: 2, 12: 3}
# none, any, Z, E, cis, trans become none, Z, E, cis, trans, any; axial ones are any
_STEREO = (0, 5, 1, 2, 3, 4, 5, 5)


class UnusableMolecule(UserError):
    """A molecule that gives no graph; `reason` groups it with others in the summary."""

    # without a reason: a worker of a loader passes the message alone
    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


def parse_smiles(smiles: str) -> "Mol":
    """Parse a SMILES string, without RDKit's own lines on standard error."""
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(smiles)
    if mol is None or not _SMILES.fullmatch(smiles):
        raise UnusableMolecule(f"{smiles[:80]!r} is not a valid SMILES", "an invalid SMILES")
    return mol


def featurize_ogb(smiles: str) -> Data:
    """Make the graph of a molecule with OGB's 9 features of an atom and 3 of a bond.

    Atom: atomic number, chirality, degree, formal charge, hydrogens, radical electrons,
    hybridization, aromatic, in a ring. Bond: type, stereo, conjugated. Value v of column f is id
    1 + v + 512 f of an atom, 2 + v + 512 f of a bond, where 1 is "no bond" and 0 padding.

    Returns x (N, 9), edge_index (2, E) with each bond in both directions, edge_attr (E, 3).

    Source: https://github.com/snap-stanford/ogb/blob/master/ogb/utils/features.py

    >>> graph = featurize_ogb("Cl[C@H](/C=C/C)Br")
    >>> (graph.x[1] - 1 - 512 * torch.arange(9)).tolist()
    [5, 2, 4, 5, 1, 0, 2, 0, 0]
    >>> (graph.edge_attr[4] - 2 - 512 * torch.arange(3)).tolist()
    [1, 2, 0]
    """
    mol = parse_smiles(smiles)
    atoms = np.array([_atom_features(atom) for atom in mol.GetAtoms()], np.int64).reshape(-1, 9)
    bonds = np.array([_bond_features(bond) for bond in mol.GetBonds()], np.int64).reshape(-1, 5)
    atoms += 1 + ID_OFFSET * np.arange(9)
    return _build_graph(atoms, bonds[:, :2], bonds[:, 2:] + 2 + ID_OFFSET * np.arange(3))


def _atom_features(atom: "Atom") -> tuple[int, ...]:
    number, charge = atom.GetAtomicNum(), atom.GetFormalCharge()
    return (
        number - 1 if 1 <= number <= 118 else 118,
        min(int(atom.GetChiralTag()), 4),
        min(atom.GetTotalDegree(), 11),
        charge + 5 if abs(charge) <= 5 else 11,
        min(atom.GetTotalNumHs(), 9),
        min(atom.GetNumRadicalElectrons(), 5),
        _HYBRIDIZATION[int(atom.GetHybridization())],
        atom.GetIsAromatic(),
        atom.IsInRing(),
    )


def _bond_features(bond: "Bond") -> tuple[int, ...]:
    return (
        bond.GetBeginAtomIdx(),
        bond.GetEndAtomIdx(),
        _BOND_TYPE.get(int(bond.GetBondType()), 4),
        _STEREO[int(bond.GetStereo())],
        bond.GetIsConjugated(),
    )


def featurize_zinc(smiles: str) -> Data:
    """Make the graph of a molecule with ZINC's one feature of an atom and of a bond.

    The type of an atom is its element, the hydrogens that are written with it, and its charge;
    that of a bond is its order, 1 to 3, after rings are kekulized. The id is 1 + type for both.

    Raises UnusableMolecule for an invalid SMILES, and for a type that ZINC does not have.

    >>> graph = featurize_zinc("C[NH3+]")
    >>> graph.x.tolist(), graph.edge_attr.tolist()
    ([[1], [11]], [[2], [2]])
    """
    from rdkit import Chem

    mol = parse_smiles(smiles)
    Chem.Kekulize(mol, clearAromaticFlags=True)
    types = [_zinc_atom_type(atom) for atom in mol.GetAtoms()]
    if foreign := sorted(set(types) - set(_ZINC_CODES)):
        text = f"{smiles[:80]!r} has atoms of type {', '.join(foreign)}"
        text = f"{text}; ZINC has {', '.join(ZINC_ATOMS)}"
        raise UnusableMolecule(text, "atoms that ZINC does not have")
    bonds = [
        (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), int(bond.GetBondType()))
        for bond in mol.GetBonds()
    ]
    codes = np.array([_ZINC_CODES[name] for name in types])
    return build_zinc_graph(codes, np.array(bonds, np.int64))


def _zinc_atom_type(atom: "Atom") -> str:
    hydrogens, charge = atom.GetNumExplicitHs(), atom.GetFormalCharge()
    name = atom.GetSymbol() + (f" H{hydrogens}" if hydrogens else "")
    return f"{name} {charge:+d}".removesuffix("1") if charge else name


def build_zinc_graph(atoms: np.ndarray, bonds: np.ndarray) -> Data:
    """Build the graph of atom types (N,) and bonds (M, 3): begin, end, type 1 to 3.

    Raises UnusableMolecule for a type that ZINC does not have.
    """
    atoms, bonds = np.asarray(atoms, np.int64), np.asarray(bonds, np.int64).reshape(-1, 3)
    if not (np.isin(atoms, range(28)).all() and np.isin(bonds[:, 2], (1, 2, 3)).all()):
        text = "a molecule of ZINC has atoms of type 0 to 27 and bonds of type 1 to 3"
        raise UnusableMolecule(text, "atoms or bonds that ZINC does not have")
    return _build_graph(atoms[:, None] + 1, bonds[:, :2], bonds[:, 2:] + 1)


def _build_graph(atoms: np.ndarray, ends: np.ndarray, bonds: np.ndarray) -> Data:
    both = np.stack([ends, ends[:, ::-1]], axis=1).reshape(-1, 2)  # each bond, then its reverse
    tensors: dict[str, Any] = {
        "x": torch.from_numpy(atoms),
        "edge_index": torch.from_numpy(np.ascontiguousarray(both.T)),
        "edge_attr": torch.from_numpy(np.repeat(bonds, 2, axis=0)),
    }
    return Data(**tensors)
