"""Time series and long sequences with every attention mechanism."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Build `APP` on first use: the workers of `generate` need neither torch nor Lightning."""
    if name != "APP":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from experiment_kit.app import AppSpec

    from attention_sequence.data import UEA, SequenceData, UEAShapes
    from attention_sequence.data.downloads import DOWNLOADS
    from attention_sequence.module import SequenceClassifier

    app = globals()[name] = AppSpec(
        name="sequence",
        model=SequenceClassifier,
        data=SequenceData,
        monitor="val/score",
        links={name: name for name in SequenceData.LINKED_SIZES},
        downloads=DOWNLOADS,
        shape_only_data={UEA: UEAShapes},
        measures_recipe=True,
    )
    return app
