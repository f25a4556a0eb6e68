"""The report: what it renders, and that it is JSON."""

import json
import math

import pytest
from attention_core.diagnosis import Diagnosis

from tests.core.diagnoses import make_layer, make_report, make_tokens


def test_a_report_is_json_without_nan():
    given = json.loads(json.dumps(make_report().to_dict(), allow_nan=False))
    layer = given["layers"][1]
    assert layer["attention_entropy"] == [1.5, None]
    assert layer["value_output_spectrum"][0] == [[1.0, 2.0], [0.0, 0.0]]
    assert layer["condition_number"] is None
    assert list(layer["steps"]) == ["input", "attention", "residual", "mlp"]
    assert given["leverage"][0]["layer"] == 1
    again = Diagnosis.from_dict(given)
    assert again.to_dict() == given
    assert str(again) == str(make_report())
    assert math.isnan(again.layers[1].attention_entropy[1])


def test_curves_start_at_the_input_of_the_first_layer():
    layers = [make_layer(0), make_layer(1, steps={"input": make_tokens(0.6)})]
    report = make_report(layers=layers)
    assert report.curve("hfc_lfc") == [0.8, 0.6, 0.6]
    assert math.isnan(report.curve("hfc_lfc", step="mlp")[2])
    assert report.curve("hfc_lfc", step="residual")[:2] == [0.8, 0.4]
    for measure, step in (("rank", "mlp"), ("hfc_lfc", "input")):
        with pytest.raises(ValueError, match="token_cosine"):
            report.curve(measure, step)


def test_the_table_fits_80_columns_and_shows_each_layer():
    lines = str(make_report()).splitlines()
    assert max(map(len, lines)) <= 80
    (row,) = (line for line in lines if "blocks.1.attn" in line)
    assert row.split()[2:] == ["0.6", "-0.69", "+0.41", "0.250", "3.0", "0.75", "50%", "25%"]
    assert "It smooths." in lines
    assert repr(make_report()) == str(make_report())  # as a notebook shows it
    assert any(line.split() == ["GFSA", "1", "wK", "0.5", "-0.25"] for line in lines)


def test_a_dataframe_has_one_row_a_layer():
    pytest.importorskip("pandas")
    frame = make_report().to_dataframe()
    names = ["index", "mlp_hfc_lfc", "relative_entropy", "smoothing_share", "bound_attention"]
    assert frame[names].values.tolist() == [[i, 0.6, 0.75, 0.5, 3.0] for i in (0, 1)]


def test_what_is_unknown_is_a_dash():
    layer = make_layer(0, steps={}, changes={}, eigenvalue_shares=None, relative_entropy=[math.nan])
    report = make_report(layers=[layer], leverage=None, notes=[])
    row = next(line for line in str(report).splitlines() if "blocks.0" in line)
    assert row.split()[2:] == ["-"] * 6
