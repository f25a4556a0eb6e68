"""Caches of all apps: a file that was cut, changed, zeroed or removed is made anew."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from attention_graph.data.graph_cache import EncodingOptions, MoleculeSource, encode_source
from attention_graph.data.graph_store import GraphStore
from attention_graph.data.smiles_files import featurize_row, read_csv_rows
from attention_nlp.data.packing import SPLITS
from attention_nlp.data.pretraining import Pretraining
from attention_nlp.tokenizer import train_cached_tokenizer
from attention_speech.audio import Transcript, build_manifest
from attention_speech.synthesis.corpus import make_corpus
from attention_speech.tokenizer import Tokenizer, train_tokenizer
from experiment_kit.data.folders import MANIFEST

TEXTS = ["red green blue", "gold and grey", "black, white or pink"] * 30


def encode_graphs() -> Any:
    path = Path("a.csv")
    path.write_text("smiles,y\n" + "".join(f"{'C' * n}O,{n}\n" for n in range(1, 5)))
    source = MoleculeSource(
        "tiny", (path,), lambda: read_csv_rows(path, ("smiles",), ("y",)), featurize_row
    )
    store = GraphStore(encode_source(source, EncodingOptions()))
    return [(graph.x.tolist(), graph.row.tolist()) for graph in store], store.summary


def read_manifest() -> Any:
    if not Path("a.wav").exists():
        soundfile.write("a.wav", np.full(1600, 0.1), 16000)
    return build_manifest("tiny", {"a": Path("a.wav")}, {"a": Transcript("ONE", "x")})


def pack_tokens() -> Any:
    folder = Path("data/texts")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.txt").write_text("\n\n".join(TEXTS))
    settings = {"val_fraction": 0.2, "vocab_size": 60, "max_length": 12}
    data = Pretraining("text_files", "data", max_tokens_per_char=None, **settings)
    packed = data.pack_tokens()
    return [(packed / split).read_bytes() for split in SPLITS], data.tokenizer.get_vocab()


def write_corpus() -> Any:
    folder = make_corpus(Path("runs"), 10)
    files = sorted(path for path in folder.rglob("*.*") if path.parent != folder)
    return [path.read_bytes() for path in files]


CACHES: dict[str, Callable[[], Any]] = {
    "graphs": encode_graphs,
    "speech manifest": read_manifest,
    "speech tokenizer": lambda: Tokenizer(train_tokenizer(TEXTS, 40, "char", Path("runs"))).pieces,
    "synthetic speech": write_corpus,
    "tokens": pack_tokens,
    "tokenizer of texts": lambda: train_cached_tokenizer(
        Path("runs"), "bert", TEXTS, 60, TEXTS
    ).get_vocab(),
}


def flip_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "cut at a row": lambda content: content[: len(content) // 48 * 24],
    "cut": lambda content: content[: len(content) // 2 + 1],
    "flipped": flip_bit,
    "zeroed": lambda content: bytes(len(content)),
    "empty": lambda _: b"",
    "missing": lambda _: None,
}


@pytest.mark.parametrize(("cache", "damage"), [
    *(("tokenizer of texts", damage) for damage in DAMAGE),  # the manifest is of all caches
    *((cache, "flipped") for cache in CACHES if cache != "tokenizer of texts"),
])  # fmt: skip
def test_a_damaged_file_is_made_anew(cache, damage, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    build = CACHES[cache]
    expected = build()
    everything = sorted(Path("runs").rglob("*"))
    files = [path for path in everything if path.is_file() and path.suffix != ".lock"]
    written = [path.stat().st_ino for path in files]
    capsys.readouterr()
    assert build() == expected
    assert [path.stat().st_ino for path in files] == written  # once
    assert not capsys.readouterr().err
    assert files
    for path in files[:: len(files) // 6 + 1]:
        content = DAMAGE[damage](path.read_bytes())
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        assert build() == expected
        (line,) = [text for text in capsys.readouterr().err.splitlines() if "anew" in text]
        assert path.name in line or path.name == MANIFEST  # which may tell another size now
        assert build() == expected
        assert "anew" not in capsys.readouterr().err
