"""The sequence app: every config parses, every method trains, data as the papers have it."""

import inspect
import pydoc
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from aeon.datasets import load_from_ts_file
from attention_core import AGF, GFSA, EigenSpectrum, Plain, SelfAttention
from attention_sequence.__main__ import APP
from attention_sequence.data import UEA, SequenceData
from attention_sequence.module import SequenceClassifier, score
from attention_sequence.series import interpolate, locate, read
from experiment_kit.cli import AppCLI
from experiment_kit.errors import UserError
from experiment_kit.launch import compose
from experiment_kit.optim import decay_groups
from experiment_kit.tables import load
from hypothesis import given
from hypothesis import strategies as st

from tests.apps.tiny import fit

CONFIGS = Path("apps/sequence/configs")
METHODS = compose.names("sequence", "method")
DATA = compose.names("sequence", "data")


@pytest.fixture(scope="module")
def cli() -> AppCLI:
    chosen = {"data": "basic_motions", "backbone": "uea", "method": "plain"}
    return AppCLI(APP, ["fit", *compose.arguments("sequence", **chosen)], plan=True)


def tuned(overlay: str) -> list[str]:
    path = CONFIGS / f"{overlay}.per_dataset.yaml"
    return sorted(set().union(*yaml.safe_load(path.read_text()).values())) if path.exists() else []


COMBINATIONS = {
    *((data, "plain") for data in DATA),
    *product(("japanese_vowels", "listops"), METHODS),
    *((data, method) for method in METHODS for data in tuned(f"method/{method}")),
}


def recipes(data: str) -> list[str]:
    kind = yaml.safe_load((CONFIGS / f"data/{data}.yaml").read_text())["data"].get("class_path")
    return ["lra", "lra_published"] if kind else [""]


@pytest.mark.parametrize(("data", "method"), sorted(COMBINATIONS))
def test_every_overlay_and_every_tuned_row_parses(cli: AppCLI, data: str, method: str) -> None:
    task, many = recipes(data), method == "plain"
    backbone = ("lra_dual" if data == "retrieval" else "lra") if task[0] else "uea"
    for recipe, profile in product(task, ("smoke", "small")) if many else [(task[0], "smoke")]:
        chosen = {"data": data, "method": method, "backbone": backbone, "profile": profile}
        arguments = compose.arguments("sequence", recipe=recipe, **chosen)
        parsed = cli.parser.parse_args(["fit", *arguments]).fit
        assert (parsed.run.data, parsed.run.method) == (data, method)


def test_the_small_profile_bounds_every_long_task_by_steps(cli: AppCLI) -> None:
    assert tuned("profile/small") == [data for data in DATA if recipes(data)[0]]
    chosen = {"data": "listops", "backbone": "lra", "recipe": "lra", "profile": "small"}
    parsed = cli.parser.parse_args(["fit", *compose.arguments("sequence", **chosen)]).fit
    assert (parsed.trainer.max_steps, parsed.trainer.check_val_every_n_epoch) == (200, None)
    assert parsed.model.schedule.init_args.warmup == 0.1


@pytest.mark.parametrize("data", [data for data in DATA if recipes(data)[0]])
def test_a_task_spells_out_what_another_data_module_would_leave_behind(
    cli: AppCLI, data: str
) -> None:
    """A later class_path keeps what an earlier class had under the same names."""
    parsed = cli.parser.parse_args(
        ["fit", *compose.arguments("sequence", data=data, backbone="lra", recipe="lra")]
    ).fit
    kind, given = pydoc.locate(parsed.data.class_path), parsed.data.init_args.as_dict()
    own = kind(given["name"], truncate=given["truncate"], max_length=given["max_length"])
    differing = {
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if given[name] != parameter.default and name not in ("name", "batch_size")
    }
    assert differing == {"truncate", "max_length", "vocabulary"}
    assert given["vocabulary"] == own.num_features
    assert (own.truncate, own.max_length) == (given["truncate"], given["max_length"])


@pytest.mark.parametrize("method", METHODS)
def test_a_method_fills_one_slot_and_spells_out_its_arguments(method: str) -> None:
    """A later class_path would keep what an earlier class had under the same names."""
    model = yaml.safe_load((CONFIGS / f"method/{method}.yaml").read_text())["model"]
    (chosen,) = model.values()
    accepted = set(inspect.signature(pydoc.locate(chosen["class_path"])).parameters)
    assert set(chosen.get("init_args", {})) == accepted - {"dim", "num_heads", "length"}


def test_tuned_agf_is_the_papers_table_10_but_for_the_released_differences() -> None:
    tuned = yaml.safe_load((CONFIGS / "method/agf.per_dataset.yaml").read_text())
    ours = tuned["model.kernel.init_args"]
    pairs = {"chebyshev": (-0.5, -0.5), "legendre": (0.0, 0.0)}
    differing = set()
    for row in load("agf-table-10").rows:
        name = row.about["dataset"]
        mine = dict(ours[name])
        a, b = pairs.get(mine["basis"], (mine.get("a"), mine.get("b")))
        printed = row.values
        for key, value in {"K": mine["K"], "gamma": mine["gamma"], "a": a, "b": b}.items():
            if value != printed[key]:
                differing.add((name, key))
    assert differing == {("self_regulation_scp1", "b"), ("spoken_arabic_digits", "gamma")}


