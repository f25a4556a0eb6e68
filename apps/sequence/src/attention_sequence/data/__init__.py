"""Data sets: time series of the UEA archive, and the tasks of the Long Range Arena."""

from attention_sequence.data.base import SequenceData as SequenceData
from attention_sequence.data.image import Image as Image
from attention_sequence.data.listops import ListOps as ListOps
from attention_sequence.data.long_range import LongRangeData as LongRangeData
from attention_sequence.data.pathfinder import Pathfinder as Pathfinder
from attention_sequence.data.retrieval import Retrieval as Retrieval
from attention_sequence.data.text import Text as Text
from attention_sequence.data.uea import UEA as UEA
from attention_sequence.data.uea import UEAShapes as UEAShapes
