"""`python -m attention_speech {fit,validate,test,predict}`."""

from experiment_kit.cli import App
from experiment_kit.cli import main as run

from attention_speech.data import SpeechData
from attention_speech.module import SpeechRecognizer

APP = App(
    name="speech",
    model=SpeechRecognizer,
    data=SpeechData,
    monitor="val/score",
    links={name: name for name in ("vocab_size", "tokenizer_file")},
    files=("model.language_model",),
)


def main() -> None:
    """Run the command line."""
    run(APP)


if __name__ == "__main__":
    main()
