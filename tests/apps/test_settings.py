"""The planned config of every printed row is the one that the paper and its code print."""

import pytest
import yaml
from experiment_kit.launch.plan import load_planner
from experiment_kit.papers.spec import find_spec

from tests.apps.settings import TABLES, compare_blocks, find_settings, merge_config


@pytest.mark.parametrize("table", TABLES)
def test_the_config_of_every_printed_row_is_the_papers(table: str) -> None:
    assert find_settings(table).is_file(), "tests/apps/settings.py says how to write them"
    spec = find_spec(table)
    problems = compare_blocks(spec, yaml.safe_load(find_settings(table).read_text()))
    assert not problems, "\n".join(problems[:20])
    *_, last = spec.list_cells("paper", "validation")  # other cells have its parts
    assert merge_config(last.experiment) == merge_config(last.experiment, load_planner)


PAPER = {"protocol": "published", "source": "text", "profiles": ["paper"], "seeds": [0, 1, 2]}


def find_problems(**blocks) -> list[str]:
    every = {"*": {}, "[!a]*": {}, "agf": {"at": {"*": {}}}}
    settings = {"source": "S", "rows": every, "paper": PAPER, **blocks}
    return compare_blocks(find_spec("agf-table-2"), settings)


@pytest.mark.parametrize(("blocks", "problem"), [
    ({"common": {"dim": 65}}, "transformer, listops (validation): dim is 64, not 65 as in S"),
    ({"rows": {"agf": {"source": "T", "at": {"text, image": {"K": 9}}}}},
     "agf, text (validation): K is 5, not 9 as in T"),
    ({"rows": {"*": {}}}, "row performer is not covered"),
    ({"rows": {"agf": {"at": {"listop": {}}}}}, "no column 'listop'; there are listops, "),
    ({"paper": PAPER | {"seeds": [0]}}, "without an option there is {'protocol': 'published', "),
    ({"common": {}}, "transformer, text: nothing is expected"),
    ({"published": {"common": {"dim": 6}}}, "(published): dim is 64, not 6"),
])  # fmt: skip
def test_a_difference_is_named_with_its_place_and_its_source(blocks, problem) -> None:
    assert any(problem in found for found in find_problems(**blocks)), find_problems(**blocks)
