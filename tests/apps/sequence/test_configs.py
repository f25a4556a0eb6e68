"""The overlays of the sequence app: LRA's tasks, and the papers' settings of AGF."""

import pydoc

import pytest
from experiment_kit.papers.values import load_table

from tests.apps.cases import SEQUENCE

LONG_RANGE = [
    name for name in SEQUENCE.names("data") if SEQUENCE.read("data", name)["data"].get("class_path")
]


def test_the_small_profile_bounds_every_long_task_by_steps() -> None:
    (patterns,) = SEQUENCE.read("profile", "small")["at"]
    assert sorted(patterns.split(", ")) == LONG_RANGE
    fit = SEQUENCE.parse(data="listops", profile="small")
    assert (fit.trainer.max_steps, fit.trainer.check_val_every_n_epoch) == (200, None)
    assert fit.model.schedule.init_args.warmup == 0.1


@pytest.mark.parametrize("data", LONG_RANGE)
def test_a_task_spells_out_what_another_data_module_would_leave_behind(data: str) -> None:
    """A later class_path keeps what an earlier class had under the same names."""
    parsed = SEQUENCE.parse(data=data).data
    kind, given = pydoc.locate(parsed.class_path), parsed.init_args.as_dict()
    name, lengths = given["dataset_name"], {k: given[k] for k in ("truncate", "max_length")}
    module = kind(name, **lengths)
    spelled_out = set(SEQUENCE.read("data", data)["data"]["init_args"])
    assert spelled_out == {*lengths, "dataset_name", "val_fraction", "vocab_size", "batch_size"}
    assert given["vocab_size"] == module.num_features


def test_recipes_differ_in_masks_and_means_alone() -> None:
    right, published = (
        SEQUENCE.parse(data="listops", recipe=name) for name in ("lra", "lra_published")
    )
    pools = [fit.model.pop("network").init_args.pool for fit in (right, published)]
    zeros = [fit.data.init_args.pop("zero_is_padding") for fit in (right, published)]
    assert (pools, zeros) == (["valid", "all"], [False, True])
    for group in ("model", "data", "trainer"):
        assert right[group].as_dict() == published[group].as_dict()


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


def test_variants_of_a_task_have_its_settings() -> None:
    for method in ("agf", "agf_released"):
        for task, variant in (("listops", "listops_drawn"), ("text", "text_4k")):
            model = SEQUENCE.parse(data=task, method=method).model.as_dict()
            assert SEQUENCE.parse(data=variant, method=method).model.as_dict() == model
