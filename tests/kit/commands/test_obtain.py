"""Data sets and weights by one command, without a network."""

from pathlib import Path

import pytest
from experiment_kit.commands import obtain
from experiment_kit.data.download import Download, HubFiles
from experiment_kit.errors import UserError
from experiment_kit.launch.overlays import list_overlays
from experiment_kit.launch.plan import find_data, load_app


@pytest.fixture
def fetched(tmp_path, monkeypatch) -> list:
    """No data is here but what was drawn or ships; what is fetched is noted instead."""
    fetched: list = []
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def fetch_hub_files(files: HubFiles) -> Path:
        if "/" not in files.repo:
            raise UserError("the hub has none")
        fetched.append(files)
        return tmp_path / "commit"

    monkeypatch.setattr(obtain.download, "fetch_hub_files", fetch_hub_files)
    download = lambda *args: fetched.append(args) or ["path"]  # noqa: E731
    monkeypatch.setattr(obtain.download, "download_dataset", download)
    return fetched


@pytest.mark.parametrize("app", ["graph", "nlp", "sequence", "speech", "vision"])
def test_every_data_set_is_here_or_has_a_source(app: str) -> None:
    sources = load_app(app).downloads
    own = {"text_files", "ts_file", "csv_text", "smiles_csv", "wav_folder", "image_folder"}
    for data in list_overlays(app, "data"):
        if not isinstance(place := find_data(app, data), Path):
            assert data in own or data in sources
            assert "set DATA_DIR" in place or "pip install" in place


def test_a_source_is_fetched_or_drawn_into_its_place(fetched, tmp_path, monkeypatch, capsys):
    obtain.obtain_data("heartbeat")
    (files, root) = fetched.pop()
    assert root == tmp_path
    assert [(isinstance(f, Download), f.path) for f in files] == [(True, "Heartbeat")]
    obtain.obtain_data("cola")
    assert fetched.pop().repo == "nyu-mll/glue"
    obtain.obtain_data("ptb")
    assert "ptb.train.txt" in capsys.readouterr().out
    obtain.obtain_data("japanese_vowels")
    assert "japanese_vowels is here" in capsys.readouterr().out
    assert not fetched
    monkeypatch.setattr("attention_sequence.generate.listops.write_dataset", fetched.append)
    obtain.obtain_data("listops")
    assert fetched == [tmp_path]


@pytest.mark.parametrize(("model", "repo", "revision"), [
    ("bert_base", "google-bert/bert-base-uncased", "86b5e0934494"),
    ("cait_xxs24", "timm/cait_xxs24_224.fb_dist_in1k", "main"),
    ("someone/else", "someone/else", "main"),
])  # fmt: skip
def test_weights_are_of_a_backbone_or_timm(model: str, repo: str, revision: str, fetched) -> None:
    obtain.obtain_weights(model)
    files = fetched.pop()
    assert (files.repo, files.kind) == (repo, "model")
    assert files.revision.startswith(revision)
    with pytest.raises(UserError, match=r"no backbone 'bert_bas' \(did you mean .*hub has none"):
        obtain.obtain_weights("bert_bas")
