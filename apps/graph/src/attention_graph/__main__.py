"""`python -m attention_graph {fit,validate,test,predict}`."""

from experiment_kit.cli import run_app

from attention_graph import APP


def main() -> None:
    """Run the command line."""
    run_app(APP)


if __name__ == "__main__":
    main()
