"""UEA: series are read, interpolated, scaled, padded and split as in the papers."""

import numpy as np
import pytest
import torch
from attention_sequence.data import UEA, UEAShapes
from attention_sequence.data.uea import interpolate_missing, read_ts_file
from experiment_kit.errors import UserError
from experiment_kit.papers.values import load_table
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def vowels() -> UEA:
    data = UEA("JapaneseVowels", max_length=29)
    data.setup("fit")
    return data


def test_a_validation_part_is_held_out_by_class(vowels: UEA) -> None:
    assert [len(vowels.splits[split]) for split in ("train", "val", "test")] == [216, 54, 370]
    for split in ("train", "val"):
        assert torch.bincount(vowels.splits[split].tensors[2]).unique().numel() == 1


def test_the_papers_protocol_trains_on_all_of_train_and_selects_on_test() -> None:
    data = UEA("JapaneseVowels", protocol="test")
    data.setup("fit")
    assert len(data.splits["train"]) == 270
    assert data.splits["val"] is data.splits["test"]
    assert data.max_length == 26  # in TRAIN; longer series are cut
    assert data.splits["test"].tensors[0].shape == (370, 26, 12)


def test_training_on_the_test_series_takes_an_option_and_warns(capsys) -> None:
    data = UEA("JapaneseVowels", protocol="test", train_split="TEST")
    data.setup("fit")
    assert len(data.splits["train"]) == len(data.splits["test"]) == 370
    assert data.max_length == 29  # the longest series of TEST
    assert "is trained on JapaneseVowels_TEST.ts, on which it is tested" in capsys.readouterr().err
    UEA("JapaneseVowels").setup("fit")
    text = "JapaneseVowels_TEST.ts: 1 series are cut to 26 steps (data.max_length)\n"
    assert capsys.readouterr().err.endswith(text)


def test_scaling_uses_the_training_samples_alone_and_padding_stays_zero(vowels: UEA) -> None:
    x, mask, _ = vowels.splits["train"].tensors
    real = x[mask].double()
    assert torch.allclose(real.mean(0), torch.zeros(12, dtype=torch.double), atol=1e-5)
    assert torch.allclose(real.std(0), torch.ones(12, dtype=torch.double), atol=1e-5)
    assert x[~mask].abs().max() == 0
    assert vowels.splits["test"].tensors[1].sum(1).max() == 29


@given(
    st.lists(st.floats(-9, 9) | st.none(), min_size=1, max_size=12).filter(
        lambda values: any(v is not None for v in values)
    )
)
def test_interpolation_keeps_what_is_there_and_stays_between_neighbours(values) -> None:
    row = np.array([[np.nan if v is None else v for v in values]])
    filled = interpolate_missing(row)
    there = ~np.isnan(row)
    assert np.array_equal(filled[there], row[there])
    assert filled.min() >= np.nanmin(row)
    assert filled.max() <= np.nanmax(row)


HEAD = "@problemName X\n@timeStamps false\n@missing true\n@univariate false\n@dimensions 2\n"
HEAD += "@equalLength true\n@seriesLength 3\n@classLabel true a b\n@data\n"
GOOD = HEAD + "1,2,3:4,5,6:a\n2,2,3:4,5,6:a\n3,2,3:4,5,9:b\n1,1,3:4,5,6:b\n"


@pytest.mark.parametrize(("train", "test", "sentence"), [
    (HEAD + "1,2,3:4,5,6:a\n", GOOD, r"X_TRAIN.ts has 1 class\(es\): classification takes two"),
    (GOOD, HEAD + "1,2,3:4,5,6:c\n", "X_TEST.ts has labels that TRAIN does not: c"),
    (GOOD, HEAD.replace("2\n", "1\n") + "1,2,3:a\n", r"1 features, and X has 2 \(if they have"),
    (HEAD.replace("true a b", "false") + "1,2,3\n", GOOD, "TRAIN.ts has series without a cl"),
    (GOOD, None, "no X/X_TEST.ts in DATA_DIR"),
])  # fmt: skip
def test_bad_files_are_reported_in_a_sentence(train, test, sentence, tmp_path) -> None:
    folder = tmp_path / "X"
    folder.mkdir()
    (folder / "X_TRAIN.ts").write_text(train)
    if test is not None:
        (folder / "X_TEST.ts").write_text(test)
    with pytest.raises(UserError, match=sentence):
        UEA("X", data_dir=str(tmp_path)).setup("fit")


def test_missing_values_and_features_that_are_constant_in_train_are_noted(tmp_path, capsys) -> None:
    (tmp_path / "X").mkdir()
    for split, last in (("TRAIN", "4,4,4"), ("TEST", "7,7,?")):
        (tmp_path / f"X/X_{split}.ts").write_text(f"{HEAD}1,?,?:{last}:a\n1,2,4:{last}:?\n")
    (tmp_path / "X/X_VAL.ts").write_text(f"{HEAD}1,2,3:a\n")
    data = UEA("X", data_dir=str(tmp_path), protocol="test")
    with pytest.raises(UserError, match=r"X_VAL.ts has series of 1 features, and X has 2"):
        data.read_files([tmp_path / "X/X_VAL.ts"])
    splits = data.load_splits("test")
    assert splits["test"].tensors[0][..., 1].unique().tolist() == [3]
    said, text = capsys.readouterr().err, "values are missing and interpolated"
    assert f"X_TRAIN.ts: 2 of 12 {text}\n" in said
    assert f"X_TEST.ts: 4 of 12 {text}, also 1 whole steps at the end of series: cut" in said
    assert "X_TRAIN.ts: 1 features are constant\n" in said
    assert "X_TRAIN.ts has 1 series of a class ? or nan: remove" in said
    assert "X_VAL.ts is not read: a part of TRAIN validates" in said


def test_a_label_that_the_header_does_not_list_is_named_once(tmp_path, capsys) -> None:
    header = HEAD.replace("true a b", "a b").replace("Stamps false", "Stamps true")  # in some files
    (tmp_path / "X.ts").write_text(header + "1,2,3:4,5,6:a\n" + 2 * "1,2,3:4,5,6:A,1\n")
    assert read_ts_file(tmp_path / "X.ts").labels.tolist() == ["a", "A,1", "A,1"]
    text = f"{tmp_path}/X.ts, line 11: A,1 is a class of its own: @classLabel does not list it "
    text += "(if they have no labels, write @classLabel false)\n"
    note = f"note: {tmp_path}/X.ts: time stamps are dropped: steps count as equally spaced\n"
    assert capsys.readouterr().err == f"{note}warning: {text}"


def test_the_sizes_are_those_of_the_papers_table_9() -> None:
    printed = {
        row.label.lower(): (row.values["features"], row.values["classes"], row.values["length"])
        for row in load_table("agf-table-9").rows
    }
    assert {name.lower(): tuple(size) for name, size in UEA.SIZES.items()} == printed


def test_printed_shapes_are_those_of_the_data() -> None:
    shapes, data = UEAShapes("JapaneseVowels"), UEA("JapaneseVowels", max_length=29)
    for size in UEA.LINKED_SIZES:
        assert getattr(shapes, size) == getattr(data, size)
