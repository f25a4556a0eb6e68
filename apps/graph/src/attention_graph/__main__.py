"""`python -m attention_graph {fit,validate,test,predict}`."""

from experiment_kit.cli import App
from experiment_kit.cli import main as run

from attention_graph.data import GraphData
from attention_graph.module import GraphRegressor

APP = App(
    name="graph",
    model=GraphRegressor,
    data=GraphData,
    monitor="val/score",
    links={name: name for name in ("atom_rows", "bond_rows", "target_mean", "target_std")},
    shared={"model.fidelity": "data.init_args.fidelity"},
    score_last=True,
    trained=("train/mae", "val/mae"),
)


def main() -> None:
    """Run the command line."""
    run(APP)


if __name__ == "__main__":
    main()
