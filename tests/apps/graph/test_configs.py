"""The overlays and downloads of the graph app beside what papers and sites say."""

from pathlib import Path

import pytest
import torch
from attention_graph import APP
from attention_graph.data import PCQM, GraphData, MoleculeNet, Zinc

from tests.apps.cases import GRAPH
from tests.apps.graph.data.files import PCQM_SPLIT, write_pcqm, write_zinc_pickles

RECIPES, PROFILES = (GRAPH.names(kind) for kind in ("recipe", "profile"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_model_and_its_data_share_a_variant(recipe: str) -> None:
    fit = GRAPH.parse(data="zinc", recipe=recipe)
    expected = GRAPH.read("recipe", recipe)["model"]["variant"]
    assert fit.data.init_args.variant == fit.model.variant == expected


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_profile_ends_a_recipe_by_epochs_with_a_warmup_that_fits(recipe, profile) -> None:
    fit = GRAPH.parse(data="zinc", recipe=recipe, profile=profile)
    assert fit.trainer.max_epochs <= 100
    assert fit.trainer.max_steps == -1
    assert fit.trainer.check_val_every_n_epoch == 1
    assert fit.model.schedule.init_args.warmup < 1


@pytest.mark.parametrize(
    ("data", "backbone", "method", "count"),
    [
        ("zinc", "graphormer_slim", "plain", 489_481),
        ("zinc", "graphormer_slim", "gfsa", 489_577),
        ("zinc", "graphormer_slim", "gfsa_even", 489_529),
        ("pcqm4mv2", "graphormer_base", "plain", 48_268_097),  # printed: 48.3M
        ("pcqm4mv2", "graphormer_base", "gfsa", 48_268_097 + 12 * 32),
        ("pcqm4mv2", "graphormer_base_v1", "plain", 47_085_377),
    ],
)
def test_a_network_has_the_parameters_of_the_released_one(data, backbone, method, count) -> None:
    with torch.device("meta"):
        model = GRAPH.model(data=data, backbone=backbone, method=method)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == count


@pytest.mark.parametrize("module", [Zinc, PCQM, MoleculeNet])
def test_a_download_is_found(module: type[GraphData], tmp_path: Path) -> None:
    for name in set(module.DATASETS) & set(APP.downloads):
        first, *others = APP.downloads[name]
        root = tmp_path / name
        path = root / first.path
        if module is MoleculeNet:
            path.parent.mkdir(parents=True)
            path.touch()
        elif module is PCQM:
            write_pcqm(path, PCQM_SPLIT)
        else:
            write_zinc_pickles(path)
            assert all((root / download.path).is_file() for download in others)
        assert module.find_data(name, str(root)) == path
    assert set(APP.downloads) == {"zinc", "zinc_full", *PCQM.DATASETS, *MoleculeNet.DATASETS}
