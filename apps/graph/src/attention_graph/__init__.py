"""Graph regression by Graphormer with every attention mechanism."""

from experiment_kit.cli import AppSpec
from experiment_kit.data.download import Download

from attention_graph.data import GraphData
from attention_graph.module import GraphRegressor

_LSC = "https://dgl-data.s3-accelerate.amazonaws.com/dataset/OGB-LSC"
_DEEPCHEM = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets"
_BENCHMARK = (
    "https://raw.githubusercontent.com/graphdeeplearning/benchmarking-gnns/master/data/molecules"
)

APP = AppSpec(
    name="graph",
    model=GraphRegressor,
    data=GraphData,
    monitor="val/score",
    links={name: name for name in ("atom_rows", "bond_rows", "target_mean", "target_std")},
    links_from_model={"model.variant": "data.init_args.variant"},
    score_last=True,
    report_train_metrics=("train/mae", "val/mae"),
    downloads={
        # the pickles of benchmarking-gnns, as torch-geometric downloads them; for zinc_full too
        "zinc": [
            Download(
                "https://www.dropbox.com/s/feo9qle74kg48gy/molecules.zip?dl=1",
                "ZINC/molecules",
                inside="molecules",
            ),
            *(
                Download(f"{_BENCHMARK}/{split}.index", f"ZINC/molecules/{split}.index")
                for split in ("train", "val", "test")
            ),
        ],
        **{
            name: [Download(f"{_LSC}/{folder}.zip", f"{name}/{folder}", inside=folder)]
            for name, folder in {"pcqm4m": "pcqm4m_kddcup2021", "pcqm4mv2": "pcqm4m-v2"}.items()
        },
        **{
            name: [Download(f"{_DEEPCHEM}/{file}", f"moleculenet/{file}")]
            for name, file in {
                "esol": "delaney-processed.csv",
                "freesolv": "SAMPL.csv",
                "lipophilicity": "Lipophilicity.csv",
            }.items()
        },
    },
)
