"""`python -m attention_nlp {fit,validate,test,predict}`."""

from experiment_kit.cli import run_app

from attention_nlp import APP

if __name__ == "__main__":
    run_app(APP)
