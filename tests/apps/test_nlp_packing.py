"""The texts of pre-training: how they are read, packed, kept, and asked for."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from attention_nlp import vocabulary
from attention_nlp.data import pretraining
from attention_nlp.data.packing import Packed, Plan, dtype, pack
from attention_nlp.data.pretraining import Pretraining
from attention_nlp.data.sources import ascii_only, folder
from attention_nlp.models import checkpoint
from experiment_kit.errors import UserError

WORDS = ("red", "green", "blue", "grey", "black", "white", "pink", "gold")


def text(number: int, words: int) -> str:
    draw = np.random.default_rng(number)
    return " ".join(WORDS[i] for i in draw.integers(len(WORDS), size=words)) + "."


@pytest.fixture
def texts(tmp_path, monkeypatch) -> Path:
    """A folder of two files, and caches of its own."""
    monkeypatch.setattr(pretraining, "TOKENS", tmp_path / "tokens")
    monkeypatch.setattr(pretraining, "TOKENIZERS", tmp_path / "tokenizers")
    place = tmp_path / "data" / "texts"
    place.mkdir(parents=True)
    (place / "a.txt").write_text("\n\n".join(text(i, 5 + i % 7) for i in range(60)))
    rows = [{"text": text(i, 9), "meta": i} for i in range(60, 90)]
    (place / "b.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return place


def made(texts: Path, **settings) -> Pretraining:
    settings = {"share": 0.2, "vocabulary": 60, "max_length": 12, "batch_size": 4} | settings
    return Pretraining("text_files", str(texts.parent), trash=None, **settings)


def train(data: Pretraining, epoch: int = 0) -> list[list[torch.Tensor]]:
    loader = data.train_dataloader()
    loader.sampler.set_epoch(epoch)
    return list(loader)


def test_documents_follow_each_other_with_separators(texts, tmp_path) -> None:
    documents = list(folder(texts).documents())
    tokenizer = vocabulary.train("crammed", documents, 60)
    pack(iter(documents), tokenizer, Plan(12, 0.25, None), tmp_path / "out")
    expected: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for number, document in enumerate(documents):
        held = {3: "val", 7: "test"}.get(number % 8, "train")
        expected[held] += tokenizer(document, add_special_tokens=False)["input_ids"]
        expected[held].append(tokenizer.sep_token_id)
    for name, ids in expected.items():
        rows = Packed(tmp_path / "out" / name, 12, dtype(tokenizer))
        assert len(rows) == len(ids) // 12 > 0
        assert np.concatenate([rows[i] for i in range(len(rows))]).tolist() == ids[: 12 * len(rows)]
    assert not list(tmp_path.glob(".*"))  # nothing half-written is left


def test_a_pack_that_fails_leaves_nothing(texts, tmp_path) -> None:
    tokenizer = vocabulary.train("crammed", ["red"], 60)
    with pytest.raises(
        UserError, match="no whole sequence of 12 tokens for val: there are too few"
    ):
        pack(iter(["red green"] * 9), tokenizer, Plan(12, 0.01), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_the_tokenizer_makes_no_words_of_is_left_out(tmp_path) -> None:
    tokenizer = vocabulary.train("crammed", ["wonderful weather"] * 9, 99)
    good, bad = "wonderful weather wonderful weather", "w e a t h e r q q q q q q q q q q q q"
    pack(iter([good, bad] * 99), tokenizer, Plan(5, 0.5, 0.25), tmp_path / "out")
    words = {
        tokenizer.convert_ids_to_tokens(int(i)) for row in _rows(tmp_path, tokenizer) for i in row
    }
    assert words == {"wonderful", "weather", "[SEP]"}


def _rows(tmp_path: Path, tokenizer) -> list[np.ndarray]:
    rows = Packed(tmp_path / "out" / "train", 5, dtype(tokenizer))
    return [rows[i] for i in range(len(rows))]


def test_text_is_packed_once_and_again_when_it_changed(texts, monkeypatch) -> None:
    first = made(texts).tokens()
    monkeypatch.setattr(pretraining, "pack", lambda *_: pytest.fail("packed again"))
    assert made(texts).tokens() == first
    monkeypatch.undo()
    monkeypatch.setattr(pretraining, "TOKENS", first.parent)
    (texts / "a.txt").write_text("\n\n".join(text(i, 8) for i in range(60)))
    assert made(texts).tokens() != first


def test_batches_are_whole_masked_anew_and_alike_for_a_seed(texts) -> None:
    data = made(texts)
    data.trainer = None
    data.setup("fit")
    first, again, later = train(data), train(data), train(data, epoch=1)
    same = [
        torch.equal(a, b)
        for x, y in zip(first, again, strict=True)
        for a, b in zip(x, y, strict=True)
    ]
    assert all(same)
    assert not torch.equal(first[0][3], later[0][3])
    assert {tuple(part.shape) for items in first for part in items} == {(4, 12)}
    assert all((items[3] != -100).sum(1).eq(3).all() for items in first)
    scored = [next(iter(data.val_dataloader())) for _ in range(2)]
    assert torch.equal(scored[0][0], scored[1][0])


def test_short_epochs_take_the_sequences_in_turn(texts) -> None:
    data = made(texts, epoch=8, batch_size=8)
    data.trainer = None
    data.setup("fit")
    rows = data.parts["train"].sequences

    def unmasked(epoch: int) -> set[tuple[int, ...]]:
        ((ids, _, _, target),) = train(data, epoch)
        return set(map(tuple, torch.where(target == -100, ids, target).tolist()))

    for epoch in range(2):
        assert unmasked(epoch) == {tuple(rows[i].tolist()) for i in range(8 * epoch, 8 * epoch + 8)}


def test_a_checkpoint_holds_the_tokenizer(texts, tmp_path) -> None:
    data = made(texts)
    torch.save({"Pretraining": data.state_dict(), "state_dict": {}}, tmp_path / "best.ckpt")
    found = checkpoint.tokenizer(str(tmp_path / "best.ckpt"))
    sentence = "Grey, Göld ☃ zebra!"
    assert found(sentence, "red")["input_ids"] == data.tokenizer(sentence, "red")["input_ids"]
    assert found.mask_token_id == data.tokenizer.mask_token_id
    assert found.unk_token_id not in found("Göld☃")["input_ids"]  # no keyboard has a snowman
    assert ascii_only("Göld☃") == "Gold"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "c.jsonl",
            b'{"text": "a"}\n{"words": "b"}',
            r'c\.jsonl, line 2: no JSON object with "text"',
        ),
        ("c.jsonl", b"{", r"c\.jsonl, line 1: no JSON object"),
        ("c.txt", b"caf\xe9", r"c\.txt, line 1, byte 3: the text is not UTF-8"),
    ],
)
def test_a_wrong_file_is_told(texts, name, content, sentence) -> None:
    (texts / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        made(texts).tokens()


def test_absent_texts_are_told(texts, monkeypatch) -> None:
    monkeypatch.delenv("DATA_DIR", raising=False)
    with pytest.raises(UserError, match="no texts: set DATA_DIR"):
        _ = Pretraining("text_files").source
    with pytest.raises(UserError, match=r"no folder books \(data.files\) in DATA_DIR"):
        _ = made(texts, files="books").source
    (texts.parent / "empty").mkdir()
    with pytest.raises(UserError, match=r"no \.txt or \.jsonl file in"):
        _ = made(texts, files="empty").source


@pytest.mark.parametrize("wrong", [{"masked": 0.0}, {"limit": 0}, {"epoch": -1}, {"share": 0.6}])
def test_arguments_out_of_range_are_told(texts, wrong) -> None:
    with pytest.raises(ValueError, match=f"data.{next(iter(wrong))}"):
        made(texts, **wrong)


@pytest.mark.parametrize(
    ("architecture", "size", "least"), [("crammed", 20, 31), ("gpt2", 256, 261)]
)
def test_a_vocabulary_that_single_characters_overfill_is_told(architecture, size, least) -> None:
    with pytest.raises(
        UserError, match=rf"data.vocabulary must be at least {least}, .* got {size}"
    ):
        vocabulary.train(architecture, ["the quick brown fox"], size)
    assert len(vocabulary.train(architecture, ["the quick brown fox"], least)) == least
