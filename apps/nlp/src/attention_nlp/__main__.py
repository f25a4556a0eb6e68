"""`python -m attention_nlp {fit,validate,test,predict}`."""

from experiment_kit.cli import App
from experiment_kit.cli import main as run

from attention_nlp.data import LanguageData
from attention_nlp.module import LanguageModule

APP = App(
    name="nlp",
    model=LanguageModule,
    data=LanguageData,
    monitor="val/score",
    links={
        name: name
        for name in ("num_labels", "vocab_size", "max_length", "pad_token_id", "eos_token_id")
    },
    shared={f"model.{name}": f"data.init_args.{name}" for name in ("architecture", "weights")},
    files=("model.weights", "data.init_args.tokenizer"),
    score_last=True,
)


def main() -> None:
    """Run the command line."""
    run(APP)


if __name__ == "__main__":
    main()