def test_tuned_agf_differs_from_the_papers_table_11_on_every_task() -> None:
    """Which are the released flags: the sheet of facts lists both."""
    ours = yaml.safe_load((CONFIGS / "method/agf.per_dataset.yaml").read_text())[
        "model.kernel.init_args"
    ]
    differing = {}
    for row in load("agf-table-11").rows:
        mine, printed = ours[row.about["dataset"]], row.values
        assert mine["pin_theta0"]
        names = {name for name in ("K", "gamma", "a", "b") if mine[name] != printed[name]}
        differing[row.about["dataset"]] = "".join(sorted(name[0] for name in names))
    assert differing == {
        "listops": "abg",
        "text": "abg",
        "retrieval": "abg",
        "image": "Kabg",
        "pathfinder": "K",
    }


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(method: str, tmp_path) -> None:
    run = fit(tmp_path, "--spectral.every_n_steps=2", method=method)
    assert run.result()["metrics"]["test/loss"] < 5
    assert (run.folder / "spectral.json").exists()


def test_a_length_that_the_files_tell_is_the_models(tmp_path) -> None:
    """Lightning refuses two values of one name in what it logs of model and data."""
    run = fit(tmp_path, "--data.init_args.max_length=null")
    state = torch.load(run.checkpoint_folder / "best.ckpt", weights_only=True)["state_dict"]
    assert state["model.embedding.position"].shape == (26, 16)


@pytest.mark.parametrize(("pin", "parameters"), [(False, 6_986_259), (True, 6_986_257)])
def test_agf_has_the_released_number_of_parameters(pin: bool, parameters: int) -> None:
    def kernel(dim: int, heads: int) -> AGF:
        return AGF(dim, heads, K=4, pin_theta0=pin)

    model = SequenceClassifier(12, 9, 29, kernel=kernel)
    assert sum(weight.numel() for weight in model.parameters()) == parameters


def test_slots_sit_in_the_chosen_layers_alone() -> None:
    model = SequenceClassifier(3, 4, 5, width=8, heads=2, depth=4, filter=GFSA, layers="1::2")
    kinds = [type(block.attention.filter) for block in model.model.blocks]
    assert kinds == [Plain, GFSA, Plain, GFSA]


def test_the_spectrum_of_a_layer_is_a_slot_too() -> None:
    options = {"width": 8, "heads": 2, "depth": 2}
    plain = SequenceClassifier(3, 4, 5, **options)
    ours = SequenceClassifier(3, 4, 5, **options, reparam=EigenSpectrum, layers="1:")
    count = [sum(w.numel() for w in module.parameters()) for module in (plain, ours)]
    assert count[0] - count[1] == 8 * 8 - 8


def test_coefficients_are_not_decayed() -> None:
    model = SequenceClassifier(3, 4, 5, width=8, heads=2, depth=1, filter=GFSA)
    spared = {
        id(w) for g in decay_groups(model, 0.1) if g["weight_decay"] == 0 for w in g["params"]
    }
    assert id(model.model.blocks[0].attention.filter.wK) in spared
    assert id(model.model.head.weight) not in spared


def test_padding_never_reaches_the_logits_where_attention_is_masked() -> None:
    model = SequenceClassifier(3, 4, 7, width=8, heads=2, depth=2).eval()
    x, mask = torch.randn(2, 7, 3), torch.ones(2, 7, dtype=torch.bool)
    mask[1, 4:] = False
    noisy = torch.where(mask.unsqueeze(-1), x, 99.0)
    assert torch.equal(model.model(x, mask), model.model(noisy, mask))
    model.model.mask_attention = False  # as published
    assert not torch.allclose(model.model(x, mask)[1], model.model(noisy, mask)[1])


def test_grad_mode_and_inference_agree() -> None:
    model = SequenceClassifier(3, 4, 7, width=8, heads=2, depth=2).eval()
    x, mask = torch.randn(2, 7, 3), torch.ones(2, 7, dtype=torch.bool)
    with torch.no_grad():
        inference = model.model(x, mask)
    assert torch.equal(model.model(x, mask), inference)


@given(
    st.integers(1, 4000).flatmap(
        lambda n: st.tuples(
            st.just(n), *(st.tuples(st.integers(0, n), st.floats(0, 1e6)) for _ in "ab")
        )
    )
)
def test_loss_breaks_ties_of_accuracy_and_nothing_else(case) -> None:
    n, *epochs = case
    (right, loss), (other_right, other_loss) = epochs
    mine, other = (
        score(torch.tensor(r / n).double(), torch.tensor(lost).double(), n)
        for r, lost in ((right, loss), (other_right, other_loss))
    )
    if right != other_right:
        assert (mine > other) == (right > other_right)
    elif abs(loss - other_loss) > 1e-3 and max(loss, other_loss) < 10:
        assert (mine > other) == (loss < other_loss)


