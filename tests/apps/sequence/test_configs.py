"""The overlays of the sequence app: LRA's tasks, and the papers' settings of AGF."""

import pytest
from experiment_kit.papers.values import load_table

from tests.apps.cases import SEQUENCE

RELEASED = {
    "agf-table-10": {"self_regulation_scp1": "b", "spoken_arabic_digits": "gamma"},
    "agf-table-11": dict.fromkeys(("listops", "text", "retrieval"), "gamma a b eta")
    | {"image": "K gamma a b eta", "pathfinder": "K"},
}  # the settings that differ from the paper's
POLYNOMIALS = {"chebyshev": {"a": -0.5, "b": -0.5}, "legendre": {"a": 0.0, "b": 0.0}}


@pytest.mark.parametrize("table", RELEASED)
@pytest.mark.parametrize("method", ["agf", "agf_released"])
def test_agf_has_the_settings_of_the_paper_and_agf_released_those_of_the_scripts(table, method):
    """The scripts have a rate of 1e-4 for every task of LRA."""
    differing = {}
    for row in load_table(table).rows:
        fit = SEQUENCE.parse(data=row.about["dataset"], method=method)
        own = fit.model.kernel.init_args.as_dict()
        own |= POLYNOMIALS.get(own["basis"], {}) | {"eta": fit.model.optimizer.init_args.lr}
        assert own["pin_theta0"] or table == "agf-table-10"
        if names := [name for name, value in row.values.items() if own[name] != value]:
            differing[row.about["dataset"]] = " ".join(names)
    assert differing == (RELEASED[table] if method == "agf_released" else {})
