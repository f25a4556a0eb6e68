"""Synthetic digits: written and read without any file of the user."""

import pytest
from attention_speech.data import SyntheticDigits

from tests.apps.speech.corpora import read_data

pytestmark = pytest.mark.usefixtures("workdir")


def test_synthetic_speech_is_written_and_read(capsys, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    data = read_data(SyntheticDigits("synthetic", num_strings=20))
    assert [len(data.splits[split]) for split in ("train", "val", "test")] == [20, 2, 2]
    assert capsys.readouterr().err == "note: synthetic: spoken by built-in formants\n"
    assert data.tokenizer.decode(data.tokenizer.encode("ZERO NINE")) == "ZERO NINE"
    with pytest.raises(ValueError, match=r"data\.num_strings must be at least 10"):
        SyntheticDigits("synthetic", num_strings=3)
