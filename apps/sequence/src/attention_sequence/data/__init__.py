"""The data sets of the sequence app: time series of the UEA archive, and the Long Range Arena."""

from attention_sequence.data.base import LongRangeData, SequenceData
from attention_sequence.data.image import Image
from attention_sequence.data.listops import ListOps
from attention_sequence.data.pathfinder import Pathfinder
from attention_sequence.data.retrieval import Retrieval
from attention_sequence.data.text import Text
from attention_sequence.data.uea import UEA

__all__ = [
    "UEA",
    "Image",
    "ListOps",
    "LongRangeData",
    "Pathfinder",
    "Retrieval",
    "SequenceData",
    "Text",
]
