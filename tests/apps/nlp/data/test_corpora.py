"""The corpora of causal language modelling: what is read and refused, and whole runs on them."""

import json
import math
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from attention_nlp import APP
from attention_nlp.data import Corpus, PythonDocsCorpus
from attention_nlp.data.corpora import TextRow, tokenize_rows
from attention_nlp.data.docs import list_sentences
from attention_nlp.tokenizer import train_tokenizer
from experiment_kit.app_cli import AppCLI
from experiment_kit.cli import run_app
from experiment_kit.errors import UserError
from hypothesis import given
from hypothesis import strategies as st

from tests.apps.cases import NLP
from tests.apps.contract import find_run

TEXT = " = A title = \n\n A cat sat on <unk> mats .\n It did .\n \n the end"


def make_corpus(folder: Path, name: str = "wikitext-2-raw-v1", **options) -> Corpus:
    options = {"max_length": 8, "vocab_size": 261, "data_dir": str(folder)} | options
    return Corpus(name, **options)


def write_files(folder: Path, pattern="wikitext-2-raw/wiki.{}.raw", text: str = TEXT) -> Path:
    for split in ("train", "valid", "test"):
        path = folder / pattern.format(split)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(("name", "pattern"), [
    ("ptb", "ptb/ptb.{}.txt"),
    ("ptb", "simple-examples/data/ptb.{}.txt"),
    ("wikitext-2-raw-v1", "wikitext-2-raw/wiki.{}.raw"),
    ("wikitext-2-v1", "text/wikitext-2/{}.txt"),
    ("wikitext-103-v1", "wikitext-103/wiki.{}.tokens"),
])  # fmt: skip
def test_rows_are_those_of_datasets_in_every_layout(name, pattern, tmp_path, monkeypatch) -> None:
    found = make_corpus(write_files(tmp_path, pattern), name).read_rows("valid")
    lines = [line if name != "ptb" else line.strip() for line in TEXT.split("\n")]
    rows = [(f"{line}\n", len(line.split()) + 1) if line.strip() else ("", 0) for line in lines]
    assert found == [TextRow(*row) for row in rows]
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    assert Corpus.find_data(name) == tmp_path / pattern.format("train")


def test_rows_of_parquet_end_where_those_of_text_do(tmp_path) -> None:
    (tmp_path / "wikitext-2-raw-v1").mkdir()
    table = pa.Table.from_pylist([{"text": " A line .\n"}, {"text": ""}])
    pa.parquet.write_table(table, tmp_path / "wikitext-2-raw-v1" / "validation.parquet")
    assert make_corpus(tmp_path).read_rows("valid") == [TextRow(" A line .\n", 4), TextRow("", 0)]


@pytest.mark.parametrize(
    ("end", "blank", "words"), [("", False, 16), ("\n", False, 20), ("\n", True, 22)]
)
def test_words_are_those_of_the_text_that_is_scored(end, blank, words, tmp_path) -> None:
    data = make_corpus(write_files(tmp_path), line_end=end, blank_lines=blank, batch_size=3)
    data.setup("test")
    ids, mask, _, target, counts = zip(*data.test_dataloader(), strict=True)
    assert sum(int(part.sum()) for part in counts) == words
    tokens = data.tokenizer("".join(row.text for row in data.read_rows("test")))["input_ids"]
    assert sum(int((part != -100).sum()) for part in target) == len(tokens)
    assert max(part.shape[1] for part in ids) == 8
    assert all(part.any(1).all() for part in mask)


@pytest.mark.parametrize("protocol", ["validation", "released"])
def test_only_the_sound_protocol_reads_the_test_split(protocol, tmp_path) -> None:
    write_files(tmp_path)
    (tmp_path / "wikitext-2-raw/wiki.test.raw").write_text(f"{TEXT} and more")
    data = make_corpus(tmp_path, protocol=protocol)
    data.setup("fit")
    data.setup("test")
    assert (data.splits["val"] is data.splits["test"]) == (protocol == "released")
    blocks = len("".join(row.text for row in data.read_rows("valid"))) // 8
    assert (len(data.splits["val"]) == blocks) == (protocol == "released")


@pytest.mark.parametrize(("options", "sentence"), [
    ({"max_length": 90}, "train split .* has no 90 tokens in 1,000 rows, .* lower"),
    ({"stride": 8}, "data.stride must be from 1 to .*, which is 7, got 8"),
])  # fmt: skip
def test_lengths_that_do_not_fit_are_one_sentence(options, sentence, tmp_path) -> None:
    with pytest.raises((UserError, ValueError), match=sentence):
        make_corpus(write_files(tmp_path), **options).setup("fit")


