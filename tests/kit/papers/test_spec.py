"""A spec says which experiment makes each cell; a mistake in it is one sentence."""

from pathlib import Path

import pytest
import yaml
from experiment_kit.app_files import read_settings
from experiment_kit.errors import UserError
from experiment_kit.launch.plan import EigenvalueOptions
from experiment_kit.papers.spec import load_spec
from experiment_kit.papers.values import load_table

AGF_TABLE_1 = Path("apps/sequence/src/attention_sequence/papers/agf-table-1.yaml")


def write_spec(folder, table, text, app="vision"):
    path = folder / f"{table}.yaml"
    read_settings.cache_clear()
    path.write_text(f"app: {app}\nprotocol: test\nsource: text\nreason: why\n{text}")
    return path


def test_cells_are_the_printed_rows_seed_by_seed(spec):
    cells = spec.list_cells("paper", "test", [1, 7], columns=["heartbeat", "pems_sf"])
    count = len(spec.rows) * 2
    assert len(cells) == len(set(cells)) == 2 * count
    assert [c.experiment.seed for c in cells] == [1] * count + [7] * count
    agf = next(c for c in cells if (c.row, c.column) == ("agf", "pems_sf"))
    run = agf.experiment
    assert (run.method, run.data, run.backbone, run.profile) == ("agf", "pems_sf", "uea", "paper")
    assert (run.protocol, run.args) == ("test", ())
    assert (run.source, agf.metric, agf.scale) == ("result", "test/accuracy", 100)
    assert spec.list_cells("small", "validation", [0])[0].experiment.args == ()
    assert spec.all_rows["transformer"].method == "plain"


DEPTHS = """
method: plain
metric: test/accuracy
args: [--always]
columns: {layers_12: {}, layers_16: {backbone: "{}_16", args: [--deep]}}
rows:
  softmax-deit_t: {data: imagenet_100, backbone: deit_tiny}
  gfsa-deit_s:
    {data: imagenet_1k, backbone: deit_small, method: gfsa, recipe: cait, args: [--row],
     at: {layers_16: {args: [--here]}}}
"""


def test_a_cell_is_the_default_refined_by_its_row_its_column_and_both(tmp_path):
    depths = load_spec(write_spec(tmp_path, "gfsa-table-12", DEPTHS))
    cells = depths.list_cells("paper", "test", [0])
    plain, deeper, gfsa, both = (cell.experiment for cell in cells)
    assert [e.backbone for e in (plain, deeper)] == ["deit_tiny", "deit_tiny_16"]
    assert [e.backbone for e in (gfsa, both)] == ["deit_small", "deit_small_16"]
    assert (plain.method, plain.data, plain.recipe) == ("plain", "imagenet_100", "")
    assert (both.method, both.data, both.recipe) == ("gfsa", "imagenet_1k", "cait")
    assert gfsa.args == ("--always", "--row")
    assert both.args == ("--always", "--row", "--deep", "--here")


def test_the_other_source_has_rows_of_its_own_which_it_chooses_as_a_whole(tmp_path):
    text = f"{DEPTHS}other:\n  gfsa*: {{recipe: deit_500, at: {{layers_16: {{args: [--one]}}}}}}\n"
    depths = load_spec(write_spec(tmp_path, "gfsa-table-12", text))
    assert depths.labels["gfsa-deit_s-released"] == "DeiT-S + GFSA (released)"
    assert depths.choose_rows() == depths.choose_rows("text") == [*depths.rows]
    assert depths.choose_rows("released") == ["softmax-deit_t", "gfsa-deit_s-released"]
    found = [cell.experiment for cell in depths.list_cells(seeds=[0], source="released")]
    assert [e.recipe for e in found] == ["", "", "deit_500", "deit_500"]
    assert found[-1].args == ("--always", "--row", "--deep", "--here", "--one")
    assert {e.protocol for e in found} == {"test"}  # which the spec names


COSTS = """
data: imagenet_1k
backbone: deit_small
columns:
  flops_g: {report: efficiency, metric: multiply_adds, scale: 1.0e-9}
  top1_acc: {metric: test/accuracy, scale: 100}
rows: {softmax-deit_s-12: plain, gfsa-deit_s-12: gfsa}
"""


