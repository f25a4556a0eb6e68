"""Documents packed into sequences."""

from pathlib import Path

import numpy as np
import pytest
from attention_nlp.data.packing import PackedSequences, PackingPlan, ids_dtype, pack_documents
from attention_nlp.tokenizer import train_tokenizer
from experiment_kit.errors import UserError


def test_documents_follow_each_other_with_separators(tmp_path) -> None:
    documents = [" ".join(["red", "green", "blue"][i % 3 :] * (2 + i % 5)) for i in range(90)]
    tokenizer = train_tokenizer("crammed", documents, 60)
    pack_documents(iter(documents), tokenizer, PackingPlan(12, 0.25, None), tmp_path / "out")
    expected: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for number, document in enumerate(documents):
        held = {3: "val", 7: "test"}.get(number % 8, "train")
        expected[held] += tokenizer(document, add_special_tokens=False)["input_ids"]
        expected[held].append(tokenizer.sep_token_id)
    for name, ids in expected.items():
        rows = PackedSequences(tmp_path / "out" / name, 12, ids_dtype(tokenizer))
        assert len(rows) == len(ids) // 12 > 0
        assert np.concatenate([rows[i] for i in range(len(rows))]).tolist() == ids[: 12 * len(rows)]
    assert not list(tmp_path.glob(".*"))  # nothing half-written is left


def test_a_pack_that_fails_leaves_nothing(tmp_path) -> None:
    tokenizer = train_tokenizer("crammed", ["red"], 60)
    with pytest.raises(UserError, match="fill no sequence of 12 tokens for val: there are too few"):
        pack_documents(iter(["red green"] * 9), tokenizer, PackingPlan(12, 0.01), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_the_tokenizer_makes_no_words_of_is_left_out(tmp_path) -> None:
    tokenizer = train_tokenizer("crammed", ["wonderful weather"] * 9, 99)
    good, bad = "wonderful weather wonderful weather", "w e a t h e r q q q q q q q q q q q q"
    pack_documents(iter([good, bad] * 99), tokenizer, PackingPlan(5, 0.5, 0.25), tmp_path / "out")
    words = {
        tokenizer.convert_ids_to_tokens(int(i)) for row in _rows(tmp_path, tokenizer) for i in row
    }
    assert words == {"wonderful", "weather", "[SEP]"}


def _rows(tmp_path: Path, tokenizer) -> list[np.ndarray]:
    rows = PackedSequences(tmp_path / "out" / "train", 5, ids_dtype(tokenizer))
    return [rows[i] for i in range(len(rows))]
