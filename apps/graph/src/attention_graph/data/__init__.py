"""Data sets of molecules: ZINC, PCQM4M, MoleculeNet, and synthetic ones."""

from attention_graph.data.base import GraphData as GraphData
from attention_graph.data.csv_molecules import MoleculeNet as MoleculeNet
from attention_graph.data.csv_molecules import SmilesCSV as SmilesCSV
from attention_graph.data.pcqm import PCQM as PCQM
from attention_graph.data.synthetic import SyntheticMolecules as SyntheticMolecules
from attention_graph.data.zinc import Zinc as Zinc
