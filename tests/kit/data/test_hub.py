"""Files of the hub in a cache that is laid out as huggingface_hub's; nothing asks the network."""

from pathlib import Path

import pytest
from experiment_kit.data.hub import HubFiles, fetch_hub_files, find_cached_table
from experiment_kit.errors import UserError

COMMIT = "c0ffee" * 6 + "beef"
FILES = HubFiles("owner/name", ("cola/*.parquet",), COMMIT)


@pytest.fixture
def snapshot(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    repo = tmp_path / "datasets--owner--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs/main").write_text(COMMIT)
    folder = repo / "snapshots" / COMMIT / "cola"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("revision", [COMMIT, "main"])
def test_cached_files_need_no_network(snapshot: Path, revision: str) -> None:
    (snapshot / "train-00000-of-00001.parquet").touch()
    files = HubFiles("owner/name", FILES.patterns, revision)
    assert fetch_hub_files(files) == snapshot.parent
    assert find_cached_table(files, "cola", "train") == [snapshot / "train-00000-of-00001.parquet"]
    assert not find_cached_table(files, "cola", "test")


def test_a_table_counts_as_cached_when_all_of_its_files_are(snapshot: Path) -> None:
    (snapshot / "train-00001-of-00002.parquet").touch()
    assert not find_cached_table(FILES, "cola", "train")
    (snapshot / "train-00000-of-00002.parquet").touch()
    assert [p.name[:11] for p in find_cached_table(FILES, "cola", "train")] == [
        "train-00000",
        "train-00001",
    ]


def test_what_is_not_there_is_a_sentence(snapshot: Path) -> None:
    with pytest.raises(UserError, match=r"^owner/name at c0ffee.* has no cola/\*.parquet$"):
        fetch_hub_files(FILES)
    with pytest.raises(UserError, match=r"owner/other is not cached, and the hub does not give it"):
        fetch_hub_files(HubFiles("owner/other", ("*",)))
