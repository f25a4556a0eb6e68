"""`python -m attention_vision {fit,validate,test,predict}`."""

from experiment_kit.cli import App
from experiment_kit.cli import main as run

from attention_vision.data import VisionData
from attention_vision.module import VisionClassifier

APP = App(
    name="vision",
    model=VisionClassifier,
    data=VisionData,
    monitor="val/accuracy",
    links={name: name for name in ("num_classes", "image_size")},
    files=("model.checkpoint", "data.init_args.classes"),
)


def main() -> None:
    """Run the command line."""
    run(APP)


if __name__ == "__main__":
    main()
