"""A tokenizer for the tiny recognizers."""

import pytest
from attention_speech.tokenizer import train_tokenizer

from tests.apps.speech.recognizers import TEXTS


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory) -> str:
    """Train a tokenizer of the characters of TEXTS."""
    return str(train_tokenizer(TEXTS, 40, "char", tmp_path_factory.mktemp("tokenizer")))
