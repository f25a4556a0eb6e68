"""The language app: every config parses, overlays stay small, every cell of a table is one."""

import inspect
import pydoc
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import yaml
from attention_nlp.__main__ import APP
from experiment_kit.cli import AppCLI
from experiment_kit.launch import compose
from experiment_kit.launch.listing import whereabouts
from experiment_kit.tables import load_spec

CONFIGS = Path("apps/nlp/configs")
METHODS, DATA, BACKBONES, RECIPES, PROFILES = (
    compose.names("nlp", kind) for kind in ("method", "data", "backbone", "recipe", "profile")
)


@cache
def cli() -> AppCLI:
    chosen = {"data": "docs", "backbone": "bert_tiny", "method": "plain"}
    return AppCLI(APP, ["fit", *compose.arguments("nlp", **chosen)], plan=True)


def parse(*extra: str, **chosen: str):
    chosen = {"data": "docs", "backbone": "bert_tiny", "method": "plain"} | chosen
    return cli().parser.parse_args(["fit", *compose.arguments("nlp", extra, **chosen)]).fit


@pytest.mark.parametrize("data", DATA)
def test_every_data_set_parses(data: str) -> None:
    run = parse(data=data, profile="small").run
    assert (run.data, run.profile) == (data, "small")


@pytest.mark.parametrize("data", DATA)
def test_every_data_set_says_where_it_is_or_how_to_have_it(data: str, monkeypatch) -> None:
    monkeypatch.delenv("DATA_DIR", raising=False)
    place = whereabouts("nlp", data)
    assert isinstance(place, Path) or "set DATA_DIR" in place or "pip install" in place


@pytest.mark.parametrize(("profile", "method"), list(product(PROFILES, METHODS)))
def test_every_method_parses_under_every_profile(profile: str, method: str) -> None:
    run = parse(method=method, profile=profile).run
    assert (run.method, run.profile) == (method, profile)


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("method", ["plain", "contranorm"])
def test_every_backbone_parses(backbone: str, method: str) -> None:
    fit = parse(backbone=backbone, method=method)
    assert (fit.run.backbone, fit.run.method) == (backbone, method)
    shared = [fit.data.init_args[name] for name in ("architecture", "weights")]
    assert shared == [fit.model.architecture, fit.model.weights]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_parses(recipe: str) -> None:
    assert parse(recipe=recipe, profile="small").trainer.max_epochs


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=str)
def test_overlays_stay_small(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("method", METHODS)
def test_a_method_spells_out_all_arguments_of_its_slot(method: str) -> None:
    """A later class_path would keep what an earlier class had under the same names."""
    model = yaml.safe_load((CONFIGS / f"method/{method}.yaml").read_text())["model"]
    (slot,) = set(model) - {"layers", "seat"}
    accepted = set(inspect.signature(pydoc.locate(model[slot]["class_path"])).parameters)
    assert set(model[slot].get("init_args", {})) == accepted - {"dim", "num_heads", "eps"}


@pytest.mark.parametrize("path", sorted(Path("apps/nlp/tables").glob("*.yaml")), ids=str)
def test_every_cell_of_every_table_parses(path: Path) -> None:
    spec = load_spec(path)
    cells = [c for p in spec.protocols for c in spec.cells("paper", p, [0]) if c.app == "nlp"]
    # a parse takes a second: each row, column and protocol once is as good as all together
    seen: set[str] = set()
    for cell in cells:
        if not {cell.row, cell.column, cell.protocol} <= seen:
            seen |= {cell.row, cell.column, cell.protocol}
            cli().parser.parse_args(["fit", *compose.of_cell(cell)])
