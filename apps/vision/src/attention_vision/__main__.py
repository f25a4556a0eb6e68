"""`attention-vision {fit,validate,test,predict}`."""

from functools import partial

from experiment_kit.cli import run_app

from attention_vision import APP

main = partial(run_app, APP)
if __name__ == "__main__":
    main()
