"""`python -m attention_graph {fit,validate,test,predict}`."""

from experiment_kit.cli import run_app

from attention_graph import APP

if __name__ == "__main__":
    run_app(APP)
