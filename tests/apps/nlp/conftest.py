"""Caches of tokenizers and tokens that end with their test."""

import pytest
from attention_nlp.data import base, pretraining


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(base, "TOKENIZERS", tmp_path / "tokenizers")
    monkeypatch.setattr(pretraining, "TOKENIZERS", tmp_path / "tokenizers")
    monkeypatch.setattr(pretraining, "TOKENS", tmp_path / "tokens")
