"""Molecules as graphs of ids: the features of the Open Graph Benchmark, and those of ZINC.

https://github.com/snap-stanford/ogb, https://arxiv.org/abs/2003.00982
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from experiment_kit.errors import UserError
from torch_geometric.data import Data

from attention_graph.encodings import SHIFT

if TYPE_CHECKING:
    from rdkit.Chem import Atom, Bond, Mol

OGB_ATOM_ROWS, OGB_BOND_ROWS = 9 * SHIFT + 1, 3 * SHIFT + 1
ZINC_ROWS = 64  # of atoms and of bonds
ZINC_ATOMS = (
    "C", "O", "N", "F", "C H1", "S", "Cl", "O -", "N H1 +", "Br", "N H3 +", "N H2 +", "N +", "N -",
    "S -", "I", "P", "O H1 +", "N H1 -", "O +", "S +", "P H1", "P H2", "C H2 -", "P +", "S H1 +",
    "C H1 -", "P H1 +",
)  # fmt: skip
_CODES = {name: code for code, name in enumerate(ZINC_ATOMS)}

# What RDKit's numbers are in the vocabularies of OGB. Hybridisation: none, S, SP, SP2, SP3, SP2D,
# SP3D, SP3D2, other; of these OGB knows SP, SP2, SP3, SP3D, SP3D2, and 5 is another.
_HYBRIDISATION = (5, 5, 0, 1, 2, 5, 3, 4, 5)
# single, double, triple, aromatic; 4 is another
_BOND = {1: 0, 2: 1, 3: 2, 12: 3}
# none, any, Z, E, cis, trans become none, Z, E, cis, trans, any; axial ones are any
_STEREO = (0, 5, 1, 2, 3, 4, 5, 5)


class UnusableMolecule(UserError):
    """A molecule that gives no graph; `reason` is what others have in common with it."""

    # a loader's worker passes the sentence alone
    def __init__(self, sentence: str, reason: str = "") -> None:
        super().__init__(sentence)
        self.reason = reason


def parse(smiles: str) -> "Mol":
    """The molecule that a SMILES string spells, without RDKit's own lines on standard error.

    Raises UnusableMolecule where it spells none.

    >>> parse("CCO").GetNumAtoms()
    3
    """
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        found = Chem.MolFromSmiles(smiles)
    if found is None:
        raise UnusableMolecule(f"{smiles[:80]!r} is not a valid SMILES", "an invalid SMILES")
    return found


def molecule(smiles: str) -> Data:
    """A molecule with the 9 features of an atom and the 3 of a bond that OGB has.

    Atom: atomic number, chirality, degree, formal charge, hydrogens, radical electrons,
    hybridisation, aromatic, in a ring. Bond: type, stereo, conjugated. Value v of column f is id
    1 + v + 512 f of an atom, 2 + v + 512 f of a bond, where 1 is "no bond" and 0 padding.

    Returns x (N, 9), edge_index (2, E) with each bond in both directions, edge_attr (E, 3).
    Raises UnusableMolecule for an invalid SMILES.

    Source: https://github.com/snap-stanford/ogb/blob/master/ogb/utils/features.py

    >>> graph = molecule("Cl[C@H](/C=C/C)Br")
    >>> (graph.x[1] - 1 - 512 * torch.arange(9)).tolist()
    [5, 2, 4, 5, 1, 0, 2, 0, 0]
    >>> (graph.edge_attr[4] - 2 - 512 * torch.arange(3)).tolist()
    [1, 2, 0]
    """
    found = parse(smiles)
    atoms = np.array([_atom(atom) for atom in _atoms(found)], np.int64).reshape(-1, 9)
    bonds = np.array([_bond(bond) for bond in _bonds(found)], np.int64).reshape(-1, 5)
    atoms += 1 + SHIFT * np.arange(9)
    return _graph(atoms, bonds[:, :2], bonds[:, 2:] + 2 + SHIFT * np.arange(3))


def _atoms(found: "Mol") -> "Iterator[Atom]":
    # by number: RDKit's own sequences count themselves again at each step
    return map(found.GetAtomWithIdx, range(found.GetNumAtoms()))


def _bonds(found: "Mol") -> "Iterator[Bond]":
    return map(found.GetBondWithIdx, range(found.GetNumBonds()))


def _atom(atom: "Atom") -> tuple[int, ...]:
    number, charge = atom.GetAtomicNum(), atom.GetFormalCharge()
    return (
        number - 1 if 1 <= number <= 118 else 118,
        min(int(atom.GetChiralTag()), 4),
        min(atom.GetTotalDegree(), 11),
        charge + 5 if abs(charge) <= 5 else 11,
        min(atom.GetTotalNumHs(), 9),
        min(atom.GetNumRadicalElectrons(), 5),
        _HYBRIDISATION[int(atom.GetHybridization())],
        atom.GetIsAromatic(),
        atom.IsInRing(),
    )


def _bond(bond: "Bond") -> tuple[int, ...]:
    return (
        bond.GetBeginAtomIdx(),
        bond.GetEndAtomIdx(),
        _BOND.get(int(bond.GetBondType()), 4),
        _STEREO[int(bond.GetStereo())],
        bond.GetIsConjugated(),
    )


def zinc_molecule(smiles: str) -> Data:
    """A molecule with ZINC's one feature of an atom and of a bond.

    An atom's type is its element, the hydrogens that are written with it, and its charge; a
    bond's is its order, 1 to 3, after rings have been kekulised. The id is 1 + type for both.

    Raises UnusableMolecule for an invalid SMILES, and for a type that ZINC does not have.

    Source: https://arxiv.org/abs/2003.00982

    >>> graph = zinc_molecule("C[NH3+]")
    >>> graph.x.tolist(), graph.edge_attr.tolist()
    ([[1], [11]], [[2], [2]])
    """
    from rdkit import Chem

    found = parse(smiles)
    Chem.Kekulize(found, clearAromaticFlags=True)
    names = [_zinc_name(atom) for atom in _atoms(found)]
    if foreign := sorted(set(names) - set(_CODES)):
        text = f"{smiles[:80]!r} has atoms of type {', '.join(foreign)}"
        raise UnusableMolecule(f"{text}; ZINC has {', '.join(ZINC_ATOMS)}", "atoms ZINC has not")
    bonds = [
        (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), int(bond.GetBondType()))
        for bond in _bonds(found)
    ]
    return zinc_graph(np.array([_CODES[name] for name in names]), np.array(bonds, np.int64))


def _zinc_name(atom: "Atom") -> str:
    hydrogens, charge = atom.GetNumExplicitHs(), atom.GetFormalCharge()
    name = atom.GetSymbol() + (f" H{hydrogens}" if hydrogens else "")
    return f"{name} {charge:+d}".removesuffix("1") if charge else name


def zinc_graph(atoms: np.ndarray, bonds: np.ndarray) -> Data:
    """The graph of atom types (N,) and bonds (M, 3): begin, end, type 1 to 3.

    Raises UnusableMolecule for a type or an end that there is not, and for a bond given twice.

    >>> zinc_graph(np.array([0, 1]), np.array([[0, 1, 2]])).edge_index.tolist()
    [[0, 1], [1, 0]]
    """
    atoms, bonds = np.asarray(atoms, np.int64), np.asarray(bonds, np.int64).reshape(-1, 3)
    if not _within(atoms, 0, 27) or not _within(bonds[:, 2], 1, 3):
        text = "a molecule of ZINC has atoms of type 0 to 27 and bonds of type 1 to 3"
        raise UnusableMolecule(text, "atoms or bonds ZINC has not")
    if not _within(bonds[:, :2], 0, len(atoms) - 1):
        raise UnusableMolecule("a bond ends at an atom that is not there", "bonds to nowhere")
    ends = {(a, b) for a, b in bonds[:, :2].tolist()}
    if len(ends | {(b, a) for a, b in ends}) < 2 * len(bonds):
        raise UnusableMolecule("two atoms have two bonds, or one has itself", "bonds given twice")
    return _graph(atoms[:, None] + 1, bonds[:, :2], bonds[:, 2:] + 1)


def _within(values: np.ndarray, low: int, high: int) -> bool:
    return not len(values) or (low <= int(values.min()) and int(values.max()) <= high)


def _graph(atoms: np.ndarray, ends: np.ndarray, bonds: np.ndarray) -> Data:
    both = np.stack([ends, ends[:, ::-1]], axis=1).reshape(-1, 2)
    tensors: dict[str, Any] = {
        "x": torch.from_numpy(atoms),
        "edge_index": torch.from_numpy(np.ascontiguousarray(both.T)),
        "edge_attr": torch.from_numpy(np.repeat(bonds, 2, axis=0)),
    }
    return Data(**tensors)
