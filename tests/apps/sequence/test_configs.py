"""The overlays of the sequence app: LRA's tasks, and the papers' settings of AGF."""

import pydoc

import pytest
import yaml
from experiment_kit.papers.values import load_table

from tests.apps.cases import SEQUENCE

LONG_RANGE = [
    name for name in SEQUENCE.names("data") if SEQUENCE.read("data", name)["data"].get("class_path")
]


def test_the_small_profile_bounds_every_long_task_by_steps() -> None:
    profile = SEQUENCE.folder / "profile/small.per_dataset.yaml"
    for rows in yaml.safe_load(profile.read_text()).values():
        assert sorted(rows) == LONG_RANGE
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


@pytest.mark.parametrize(
    ("table", "differing"),
    [
        ("agf-table-10", {"self_regulation_scp1": "b", "spoken_arabic_digits": "g"}),
        (
            "agf-table-11",
            dict.fromkeys(("listops", "text", "retrieval"), "gab")
            | {"image": "Kgab", "pathfinder": "K"},
        ),
    ],
)
def test_the_settings_of_agf_are_the_papers_but_for_the_released_flags(table, differing) -> None:
    settings = yaml.safe_load((SEQUENCE.folder / "method/agf.per_dataset.yaml").read_text())
    polynomials = {"chebyshev": {"a": -0.5, "b": -0.5}, "legendre": {"a": 0.0, "b": 0.0}}
    found = {}
    for row in load_table(table).rows:
        own = settings["model.kernel.init_args"][row.about["dataset"]]
        own = own | polynomials.get(own["basis"], {})
        assert own["pin_theta0"] or table == "agf-table-10"
        names = [name[0] for name in ("K", "gamma", "a", "b") if own[name] != row.values[name]]
        found[row.about["dataset"]] = "".join(names)
    assert {name: letters for name, letters in found.items() if letters} == differing
