"""The base class of the data sets of this app."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from experiment_kit.data.datamodule import SplitDataModule


class SequenceInfo(NamedTuple):
    """The published sizes of a data set; `num_features` of tokens counts the ids."""

    num_features: int
    num_classes: int
    max_length: int


class SequenceData(SplitDataModule):
    """Sequences (B, N, F), or ids (B, N); their mask, True where a step is valid; labels (B,)."""

    LINKED_SIZES: ClassVar[Sequence[str]] = SequenceInfo._fields

    num_features: int
    num_classes: int
    max_length: int
