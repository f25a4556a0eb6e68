"""Features of molecules against the published vocabularies of OGB and ZINC."""

from functools import cache

import pytest
import torch
from attention_graph.chemistry import (
    UnusableMolecule,
    compute_penalized_logp,
    featurize_ogb,
    featurize_zinc,
    generate_molecules,
)
from attention_graph.chemistry.features import OGB_ATOM_ROWS, OGB_BOND_ROWS, ZINC_ATOMS, ZINC_ROWS
from hypothesis import given, settings
from hypothesis import strategies as st
from rdkit import Chem

# The vocabularies of https://github.com/snap-stanford/ogb/blob/master/ogb/utils/features.py; what
# is in none of them has the last place
MISC = "misc"
ATOM = {
    "GetAtomicNum": [*range(1, 119), MISC],
    "GetChiralTag": [
        "CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER", MISC,
    ],
    "GetTotalDegree": [*range(11), MISC],
    "GetFormalCharge": [*range(-5, 6), MISC],
    "GetTotalNumHs": [*range(9), MISC],
    "GetNumRadicalElectrons": [*range(5), MISC],
    "GetHybridization": ["SP", "SP2", "SP3", "SP3D", "SP3D2", MISC],
    "GetIsAromatic": [False, True],
    "IsInRing": [False, True],
}  # fmt: skip
BOND = {
    "GetBondType": ["SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", MISC],
    "GetStereo": [
        "STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY",
    ],
    "GetIsConjugated": [False, True],
}  # fmt: skip

STRANGE = (
    "C/C=C/C(=O)[O-]", "C/C=C\\C#N", "[Na+].[Cl-]", "[CH3]", "[C]", "N[C@@H](C)C(=O)O",
    "F[S](F)(F)(F)(F)F", "FP(F)(F)(F)F", "[Fe+6]", "[NH4+]", "C[Si](C)(C)C", "c1ccc2[nH]ccc2c1",
    "[H][H]", "[Th]", "*C", "O=[N+]([O-])c1ccccc1", "C[Pt@SP1](F)(Cl)Br", "[CH2-][N+]#N", "N->[Pt]",
    "[Li]", "C$C",
)  # fmt: skip


def places(part, vocabularies) -> list[int]:
    values = [getattr(part, name)() for name in vocabularies]
    values = [value if isinstance(value, bool | int) and not hasattr(value, "name") else str(value)
              for value in values]  # fmt: skip
    return [
        words.index(value) if value in words else len(words) - 1
        for value, words in zip(values, vocabularies.values(), strict=True)
    ]


@pytest.mark.parametrize("smiles", [*STRANGE, *generate_molecules(5, seed=3)])
def test_ids_are_places_in_the_published_vocabularies(smiles) -> None:
    read, graph = Chem.MolFromSmiles(smiles), featurize_ogb(smiles)
    atoms = (graph.x - 1 - 512 * torch.arange(9)).tolist()
    bonds = (graph.edge_attr - 2 - 512 * torch.arange(3)).tolist()
    assert atoms == [places(atom, ATOM) for atom in read.GetAtoms()]
    assert bonds[::2] == bonds[1::2] == [places(bond, BOND) for bond in read.GetBonds()]


def test_zinc_types_are_the_official_ones() -> None:
    # row 10 of the official test part, as benchmarking-gnns orders its types
    graph = featurize_zinc("CC(C)(C)C(=O)N1CCC[NH+](C[C@H](O)COCc2ccccc2Cl)CC1")
    types = [0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 8, 0, 4, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0]
    assert (graph.x[:, 0] - 1).tolist() == types
    orders = [1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1]
    assert (graph.edge_attr[::2, 0] - 1).tolist() == orders
    assert graph.edge_index[:, 44:46].tolist() == [[22, 23], [23, 22]]
    assert len(ZINC_ATOMS) == len(set(ZINC_ATOMS)) == 28


@pytest.mark.parametrize(
    ("smiles", "named"),
    [("C[Si](C)(C)C", "type Si"), ("[Ca+2]", r"type Ca \+2;"), ("CB(O)O", "type B;")],
)
def test_what_zinc_has_not_is_named(smiles, named) -> None:
    with pytest.raises(UnusableMolecule, match=f"{named}.*ZINC has C, O, N"):
        featurize_zinc(smiles)


def test_bonds_zinc_has_not() -> None:
    with pytest.raises(UnusableMolecule, match="bonds of type 1 to 3"):
        featurize_zinc("C$C")


@pytest.mark.parametrize("make", [featurize_ogb, featurize_zinc, compute_penalized_logp])
@pytest.mark.parametrize("smiles", ["C1CC", "c1cccc1", "C(C)(C)(C)(C)C", "x", "C(C"])
def test_invalid_smiles_get_a_sentence_and_no_other_line(make, smiles, capfd) -> None:
    with pytest.raises(UnusableMolecule, match="is not a valid SMILES") as caught:
        make(smiles)
    assert caught.value.reason == "an invalid SMILES"
    assert capfd.readouterr().err == ""
    Chem.MolFromSmiles(smiles)
    assert capfd.readouterr().err, "RDKit must still tell others"


@pytest.mark.parametrize(("make", "columns"), [(featurize_ogb, (9, 3)), (featurize_zinc, (1, 1))])
def test_a_single_atom_and_molecules_apart(make, columns) -> None:
    atoms, bonds = columns
    single, apart = make("C"), make("CO.N")
    assert single.x.shape == (1, atoms)
    assert single.edge_index.shape == (2, 0)
    assert single.edge_attr.shape == (0, bonds)
    assert apart.edge_index.tolist() == [[0, 1], [1, 0]]
    assert len(apart.x) == 3
    assert {t.dtype for t in (apart.x, apart.edge_index, apart.edge_attr)} == {torch.int64}


@cache
def synthetic_molecules() -> list[str]:
    return generate_molecules(60)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 59), st.booleans())
def test_graphs_are_symmetric_and_their_ids_fit_the_tables(index, ogb) -> None:
    graph = (featurize_ogb if ogb else featurize_zinc)(synthetic_molecules()[index])
    rows = (OGB_ATOM_ROWS, OGB_BOND_ROWS) if ogb else (ZINC_ROWS, ZINC_ROWS)
    assert 1 <= graph.x.min() <= graph.x.max() < rows[0]
    assert 2 <= graph.edge_attr.min() <= graph.edge_attr.max() < rows[1]
    there = dict(
        zip(map(tuple, graph.edge_index.T.tolist()), graph.edge_attr.tolist(), strict=True)
    )
    assert len(there) == graph.edge_index.shape[1]
    assert all(there[b, a] == ids and a != b for (a, b), ids in there.items())
