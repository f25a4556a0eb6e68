"""`python -m attention_sequence {fit,validate,test,predict}`."""

from experiment_kit.cli import App
from experiment_kit.cli import main as run

from attention_sequence.data import SequenceData
from attention_sequence.module import SequenceClassifier

APP = App(
    name="sequence",
    model=SequenceClassifier,
    data=SequenceData,
    monitor="val/score",
    links={name: name for name in ("num_features", "num_classes", "max_length")},
)


def main() -> None:
    """Run the command line."""
    run(APP)


if __name__ == "__main__":
    main()
