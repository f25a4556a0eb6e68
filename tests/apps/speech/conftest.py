"""An empty folder to work in, and a tokenizer for the tiny recognizers."""

from pathlib import Path

import pytest
from attention_speech.tokenizer import train_tokenizer

from tests.apps.speech.recognizers import TEXTS


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch) -> Path:
    """Change to an empty folder, without DATA_DIR."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATA_DIR", raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory) -> str:
    """Train a tokenizer of the characters of TEXTS."""
    return str(train_tokenizer(TEXTS, 40, "char", tmp_path_factory.mktemp("tokenizer")))
