"""Data sets of molecules: ZINC, PCQM4M, MoleculeNet, and synthetic ones."""

from attention_graph.data.base import GraphData
from attention_graph.data.csv_molecules import MoleculeNet, SmilesCSV
from attention_graph.data.pcqm import PCQM
from attention_graph.data.synthetic import SyntheticMolecules
from attention_graph.data.zinc import Zinc

__all__ = ["PCQM", "GraphData", "MoleculeNet", "SmilesCSV", "SyntheticMolecules", "Zinc"]
