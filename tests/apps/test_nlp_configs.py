"""The language app: every backbone and recipe parses, and every cell of a table."""

from pathlib import Path

import pytest
from experiment_kit.launch import compose
from experiment_kit.tables import load_spec

from tests.apps.overlays import NLP


@pytest.mark.parametrize("backbone", NLP.names("backbone"))
@pytest.mark.parametrize("method", ["plain", "contranorm"])
def test_every_backbone_parses(backbone: str, method: str) -> None:
    fit = NLP.parse(backbone=backbone, method=method)
    assert (fit.run.backbone, fit.run.method) == (backbone, method)
    shared = [fit.data.init_args[name] for name in ("architecture", "weights")]
    assert shared == [fit.model.architecture, fit.model.weights]


@pytest.mark.parametrize("recipe", NLP.names("recipe"))
def test_every_recipe_parses(recipe: str) -> None:
    assert NLP.parse(recipe=recipe, profile="small").trainer.max_epochs


@pytest.mark.parametrize("path", sorted(Path("apps/nlp/papers").glob("*.yaml")), ids=str)
def test_every_cell_of_every_table_parses(path: Path) -> None:
    spec = load_spec(path)
    cells = [c for p in spec.protocols for c in spec.cells("paper", p, [0]) if c.app == "nlp"]
    # a parse takes a second: each row, column and protocol once is as good as all together
    seen: set[str] = set()
    for cell in cells:
        if not {cell.row, cell.column, cell.protocol} <= seen:
            seen |= {cell.row, cell.column, cell.protocol}
            NLP.cli.parser.parse_args(["fit", *compose.of_cell(cell)])
