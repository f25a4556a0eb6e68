"""an4: both kinds of its archives, and files that are missing or malformed."""

from pathlib import Path

import numpy as np
import pytest
from attention_speech.data import An4
from attention_speech.data.an4 import read_split
from experiment_kit.errors import UserError

from tests.apps.speech.corpora import read_data, write_audio, write_bytes

pytestmark = pytest.mark.usefixtures("workdir")


def write_an4(root: Path, suffix: str = ".sph") -> Path:
    (root / "etc").mkdir(parents=True)
    for split, folder in {"train": "an4_clstk", "test": "an4test_clstk"}.items():
        names = [
            f"{folder}/{who}/an{i}-{who}-b" for who in ("fash", "mblw", "mgah") for i in range(2)
        ]
        (root / "etc" / f"an4_{split}.fileids").write_text("\n".join(names) + "\n")
        form = "{} ({})" if split == "test" else "<s> {} </s> ({})"
        rows = [form.format("ENTER ++NOISE++ five", Path(name).name) for name in names]
        (root / "etc" / f"an4_{split}.transcription").write_text("\n".join(rows) + "\n")
        for name in names:
            path = root / "wav" / f"{name}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if suffix == ".raw":
                write_bytes(path, np.arange(8000, dtype=">i2").tobytes())
            else:
                write_audio(path, np.zeros(8000), format="NIST", subtype="PCM_16")
    return root


@pytest.mark.parametrize("suffix", [".sph", ".raw"])
def test_validation_speakers_are_held_out(suffix, tmp_path: Path) -> None:
    write_an4(tmp_path / "an4", suffix)
    data = read_data(An4("an4", str(tmp_path), token_type="char"))
    speakers = {
        split: {one.speaker for one in items.utterances} for split, items in data.splits.items()
    }
    assert len(speakers["val"]) == 1
    assert speakers["train"] | speakers["val"] == speakers["test"] == {"fash", "mblw", "mgah"}
    assert not speakers["train"] & speakers["val"]
    assert {one.text for one in data.splits["test"].utterances} == {"ENTER FIVE"}
    assert len(data.splits["test"][0][0]) == 8000


def test_missing_and_malformed_files_are_named(tmp_path: Path) -> None:
    root = write_an4(tmp_path / "an4")
    (root / "wav" / "an4_clstk" / "fash" / "an0-fash-b.sph").unlink()
    assert read_split(root, "train").notes == [
        "1 utterance with a transcript but no audio (an0-fash-b): left out"
    ]
    (root / "etc" / "an4_test.transcription").write_text("ENTER FIVE\n")
    with pytest.raises(UserError, match=r"an4_test.transcription, line 1: no \(name\) at its end"):
        read_split(root, "test")
    (root / "etc" / "an4_test.fileids").unlink()
    with pytest.raises(UserError, match=r"an4_test.fileids cannot be read: No such file"):
        read_split(root, "test")
