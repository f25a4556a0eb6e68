"""A run of the command line on synthetic speech, and the files that it writes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from attention_speech.audio import manifest
from attention_speech.data import synthetic

from tests.apps.cases import SPEECH
from tests.apps.contract import find_run


@pytest.fixture(scope="module", autouse=True)
def corpus_folder(tmp_path_factory) -> Iterator[None]:
    """Write one corpus for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("speech")
        patch.setattr(synthetic, "CACHE_DIR", folder)
        patch.setattr(manifest, "CACHE_DIR", folder)
        yield


def test_a_branchformer_averages_epochs_and_writes_its_texts(tmp_path: Path) -> None:
    settings = (
        *("--trainer.max_epochs=3", "--trainer.limit_train_batches=3"),
        *("--model.num_averaged_epochs=2", "--spectral.every_n_steps=0"),
        f"--run.folder={tmp_path}",
    )
    chosen = {"method": "gfsa", "backbone": "branchformer_small"}
    assert SPEECH.run("fit", *settings, **chosen).status == 0
    run = find_run(tmp_path)
    assert len(list((run.checkpoint_folder / "averaged").glob("*"))) == 2
    header, *lines = (run.folder / "hypotheses.txt").read_text().splitlines()
    assert header.split("\t")[-2:] == ["reference", "hypothesis"]
    assert 1 <= len(lines) <= 6
    assert SPEECH.run("predict", *settings, **chosen).status == 0
    batches = torch.load(run.folder / "predictions.pt", weights_only=True)
    texts = dict(pair for batch in batches for pair in batch)
    assert texts
    names = {line.split("\t")[1] for line in lines}
    assert all(name in names and isinstance(text, str) for name, text in texts.items())