def test_the_cost_of_a_model_has_no_seed(tmp_path):
    spec = load_spec(write_spec(tmp_path, "gfsa-table-9", COSTS))
    experiments = [cell.experiment for cell in spec.list_cells("paper", "test", [4, 5])]
    costs = [e for e in experiments if e.source == "efficiency"]
    assert [(e.method, e.seed) for e in costs] == [("plain", 4), ("gfsa", 4)]
    assert [e.seed for e in experiments if e.source == "result"] == [4, 4, 5, 5]
    assert [e.is_trained for e in experiments[:2]] == [False, True]


SHARES = """data: cifar100
backbone: vit_tiny
metric: smoothing_share
columns: {lambda_n_a: {report: eigenvalues}, lambda_1_a: {}}
rows: {vit_ti: plain}
"""


def test_eigenvalues_are_measured_as_the_table_says(tmp_path):
    options = {"": None, "eigenvalues: {samples: all}\n": EigenvalueOptions("all", "best")}
    for line, first in options.items():
        spec = load_spec(write_spec(tmp_path, "record-straight-table-1", f"{line}{SHARES}"))
        cells = spec.list_cells("paper", "test", [0])
        assert [cell.experiment.eigenvalues for cell in cells] == [first, None]


STARTS = """recipe: superglue
metric: last/accuracy
args: [--model.weight_decay=0.5]
start: {data: pile, backbone: crammed_32, recipe: crammed, args: [--trainer.max_steps=3]}
columns: {cb_16: {data: cb, backbone: crammed_16}}
rows: {crammed_bert: plain, crammed_bert_minus: sharpening}
"""


def test_a_cell_starts_from_the_run_of_its_own_method_and_seed(tmp_path):
    spec = load_spec(write_spec(tmp_path, "record-straight-figure-6", STARTS, "nlp"))
    cells = [cell.experiment for cell in spec.list_cells("small", "test", [4, 5])]
    assert [(e.method, e.seed) for e in cells[1:3]] == [("sharpening", 4), ("plain", 5)]
    for e in cells:
        names = e.data, e.backbone, e.recipe, e.protocol
        assert names == ("cb", "crammed_16", "superglue", "test")
        assert (e.start.data, e.start.backbone, e.start.recipe) == ("pile", "crammed_32", "crammed")
        assert (e.start.method, e.start.seed, e.start.start) == (e.method, e.seed, None)
        assert (e.start.profile, e.start.protocol, e.start.source) == ("small", "", "result")
        assert e.start.args == ("--trainer.max_steps=3",)


@pytest.mark.parametrize(("change", "message"), [
    ({"rows": {"transfomer": "plain"}}, r"transfomer.*did you mean transformer"),
    ({"backbone": ""}, "row agf, column .*: backbone is missing"),
    ({"rows": {"agf": {"method": "agf", "args": "--x"}}}, "rows.agf.args: expected"),
    ({"protocol": "publishd"}, "did you mean published"),
    ({"source": "code"}, "source named 'code'; allowed: text, released"),
    ({"other": {"agf": {"recip": "x"}}}, "key of other.agf named 'recip'"),
    ({"columns": ["heartbeet"]}, "did you mean heartbeat"),
    ({"reference": "afg"}, "did you mean agf"),
    ({"computed": {"average": {"column": "pems"}}}, "column of agf-table-1 named 'average'"),
    ({"computed": {"japanese_vowels": {"column": "pems"}}}, "measured named 'pems'"),
    ({"computed": {"heartbeat": {"column": "pems_sf", "minus": {"agf": "ag"}}}}, "mean agf"),
])  # fmt: skip
def test_a_mistake_in_a_spec_names_the_file_and_the_key(tmp_path, change, message):
    path = tmp_path / AGF_TABLE_1.name
    path.write_text(yaml.safe_dump(yaml.safe_load(AGF_TABLE_1.read_text()) | change))
    with pytest.raises(UserError, match=rf"agf-table-1\.yaml: .*{message}") as error:
        load_spec(path)
    assert "\n" not in str(error.value)


def test_numbers_have_the_decimals_of_the_paper_and_at_least_two(tmp_path):
    assert {*load_spec(write_spec(tmp_path, "gfsa-table-9", COSTS)).decimals.values()} == {2}
    runtime = load_table("gfsa-table-20").columns["runtime"]
    assert [runtime.format_value(x) for x in (551, 1900.9)] == ["551", "1900.9"]
    finer = load_spec(write_spec(tmp_path, "gfsa-table-9", f"digits: 4\n{COSTS}"))
    assert {*finer.decimals.values()} == {4}
