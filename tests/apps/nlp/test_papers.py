"""The tables of the language app: the order of each model, its protocols, its runs."""

import pytest
from experiment_kit.launch.plan import plan_runs
from experiment_kit.papers.spec import find_spec


def test_a_sweep_of_K_has_a_run_for_each_and_the_best_is_that_of_the_other_tables() -> None:
    order = "gfsa-gpt2-117M-both-{}"
    rows = {8: [order.format(2), order.format(9)], 32: ["gfsa", "gfsa_even", "gfsa-words"]}
    folders = {}
    for number, chosen in rows.items():
        spec = find_spec(f"gfsa-table-{number}")
        cells = spec.list_cells("paper", "released", [0], chosen, ["wikitext2"])
        runs = plan_runs(cell.experiment for cell in cells)
        folders |= {cell.row: runs[cell.experiment].folder for cell in cells}
    assert folders["gfsa"] == folders["gfsa-words"] == folders[order.format(9)]
    assert len(set(folders.values())) == 3


@pytest.mark.parametrize("number", [7, 17, 23, 29])
def test_tables_have_the_order_of_each_model_and_its_way_of_answering(number) -> None:
    cells = find_spec(f"gfsa-table-{number}").list_cells("paper", "validation", [0])
    orders = {"roberta_base": 4, "codebert": 4, "plbart": 2, "bart_base": 2}
    for cell in (cell.experiment for cell in cells):
        given = [arg for arg in cell.args if arg.startswith("--model.filter")]
        order = orders.get(cell.backbone, 3)
        assert given == [f"--model.filter.init_args.K={order}"] * (cell.method == "gfsa")
        writes = number != 17 and cell.backbone.startswith("codet5")
        assert cell.data.endswith("_generate") == cell.recipe.endswith("_generate") == writes
