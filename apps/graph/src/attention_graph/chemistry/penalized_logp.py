"""Penalized logP, the target of ZINC: lipophilicity minus terms for synthesis and large rings.

https://arxiv.org/abs/1703.01925
"""

from typing import TYPE_CHECKING

import torch
from torch_geometric.data import Data

from attention_graph.chemistry.features import featurize_zinc, parse_smiles

if TYPE_CHECKING:
    from rdkit.Chem import Mol

# mean and standard deviation of logP, of -SA and of the cycle term, over the 220,010 training
# molecules of ZINC-full by RDKit; the targets of the first official validation and test molecules
# are 2.0992 and 3.1382 in benchmarking-gnns, 2.1004 and 3.1394 with these constants
_SCALES = (
    (2.457797154544786, 1.4334208164594726),
    (-3.053559326512733, 0.8346818479274135),
    (-0.04888414162992591, 0.2890770218339477),
)


def compute_penalized_logp(smiles: str) -> float:
    """Compute the target of a molecule in ZINC's regression task.

    y = (logP - m_1) / s_1 + (-SA - m_2) / s_2 + (-max(0, c - 6) - m_3) / s_3

    with Crippen's logP, the synthetic accessibility SA from 1 to 10, and c the atoms of the
    longest cycle in networkx's basis. Raises UnusableMolecule for an invalid SMILES.

    Source: https://arxiv.org/abs/1703.01925, section 5

    >>> round(compute_penalized_logp("CC(C)(C)c1ccc2occ(CC(=O)Nc3ccccc3F)c2c1"), 4)
    3.1394
    """
    from rdkit.Chem.rdMolDescriptors import CalcCrippenDescriptors
    from rdkit.Contrib.SA_Score import sascorer

    mol = parse_smiles(smiles)
    if not mol.GetNumAtoms():
        return float("nan")
    logp, accessibility = CalcCrippenDescriptors(mol)[0], sascorer.calculateScore(mol)
    terms = (logp, -accessibility, -max(0, longest_cycle(mol) - 6))
    return sum((term - mean) / std for term, (mean, std) in zip(terms, _SCALES, strict=True))


def longest_cycle(mol: "Mol") -> int:
    """Count the atoms of the longest cycle in networkx's basis; rings may exceed RDKit's."""
    import networkx  # type: ignore[import-untyped]

    ends = [sorted((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())) for bond in mol.GetBonds()]
    graph = networkx.Graph()
    # the basis depends on the order; the targets were made in that of the adjacency matrix
    graph.add_nodes_from(range(mol.GetNumAtoms()))
    graph.add_edges_from(sorted([*ends, *([b, a] for a, b in ends)]))
    return max(map(len, networkx.cycle_basis(graph)), default=0)


def featurize_with_target(smiles: str) -> Data:
    """Make the graph of a molecule with ZINC's features, and its penalized logP as y (1,)."""
    graph = featurize_zinc(smiles)
    graph.y = torch.tensor([compute_penalized_logp(smiles)], dtype=torch.float32)
    return graph
