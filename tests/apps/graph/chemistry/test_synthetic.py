"""Synthetic molecules: distinct, of ZINC's kind, and a function of the seed."""

from functools import cache

import pytest
from attention_graph.chemistry import featurize_zinc, generate_molecules, synthetic
from rdkit import Chem


@cache
def sixty_molecules() -> list[str]:
    return generate_molecules(60)


def test_synthetic_molecules_are_distinct_and_of_zincs_kind() -> None:
    read = [Chem.MolFromSmiles(smiles) for smiles in sixty_molecules()]
    assert [Chem.MolToSmiles(mol) for mol in read] == sixty_molecules()
    assert len(set(sixty_molecules())) == 60
    assert all(10 <= mol.GetNumHeavyAtoms() <= 38 for mol in read)
    assert all(len(Chem.GetMolFrags(mol)) == 1 for mol in read)
    assert all(atom.GetAtomicNum() > 1 for mol in read for atom in mol.GetAtoms())
    used = {
        name for smiles in sixty_molecules() for name in featurize_zinc(smiles).x.ravel().tolist()
    }
    assert len(used) > 8


def test_synthetic_molecules_follow_from_the_seed() -> None:
    assert generate_molecules(7) == sixty_molecules()[:7]
    assert not set(generate_molecules(7, seed=1)) & set(sixty_molecules())


def test_too_many_or_no_molecules_are_refused(monkeypatch) -> None:
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        generate_molecules(0)
    monkeypatch.setattr(
        synthetic, "_grow_molecule", lambda draw: Chem.MolFromSmiles("c1ccccc1CCCC")
    )
    with pytest.raises(ValueError, match=r"count must be at most 1, .* got 2"):
        generate_molecules(2)
