"""`python -m attention_speech.language {fit,validate,test}`: a language model of transcripts."""

from experiment_kit.cli import App
from experiment_kit.cli import main as run

from attention_speech.language import LanguageModel, Transcripts

APP = App(
    name="speech",
    model=LanguageModel,
    data=Transcripts,
    monitor="val/score",
    links={name: name for name in ("vocab_size", "tokenizer_file")},
)


def main() -> None:
    """Run the command line."""
    run(APP)


if __name__ == "__main__":
    main()
