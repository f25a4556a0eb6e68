"""Time series and long sequences with every attention mechanism."""

from experiment_kit.app import AppSpec

from attention_sequence.data import UEA, SequenceData, UEAShapes
from attention_sequence.data.downloads import DOWNLOADS
from attention_sequence.module import SequenceClassifier

__version__ = "0.1.0"

APP = AppSpec(
    name="sequence",
    model=SequenceClassifier,
    data=SequenceData,
    monitor="val/score",
    links={name: name for name in SequenceData.LINKED_SIZES},
    downloads=DOWNLOADS,
    shape_only_data={UEA: UEAShapes},
    measures_recipe=True,
)
