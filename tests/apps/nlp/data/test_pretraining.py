"""The texts of pre-training: how they are read, packed, kept, and masked."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from attention_nlp.data import packing
from attention_nlp.data.packing import (
    PackedSequences,
    PackingPlan,
    ids_dtype,
    mask_words,
    pack_documents,
)
from attention_nlp.data.pretraining import Pretraining, strip_non_ascii
from attention_nlp.models import checkpoints
from attention_nlp.tokenizer import train_tokenizer
from experiment_kit.errors import UserError
from hypothesis import given
from hypothesis import strategies as st

WORDS = ("red", "green", "blue", "grey", "black", "white", "pink", "gold")


def make_text(number: int, words: int) -> str:
    draw = np.random.default_rng(number)
    return " ".join(WORDS[i] for i in draw.integers(len(WORDS), size=words)) + "."


@pytest.fixture
def texts(tmp_path) -> Path:
    """A folder of two files."""
    place = tmp_path / "data" / "texts"
    place.mkdir(parents=True)
    (place / "a.txt").write_text("\n\n".join(make_text(i, 5 + i % 7) for i in range(60)))
    rows = [{"text": make_text(i, 9), "meta": i} for i in range(60, 90)]
    (place / "b.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return place


def unmask(batch: list[torch.Tensor]) -> list[list[int]]:
    ids, _, _, target = batch
    return torch.where(target == -100, ids, target).tolist()


def make_data(texts: Path, **settings) -> Pretraining:
    settings = {"val_fraction": 0.2, "vocab_size": 60, "max_length": 12, "batch_size": 4} | settings
    return Pretraining("text_files", str(texts.parent), max_tokens_per_char=None, **settings)


def load_epoch(data: Pretraining, epoch: int = 0) -> list[list[torch.Tensor]]:
    loader = data.train_dataloader()
    loader.sampler.set_epoch(epoch)
    return list(loader)


def test_sentences_of_the_documentation_make_documents() -> None:
    data = Pretraining("python_docs", max_documents=3)
    texts = [*data.read_documents()]
    assert data.content[-1] == "3"
    assert [len(text.split()) > 99 for text in texts] == [True] * 3


def test_changed_text_is_packed_again(texts) -> None:
    first = make_data(texts).pack_tokens()
    (texts / "a.txt").write_text("\n\n".join(make_text(i, 8) for i in range(60)))
    assert make_data(texts).pack_tokens() != first


def test_batches_are_whole_masked_anew_and_alike_for_a_seed(texts) -> None:
    data = make_data(texts)
    data.trainer = None
    data.setup("fit")
    first, again, later = load_epoch(data), load_epoch(data), load_epoch(data, epoch=1)
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.equal(first[0][3], later[0][3])
    assert {tuple(part.shape) for items in first for part in items} == {(4, 12)}
    assert all((items[3] != -100).sum(1).eq(3).all() for items in first)
    scored = [next(iter(data.val_dataloader())) for _ in range(2)]
    assert torch.equal(scored[0][0], scored[1][0])


def test_short_epochs_take_the_sequences_in_turn(texts) -> None:
    data = make_data(texts, epoch_sequences=8, batch_size=8)
    data.trainer = None
    data.setup("fit")
    rows = data.splits["train"].sequences
    for epoch in range(2):
        (batch,) = load_epoch(data, epoch)
        assert sorted(unmask(batch)) == sorted(rows[8 * epoch + i].tolist() for i in range(8))


@pytest.mark.parametrize("block", [2, 2**16])
def test_a_curriculum_begins_with_the_shortest_sentences(block, texts, monkeypatch) -> None:
    monkeypatch.setattr(packing, "_SEQUENCES_AT_ONCE", block)
    data = make_data(texts, curriculum="sentence-length")
    data.trainer = None
    data.setup("fit")
    rows, period = data.splits["train"].sequences, data.tokenizer.convert_tokens_to_ids(".")
    counts = [int((row == period).sum()) for row in rows]
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) > 1
    assert sorted(map(tuple, rows)) == sorted(map(tuple, rows.rows))
    assert pickle.loads(pickle.dumps(rows))[0].tolist() == rows[0].tolist()
    for epoch in range(2):
        read = [ids for batch in load_epoch(data, epoch) for ids in unmask(batch)]
        assert read == [row.tolist() for row in rows][: len(read)]


def test_a_checkpoint_holds_the_tokenizer(texts, tmp_path) -> None:
    data = make_data(texts)
    torch.save({"Pretraining": data.state_dict(), "state_dict": {}}, tmp_path / "best.ckpt")
    found = checkpoints.load_run_tokenizer(str(tmp_path / "best.ckpt"))
    sentence = "Grey, Göld ☃ zebra!"
    assert found(sentence, "red")["input_ids"] == data.tokenizer(sentence, "red")["input_ids"]
    assert found.mask_token_id == data.tokenizer.mask_token_id
    assert found.unk_token_id not in found("Göld☃")["input_ids"]  # no keyboard has a snowman
    assert strip_non_ascii("Göld☃") == "Gold"


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
    with pytest.raises(UserError, match=r"no sequence of 12 .* one after each empty line"):
        pack_documents(iter(["red green"] * 9), tokenizer, PackingPlan(12, 0.01), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_the_tokenizer_makes_no_words_of_is_left_out(tmp_path) -> None:
    tokenizer = train_tokenizer("crammed", ["wonderful weather"] * 9, 99)
    good, bad = "wonderful weather wonderful weather", "w e a t h e r q q q q q q q q q q q q"
    pack_documents(iter([good, bad] * 99), tokenizer, PackingPlan(5, 0.5, 0.25), tmp_path / "out")
    rows = PackedSequences(tmp_path / "out" / "train", 5, ids_dtype(tokenizer))
    ids = {int(token) for i in range(len(rows)) for token in rows[i]}
    assert set(tokenizer.convert_ids_to_tokens(list(ids))) == {"wonderful", "weather", "[SEP]"}


@given(st.integers(4, 300), st.floats(0.01, 1.0), st.integers(0, 99))
def test_counts_of_masks_are_exact(length: int, share: float, seed: int) -> None:
    ids = np.arange(100, 100 + length)  # all distinct, none of the words that may be drawn
    changed, target = mask_words(ids, 7, 50, share, np.random.default_rng(seed))
    count, asked = round(share * length), target != -100
    assert asked.sum() == count
    assert (target[asked] == ids[asked]).all()
    assert (changed[~asked] == ids[~asked]).all()
    assert (changed[asked] == ids[asked]).sum() == count - round(0.9 * count)
    drawn = changed[asked & (changed != ids)]
    assert (drawn == 7).sum() >= round(0.8 * count)
    assert ((drawn < 50) | (drawn == 7)).all()
