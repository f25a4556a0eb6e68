"""Molecules that the project makes by itself: fragments, joined where they are marked."""

import random
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from attention_graph.chemistry.features import UnusableMolecule, zinc_molecule

if TYPE_CHECKING:
    from rdkit.Chem import Mol

# A star is where a fragment may be joined to another one.
RINGS = (
    "*c1ccc(*)cc1", "*c1cccc(*)c1", "*c1ccccc1*", "*c1ccc(*)c(*)c1", "*c1cc(*)cc(*)c1",
    "*c1ccc(*)nc1", "*c1cncc(*)c1", "*c1cc(*)ncn1", "*c1ccc(*)s1", "*c1ccc(*)o1", "*c1csc(*)n1",
    "*c1cc(*)n(*)n1", "*n1cc(*)nn1", "*c1nnc(*)o1", "*c1noc(*)n1", "*c1cn(*)cn1",
    "*c1ccc2[nH]c(*)cc2c1", "*c1ccc2nc(*)sc2c1", "*c1nc(*)c2ccccc2n1", "*c1ccc2c(c1)OCC(*)O2",
    "*N1CCN(*)CC1", "*N1CCC(*)CC1", "*[NH+]1CCN(*)CC1", "*N1CCC[C@H]1*", "*N1CCC[C@@H]1*",
    "*N1CCOC(*)C1", "*C1CCN(*)C1=O", "*[C@H]1CCCN(*)C1", "*C1CCC(*)CC1", "*[C@@H]1C[C@H]1*",
    "*N1C(=O)C(*)NC1=O", "*C1CCCO1", "*N1CCCN(*)CC1", "*C1CCCCCC1*",
)  # fmt: skip
LINKERS = (
    "*C*", "*CC*", "*CCC*", "*C(=O)N*", "*C(=O)N*", "*C(=O)NC*", "*C(=O)N(*)C", "*C(=O)*", "*O*",
    "*OC*", "*S*", "*SC*", "*N*", "*NC*", "*S(=O)(=O)N*", "*S(=O)(=O)*", "*NC(=O)N*", "*C(=O)OC*",
    "*[C@H](C)*", "*[C@@H](C)*", "*[C@H](C)NC(*)=O", "*/C=C/*", "*C#C*", "*/C=N/N*", "*C[NH2+]C*",
    "*C[NH+](C)C*", "*C(*)*", "*N(*)*",
)  # fmt: skip
SUBSTITUENTS = (
    "*C", "*C", "*C", "*F", "*F", "*Cl", "*Br", "*O", "*OC", "*OC", "*OCC",
    "*N", "*N(C)C", "*C#N", "*C(F)(F)F", "*[N+](=O)[O-]", "*C(=O)[O-]", "*C[NH3+]", "*CC",
    "*C(C)C", "*C(C)(C)C", "*C1CC1", "*C(N)=O", "*S(C)(=O)=O", "*SC", "*c1ccccc1", "*c1ccncc1",
    "*c1cccs1", "*NC(C)=O",
)  # fmt: skip
SMALLEST, LARGEST = 10, 38  # atoms, without hydrogens
_TYPICAL, _SPREAD = 16.5, 4.5
_BARE = 0.3  # of what is open stays as it is, with a hydrogen
_MARK = 1  # the atom map number of the two stars that are joined
_TRIES = 50  # draws for each molecule that is asked for


class _Fragment(NamedTuple):
    """A molecule with one star marked, and whether its neighbour is a carbon."""

    mol: "Mol"
    carbon: bool


def invent(count: int, seed: int = 0) -> list[str]:
    """The canonical SMILES of distinct, connected molecules of ZINC's size and atom types.

    A ring grows by rings and linkers in turn, up to a size that is drawn, and substituents close
    what is still open; a new bond has a carbon at one end at least. The first molecules are the
    same for any `count`. Raises ValueError where `count` is not 1 or more, or more than there are.

    >>> invent(2) == invent(3)[:2]
    True
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    draw, found = random.Random(seed), dict[str, None]()
    for _ in range(_TRIES * count):
        smiles = _finished(_grown(draw))
        if smiles is not None:
            found[smiles] = None
        if len(found) == count:
            return list(found)
    raise ValueError(f"count must be at most {len(found)}, the molecules found, got {count}")


def _grown(draw: random.Random) -> "Mol":
    """A ring and what is joined to it, with no star left."""
    from rdkit import Chem

    mol = Chem.MolFromSmiles(draw.choice(RINGS))
    size = draw.gauss(_TYPICAL, _SPREAD)
    kind: tuple[str, ...] = LINKERS
    while _stars(mol) and mol.GetNumHeavyAtoms() < size:
        mol = _joined(mol, draw.choice(_stars(mol)), draw, kind)
        kind = RINGS if kind is LINKERS else LINKERS
    while stars := _stars(mol):
        if draw.random() < _BARE:
            mol.GetAtomWithIdx(stars[0]).SetAtomicNum(1)
        else:
            mol = _joined(mol, stars[0], draw, SUBSTITUENTS)
    return mol


def _joined(mol: "Mol", star: int, draw: random.Random, kind: tuple[str, ...]) -> "Mol":
    from rdkit import Chem

    atom = mol.GetAtomWithIdx(star)
    carbon = atom.GetNeighbors()[0].GetAtomicNum() == 6
    fitting = [fragment for fragment in _fragments(kind) if carbon or fragment.carbon]
    atom.SetAtomMapNum(_MARK)
    return Chem.molzip(mol, draw.choice(fitting).mol)


def _stars(mol: "Mol") -> list[int]:
    return [atom.GetIdx() for atom in mol.GetAtoms() if not atom.GetAtomicNum()]


@cache
def _fragments(kind: tuple[str, ...]) -> list[_Fragment]:
    """Each fragment once for each of its stars."""
    from rdkit import Chem

    made = []
    for smiles in kind:
        for star in _stars(Chem.MolFromSmiles(smiles)):
            mol = Chem.MolFromSmiles(smiles)
            atom = mol.GetAtomWithIdx(star)
            atom.SetAtomMapNum(_MARK)
            made.append(_Fragment(mol, atom.GetNeighbors()[0].GetAtomicNum() == 6))
    return made


def _finished(mol: "Mol") -> str | None:
    """The canonical SMILES; None for what is no molecule of ZINC's size and types."""
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        read = Chem.MolFromSmiles(Chem.MolToSmiles(mol))
    if read is None or not SMALLEST <= read.GetNumAtoms() <= LARGEST:
        return None
    smiles = Chem.MolToSmiles(read)
    try:
        zinc_molecule(smiles)
    except UnusableMolecule:
        return None
    return smiles
