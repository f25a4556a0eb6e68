"""Synthetic molecules: fragments, joined at atoms that a star marks.

*c1ccc(*)cc1  +  *C(=O)N*  +  *C1CC1     a ring, a linker, a substituent
*c1ccc(cc1)C(=O)NC1CC1                   the remaining star gets a substituent or H
"""

import random
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from attention_graph.chemistry.features import UnusableMolecule, featurize_zinc

if TYPE_CHECKING:
    from rdkit.Chem import Mol

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
MIN_ATOMS, MAX_ATOMS = 10, 38  # without hydrogens
_MEAN_ATOMS, _STD_ATOMS = 16.5, 4.5  # a molecule stops growing at about this size
_HYDROGEN_PROBABILITY = 0.3  # the chance that no substituent replaces a star
_MARK = 1  # the atom map number of the two stars that are joined
_TRIES = 50  # draws for each molecule that is asked for


class _Fragment(NamedTuple):
    """A molecule with one star marked; True if the neighbor of that star is a carbon."""

    mol: "Mol"
    at_carbon: bool


def generate_molecules(count: int, seed: int = 0) -> list[str]:
    """Generate canonical SMILES of distinct, connected molecules of ZINC's size and atom types.

    A ring grows by linkers and rings in turn, up to a random size, and substituents replace the
    remaining stars; a new bond has a carbon at one end at least. The first molecules are the same
    for any `count`.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    rng, found = random.Random(seed), dict[str, None]()
    for _ in range(_TRIES * count):
        smiles = _canonicalize(_grow_molecule(rng))
        if smiles is not None:
            found[smiles] = None
        if len(found) == count:
            return list(found)
    raise ValueError(f"count must be at most {len(found)}, the molecules found, got {count}")


def _grow_molecule(rng: random.Random) -> "Mol":
    """Join fragments to a ring until no star is left."""
    from rdkit import Chem

    mol = Chem.MolFromSmiles(rng.choice(RINGS))
    size = rng.gauss(_MEAN_ATOMS, _STD_ATOMS)
    kind: tuple[str, ...] = LINKERS
    while _find_stars(mol) and mol.GetNumHeavyAtoms() < size:
        mol = _join_fragment(mol, rng.choice(_find_stars(mol)), rng, kind)
        kind = RINGS if kind is LINKERS else LINKERS
    while stars := _find_stars(mol):
        if rng.random() < _HYDROGEN_PROBABILITY:
            mol.GetAtomWithIdx(stars[0]).SetAtomicNum(1)
        else:
            mol = _join_fragment(mol, stars[0], rng, SUBSTITUENTS)
    return mol


def _join_fragment(mol: "Mol", star: int, rng: random.Random, kind: tuple[str, ...]) -> "Mol":
    from rdkit import Chem

    atom = mol.GetAtomWithIdx(star)
    at_carbon = atom.GetNeighbors()[0].GetAtomicNum() == 6
    fitting = [f for f in _list_fragments(kind) if at_carbon or f.at_carbon]
    atom.SetAtomMapNum(_MARK)
    return Chem.molzip(mol, rng.choice(fitting).mol)


def _find_stars(mol: "Mol") -> list[int]:
    return [atom.GetIdx() for atom in mol.GetAtoms() if not atom.GetAtomicNum()]


@cache
def _list_fragments(kind: tuple[str, ...]) -> list[_Fragment]:
    """List each fragment once for each of its stars."""
    from rdkit import Chem

    fragments = []
    for smiles in kind:
        for star in _find_stars(Chem.MolFromSmiles(smiles)):
            mol = Chem.MolFromSmiles(smiles)
            atom = mol.GetAtomWithIdx(star)
            atom.SetAtomMapNum(_MARK)
            fragments.append(_Fragment(mol, atom.GetNeighbors()[0].GetAtomicNum() == 6))
    return fragments


def _canonicalize(mol: "Mol") -> str | None:
    """Return the canonical SMILES; None if the molecule is not of ZINC's size and types."""
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        parsed = Chem.MolFromSmiles(Chem.MolToSmiles(mol))
    if parsed is None or not MIN_ATOMS <= parsed.GetNumAtoms() <= MAX_ATOMS:
        return None
    smiles = Chem.MolToSmiles(parsed)
    try:
        featurize_zinc(smiles)
    except UnusableMolecule:
        return None
    return smiles
