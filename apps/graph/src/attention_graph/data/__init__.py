"""The data sets of the graph app: ZINC, PCQM4M, MoleculeNet, and molecules of our own."""

from attention_graph.data.base import GraphData
from attention_graph.data.invented import Invented
from attention_graph.data.moleculenet import MoleculeNet
from attention_graph.data.pcqm import PCQM
from attention_graph.data.zinc import Zinc

__all__ = ["PCQM", "GraphData", "Invented", "MoleculeNet", "Zinc"]
