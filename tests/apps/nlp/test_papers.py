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


@pytest.mark.parametrize(("data", "backbone", "expected"), [
    ("ptb", "gpt2", (7, 0)), ("wikitext2", "gpt2", (9, 0)), ("wikitext103", "gpt2", (3, 0)),
    ("wikitext2", "gpt_tiny", (4, 0)), ("cola", "bert_base", (4, -0.01)),
    ("cola", "albert_base", (10, 0.05)), ("cola", "roberta_base", (6, -0.05)),
    ("cola", "minilm", (4, 0)), ("rte", "albert_base", (4, 0)), ("devign", "codebert", (4, 0)),
    ("devign_generate", "codet5_small", (3, 0)), ("bigclonebench", "codet5_base", (3, 0)),
    ("devign", "plbart", (2, 0)), ("devign", "bart_base", (2, 0)),
])  # fmt: skip
def test_the_filter_of_a_data_set_and_a_network_is_the_released_one(data, backbone, expected):
    for method in ("gfsa", "gfsa_even"):
        filter = NLP.parse(data=data, backbone=backbone, method=method).model.filter.init_args
        assert (filter.K, filter.w0) == expected


@pytest.mark.parametrize(("backbone", "batch", "steps"), [
    ("codet5_small", 25, 36042), ("codet5_base", 10, 90103), ("codebert", 16, 56315),
])  # fmt: skip
def test_a_thousand_steps_of_clone_detection_warm_up(backbone, batch, steps) -> None:
    config = NLP.parse(data="bigclonebench", backbone=backbone)
    assert config.data.init_args.batch_size == batch
    assert round(config.model.schedule.init_args.warmup * steps) == 1000


@pytest.mark.parametrize(("data", "backbone", "expected"), [
    ("cola", "bert_base", "shared"), ("wikitext2", "gpt2", "shared"), ("cola", "minilm", None),
    ("devign", "codebert", "filtered"), ("devign_generate", "codet5_base", "filtered"),
    ("bigclonebench", "codet5_small", "filtered"), ("devign", "code_tiny", None),
])  # fmt: skip
def test_the_papers_networks_drop_entries_of_the_map_that_the_code_drops(data, backbone, expected):
    assert NLP.parse(data=data, backbone=backbone).model.dropout_mask == expected


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
