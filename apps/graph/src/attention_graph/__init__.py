"""Graph regression by Graphormer with every attention mechanism."""

from experiment_kit.app import AppSpec
from experiment_kit.data.download import Download

from attention_graph.data import GraphData, MoleculeNet
from attention_graph.module import GraphRegressor

__version__ = "0.1.0"

_LSC = "https://dgl-data.s3-accelerate.amazonaws.com/dataset/OGB-LSC"
_DEEPCHEM = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets"
_BENCHMARK = (
    "https://raw.githubusercontent.com/graphdeeplearning/benchmarking-gnns/"
    "7125b402b4f386e1897549cebf76fcab32738e21/data/molecules"
)
_ZINC_INDICES = {  # sha256 of the files in that commit
    "train.index": "575d6acd72ac207a95947e2bdd16411ef6fc3faa88c2f55a2c496ea43022a6d8",
    "val.index": "fe48c38157f0d38e7fc441903a143392eda080511a79e8fb8f60f5c1b0a9c164",
    "test.index": "6aa50d98976044fb36089afef5b4c991b429ca1c8e009d33a0319e42a2d9b525",
}
_MOLECULENET = {  # sha256 of the files of esol, freesolv and lipophilicity
    "delaney-processed.csv": "8c06a76f0c6487d29ab0f903e6a7a7139f189ab3c1178f159c8be8964602f189",
    "SAMPL.csv": "ab5895d914ee87cb563bd7b9611e869527bba45bec6b014d34dc495a0f9dcb72",
    "Lipophilicity.csv": "aed41590cb30609d51d8e08ad3ff06495a76e80e211358801f596b10da69bacd",
}

# the pickles of benchmarking-gnns, as torch-geometric downloads them
_PICKLES = "https://www.dropbox.com/s/feo9qle74kg48gy/molecules.zip?dl=1"
_ZINC = [
    Download(_PICKLES, "ZINC/molecules", inside="molecules"),
    *(
        Download(f"{_BENCHMARK}/{file}", f"ZINC/molecules/{file}", None, sha256)
        for file, sha256 in _ZINC_INDICES.items()
    ),
]

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
        **dict.fromkeys(("zinc", "zinc_full"), _ZINC),
        **{
            name: [Download(f"{_LSC}/{folder}.zip", f"{name}/{folder}", folder)]
            for name, folder in {"pcqm4m": "pcqm4m_kddcup2021", "pcqm4mv2": "pcqm4m-v2"}.items()
        },
        **{
            name: [Download(f"{_DEEPCHEM}/{file}", f"moleculenet/{file}", None, sha256)]
            for name, (file, sha256) in zip(MoleculeNet.DATASETS, _MOLECULENET.items(), strict=True)
        },
    },
)
