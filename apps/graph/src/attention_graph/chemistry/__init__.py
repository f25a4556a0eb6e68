"""What RDKit knows of molecules: their features, ZINC's target, and molecules of our own."""

from attention_graph.chemistry.features import UnusableMolecule, molecule, zinc_molecule
from attention_graph.chemistry.invent import invent
from attention_graph.chemistry.penalised import penalised_logp

__all__ = ["UnusableMolecule", "invent", "molecule", "penalised_logp", "zinc_molecule"]
