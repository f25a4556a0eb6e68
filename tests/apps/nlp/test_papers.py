"""The tables of the language app: the order of each model, its protocols, its runs."""

import pytest
from experiment_kit.launch.plan import plan_runs
from experiment_kit.papers.spec import find_spec

from tests.apps.cases import NLP


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
def test_code_t5_writes_its_answers(number) -> None:
    for cell in find_spec(f"gfsa-table-{number}").list_cells("paper", "validation", [0]):
        writes = number != 17 and cell.experiment.backbone.startswith("codet5")
        names = cell.experiment.data, cell.experiment.recipe
        assert [name.endswith("_generate") for name in names] == [writes, writes]


@pytest.mark.parametrize(("protocol", "patience"), [("validation", 2), ("published", 3)])
@pytest.mark.parametrize(("data", "backbone"), [
    ("devign", "codebert"), ("devign_generate", "codet5_small"), ("bigclonebench", "codet5_base"),
])  # fmt: skip
def test_code_stops_at_the_text_s_patience_or_at_that_of_the_code(
    data, backbone, protocol, patience
) -> None:
    (stopping,) = NLP.parse(data=data, backbone=backbone, protocol=protocol).trainer.callbacks
    assert stopping.class_path.endswith("ResumableEarlyStopping")
    assert (stopping.init_args.patience, stopping.init_args.monitor) == (patience, "val/score")