@pytest.fixture(scope="module")
def vowels() -> UEA:
    data = UEA("JapaneseVowels", max_length=29)
    data.setup("fit")
    return data


def test_a_validation_part_is_held_out_by_class(vowels: UEA) -> None:
    assert [len(vowels.parts[part]) for part in ("train", "val", "test")] == [216, 54, 370]
    for part in ("train", "val"):
        counts = torch.bincount(vowels.parts[part].tensors[2])
        assert counts.unique().numel() == 1


def test_the_papers_protocol_trains_on_all_of_train_and_selects_on_test() -> None:
    data = UEA("JapaneseVowels", protocol="test")
    data.setup("fit")
    assert len(data.parts["train"]) == 270
    assert data.parts["val"] is data.parts["test"]


def test_scaling_uses_the_training_samples_alone_and_padding_stays_zero(vowels: UEA) -> None:
    x, mask, _ = vowels.parts["train"].tensors
    real = x[mask].double()
    assert torch.allclose(real.mean(0), torch.zeros(12, dtype=torch.double), atol=1e-5)
    assert torch.allclose(real.std(0), torch.ones(12, dtype=torch.double), atol=1e-5)
    assert x[~mask].abs().max() == 0
    assert vowels.parts["test"].tensors[1].sum(1).max() == 29


def test_a_series_longer_than_the_model_is_clipped() -> None:
    data = UEA("JapaneseVowels")
    data.setup("fit")
    assert data.max_length == 26
    assert data.parts["test"].tensors[0].shape == (370, 26, 12)


def test_the_reader_agrees_with_aeon() -> None:
    path = locate("BasicMotions", "TEST", None)
    theirs, labels = load_from_ts_file(str(path))
    ours = read(path)
    assert np.array_equal(np.stack(ours.samples), theirs)
    assert list(ours.labels) == list(labels)


@given(
    st.lists(st.floats(-9, 9) | st.none(), min_size=1, max_size=12).filter(
        lambda values: any(v is not None for v in values)
    )
)
def test_interpolation_keeps_what_is_there_and_stays_between_neighbours(values) -> None:
    row = np.array([[np.nan if v is None else v for v in values]])
    filled = interpolate(row)
    there = ~np.isnan(row)
    assert np.array_equal(filled[there], row[there])
    assert filled.min() >= np.nanmin(row)
    assert filled.max() <= np.nanmax(row)


HEAD = "@problemName X\n@timeStamps false\n@missing true\n@univariate false\n@dimensions 2\n"
HEAD += "@equalLength true\n@seriesLength 3\n@classLabel true a b\n@data\n"
GOOD = HEAD + "1,2,3:4,5,6:a\n2,2,3:4,5,6:a\n3,2,3:4,5,9:b\n1,1,3:4,5,6:b\n"


@pytest.mark.parametrize(
    ("train", "test", "sentence"),
    [
        ("", GOOD, "X_TRAIN.ts holds no series"),
        (HEAD, GOOD, "X_TRAIN.ts holds no series"),
        (HEAD + "?,?,?:1,2,3:a\n", GOOD, "series 0 has no value at all in feature 0"),
        (GOOD + "1,2,3:4,inf,6:a\n", GOOD, "TRAIN.ts: series 4 has an infinite value in feature 1"),
        (GOOD, GOOD + "inf,2,3:4,5,6:a\n", "TEST.ts: series 4 has an infinite value in feature 0"),
        (HEAD + "1,2,3:4,5,6:a\n", GOOD, r"X_TRAIN.ts has 1 class\(es\): classification takes two"),
        (HEAD + "1,2,3:4,5,6:a\n1,2,3:4,5,6:b\n", GOOD, "no class of the 2 samples has two"),
        (HEAD + "1,x,3:4,5,6:a\n", GOOD, "not a readable .ts file: could not convert"),
        (GOOD, HEAD + "1,2,3:4,5,6:c\n", "X_TEST.ts has labels that TRAIN does not: c"),
        (GOOD, HEAD.replace("2\n", "1\n") + "1,2,3:a\n", r"features, not one number"),
        (GOOD, None, "no X/X_TEST.ts in DATA_DIR"),
    ],
)
def test_bad_files_are_told_in_a_sentence(train, test, sentence, tmp_path) -> None:
    folder = tmp_path / "X"
    folder.mkdir()
    (folder / "X_TRAIN.ts").write_text(train)
    if test is not None:
        (folder / "X_TEST.ts").write_text(test)
    with pytest.raises(UserError, match=sentence):
        _load(tmp_path)


def _load(folder: Path) -> None:
    data = UEA("X", data_dir=str(folder))
    _ = data.num_features
    data.setup("fit")


def test_a_data_module_must_say_its_sizes() -> None:
    with pytest.raises(TypeError, match="must define num_features"):
        SequenceData().setup("fit")


def test_the_kernel_slot_replaces_softmax() -> None:
    layer = SelfAttention(8, 2, kernel=AGF)
    assert isinstance(layer.kernel, AGF)
