"""`python -m attention_vision {fit,validate,test,predict}`."""

from experiment_kit.cli import run_app

from attention_vision import APP

if __name__ == "__main__":
    run_app(APP)
