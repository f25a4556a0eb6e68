"""Data sets: time series of the UEA archive, and the tasks of the Long Range Arena."""

from attention_sequence.data.base import SequenceData
from attention_sequence.data.image import Image
from attention_sequence.data.listops import ListOps
from attention_sequence.data.long_range import LongRangeData
from attention_sequence.data.pathfinder import Pathfinder
from attention_sequence.data.retrieval import Retrieval
from attention_sequence.data.text import Text
from attention_sequence.data.uea import UEA, UEAShapes

__all__ = [
    "UEA",
    "Image",
    "ListOps",
    "LongRangeData",
    "Pathfinder",
    "Retrieval",
    "SequenceData",
    "Text",
    "UEAShapes",
]
