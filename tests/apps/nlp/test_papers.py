"""The tables of the language app: the order of each model, its protocols, its runs."""

from experiment_kit.launch.plan import plan_runs
from experiment_kit.papers.spec import find_spec


def test_a_sweep_of_K_has_a_run_for_each_and_the_best_is_that_of_the_other_tables() -> None:
    order = "gfsa-gpt2-117M-both-{}"
    rows = {8: [order.format(2), order.format(9)], 32: ["gfsa", "gfsa_even", "gfsa-words"]}
    folders = {}
    for number, chosen in rows.items():
        spec = find_spec(f"gfsa-table-{number}")
        cells = spec.list_cells("paper", "paper", [0], chosen, ["wikitext2"])
        runs = plan_runs(cell.experiment for cell in cells)
        folders |= {cell.row: runs[cell.experiment].folder for cell in cells}
    assert folders["gfsa"] == folders["gfsa-words"] == folders[order.format(9)]
    assert len(set(folders.values())) == 3
