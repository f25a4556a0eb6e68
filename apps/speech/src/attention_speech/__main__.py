"""`attention-speech {fit,validate,test,predict}`."""

from functools import partial

from experiment_kit.cli import run_app

from attention_speech import APP

main = partial(run_app, APP)
if __name__ == "__main__":
    main()