train_character_tokenizer = cache(lambda: train_tokenizer("gpt2", [], 261))


@given(
    sizes=st.lists(st.integers(0, 9), max_size=30),
    block=st.integers(2, 31),
    repeats=st.sampled_from([1, 40, 90]),
)
def test_released_grouping_drops_the_remainder_of_every_thousand_rows(sizes, block, repeats):
    rows = [TextRow("abcdefghi"[:size], size % 4) for size in sizes * repeats]
    tokenizer, expected = train_character_tokenizer(), []
    for start in range(0, len(rows), 1000):
        flat = tokenizer("".join(row.text for row in rows[start : start + 1000]))["input_ids"]
        expected += flat[: len(flat) // block * block]
    assert tokenize_rows(rows, tokenizer, block).ids.tolist() == expected
    whole = tokenize_rows(rows, tokenizer)
    assert whole.ids.tolist() == tokenizer("".join(row.text for row in rows))["input_ids"]
    assert whole.num_words.sum() == sum(row.num_words for row in rows if row.text)


SENTENCE = "the cat sat on the mat . "
NARROW = {"n_layer": 1, "n_embd": 24, "n_head": 3, "n_positions": 16}


def fit_arguments(folder: Path, *extra: str) -> list[str]:
    """A tiny GPT on bytes, with GFSA, on a text that is easy to learn."""
    write_files(folder, text=f"{SENTENCE * 4}\n\n{SENTENCE}\n")
    init = {"data_dir": folder, "max_length": 16, "batch_size": 3}
    fixed = {f"data.init_args.{key}": value for key, value in init.items()}
    fixed |= {"model.options": json.dumps(NARROW), "run.folder": folder / "runs"}
    fixed |= {"trainer.max_epochs": 4, "trainer.accelerator": "cpu", "spectral.every_n_steps": 2}
    fixed |= {"trainer.enable_progress_bar": "false", "model.filter.init_args.K": 9}
    chosen = {"data": "wikitext2", "backbone": "gpt_tiny_bytes", "recipe": "clm_scratch"}
    given = [f"--{key}={value}" for key, value in fixed.items()]
    return ["fit", *NLP.arguments(*given, *extra, **chosen, method="gfsa")]


def test_a_run_reports_what_a_literal_loop_over_the_test_split_gives(tmp_path) -> None:
    args = fit_arguments(tmp_path)
    run_app(APP, args)
    run = find_run(tmp_path / "runs")
    result = run.read_result()
    assert (result["protocol"], result["weights_source"]) == ("validation", "random")
    cli = AppCLI(APP, args)
    module = cli.parser.instantiate_classes(cli.config).fit.model
    best = torch.load(run.checkpoint_folder / "best.ckpt", weights_only=True)
    module.load_state_dict(best["state_dict"])
    network = module.model.double().eval()
    data = make_corpus(tmp_path, max_length=16)
    text = data.tokenizer("".join(row.text for row in data.read_rows("test")))["input_ids"]
    ids, total = [data.eos_token_id, *text], 0.0
    for place in range(1, len(ids)):
        start = 8 * max(0, math.ceil((place + 1 - 16) / 8))
        with torch.no_grad():
            logits = network(torch.tensor([ids[start:place]])).logits[0, -1]
        total -= logits.log_softmax(-1)[ids[place]].item()
    words = len(SENTENCE.split()) * 5 + 2
    found = result["metrics"]
    assert found["test/perplexity"] == pytest.approx(math.exp(total / len(text)), rel=1e-4)
    assert found["test/word_perplexity"] == pytest.approx(math.exp(total / words), rel=1e-3)
    assert found["last/perplexity"] < 200  # 261 at the start


def test_the_corpus_of_the_documentation_has_each_sentence_in_one_split() -> None:
    data = PythonDocsCorpus("docs_corpus")
    splits = {name: [row.text for row in data.read_rows(name)] for name in data.FILE_SPLITS}
    rows = [text.removesuffix("\n") for texts in splits.values() for text in texts]
    assert sorted(rows) == sorted(list_sentences())
    assert len(splits["valid"]) == pytest.approx(len(rows) / 10, abs=1)
    assert len(splits["test"]) == pytest.approx(len(rows) / 10, abs=1)
