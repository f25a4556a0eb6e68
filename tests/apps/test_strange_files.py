"""Healthy files as people have them: each reader reads them rightly, or says why not."""

import codecs
import math
from pathlib import Path

import pytest
from attention_graph.data import SmilesCSV
from attention_graph.data.smiles_files import read_csv_rows
from attention_nlp.data import CsvText, Devign, Glue, SuperGlue
from attention_nlp.data.encoding import Example, encode_texts
from attention_nlp.data.pretraining import read_text_files
from attention_nlp.tokenizer import train_tokenizer
from attention_sequence.data.listops import read_expressions
from attention_sequence.data.retrieval import read_pairs
from attention_sequence.data.text import read_reviews
from attention_sequence.data.uea import read_ts_file
from attention_speech.audio import Transcript
from attention_speech.data import librispeech, wav_folder
from experiment_kit.errors import UserError

from tests.apps.speech import corpora


def read_recordings(path: Path) -> list[tuple[str, str]]:
    for name in "ab":
        (path.parent / f"{name}.wav").touch()
    return [*wav_folder.read_index(path, "file", "text").items()]


def read_molecules(path: Path) -> list[tuple[str, float]]:
    return [record.content for record in read_csv_rows(path, ("smiles",), ("y", "target"))]


def read_examples(data: type, name: str):
    def read(path: Path) -> list[tuple]:
        root = path.parents[0 if name == "devign" else 1]
        return [tuple(one) for one in data(name, data_dir=str(root)).read_split("train")]

    return read


def read_series(path: Path) -> list[tuple[str, list[list[float]]]]:
    found = read_ts_file(path)
    return [(y, x.tolist()) for y, x in zip(found.labels, found.series, strict=True)]


def read_sequences(read):
    def read_all(path: Path) -> list[tuple]:
        texts, labels = read(path)
        rows = ((int(label), texts[row]) for row, label in enumerate(labels))
        return sorted((y, *map(bytes, x if isinstance(x, tuple) else [x])) for y, x in rows)

    return read_all


def read_transcripts(path: Path) -> dict[str, Transcript]:
    corpora.write_noise(path.parent / "5-1-0.flac", 0.5)
    return [one.text for one in librispeech.read_folder("x", path.parent).utterances]


HEAD = "@problemName X\n@timeStamps false\n@classLabel true a b\n@data\n"
STAMPS = HEAD.replace("Stamps false", "Stamps true")
LINES = {  # reader by name, file, content, reading
    "csv_text": (lambda path: CsvText(data_dir=str(path.parent), file=path.name).train_rows,
                 "texts.csv", "text,label\na\u00e9,x\nb,y\n", [["x", "a\u00e9"], ["y", "b"]]),
    "wav_folder": (read_recordings, "index.csv", "file,text\na.wav,\u00e9\nb.wav,B\n",
                   [("a.wav", "\u00e9"), ("b.wav", "B")]),
    "smiles_csv": (read_molecules, "a.csv", "smiles,y,name\nCC,1,\u00e9\nC,2,b\n",
                   [("CC", 1.0), ("C", 2.0)]),
    "smi": (lambda path: SmilesCSV().read_files([path])[0], "a.smi", "CCO \u00e9\nC\n",
            ["CCO", "C"]),
    "sst2": (read_examples(Glue, "sst2"), "SST-2/train.tsv", "sentence\tlabel\n\u00e9 a\t1\nb\t0\n",
             [("\u00e9 a", None, 1), ("b", None, 0)]),
    "cb": (read_examples(SuperGlue, "cb"), "CB/train.jsonl",
           '{"premise": "\u00e9", "hypothesis": "b", "label": "neutral"}\n', [("\u00e9", "b", 2)]),
    "devign": (read_examples(Devign, "devign"), "train.jsonl", '{"func": "\u00e9", "target": 1}\n',
               [("\u00e9", None, 1)]),
    "text_files": (lambda path: [*read_text_files(path.parent)], "a.txt", "\u00e9\nb\n",
                   ["\u00e9\nb"]),
    "json_texts": (lambda path: [*read_text_files(path.parent)], "a.jsonl",
                   '{"text": "\u00e9"}\n', ["\u00e9"]),
    "uea": (read_series, "X.ts", f"{HEAD}1,2:3,4:a\u00e9\n",
            [("a\u00e9", [[1.0, 2.0], [3.0, 4.0]])]),
    "librispeech": (read_transcripts, "5-1.trans.txt", "5-1-0 one \u00e9\n", ["ONE \u00c9"]),
    "listops": (read_sequences(read_expressions), "a.tsv", "Source\tTarget\n[MAX 4 7 ]\t7\n",
                [(7, b"\x0a\x04\x07\x0e")]),
    "text": (read_sequences(lambda path: read_reviews(path.parent, "train")), "imdb_train.tsv",
             "0\t1\t\u00e9\n1\t2\tb\n", [(0, "\u00e9".encode()), (1, b"b")]),
    "retrieval": (read_sequences(read_pairs), "a.tsv", "1.0\ta\tb\t\u00e9\tc\n0\tc\td\tx\ty\n",
                  [(0, b"x", b"y"), (1, "\u00e9".encode(), b"c")]),
}  # fmt: skip
ENCODINGS = {
    "mark": lambda text: codecs.BOM_UTF8 + text.encode(),
    "windows": lambda text: text.replace("\n", "\r\n").encode(),
    "no end": lambda text: text.removesuffix("\n").encode(),
    "blank lines": lambda text: (text + "\n\n").encode(),
    "utf-16": lambda text: text.encode("utf-16"),
    "utf-16 without mark": lambda text: text.encode("utf-16-be"),
    "latin-1": lambda text: text.encode("latin-1"),
}
BYTES = ("listops", "text", "retrieval")  # whose texts are bytes, in whatever encoding


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("reader", LINES)
def test_the_encoding_of_a_file_does_not_change_its_reading(reader, encoding, tmp_path) -> None:
    read, name, text, right = LINES[reader]
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(ENCODINGS[encoding](text))
    sentences = {"utf-16 without mark": " NUL", "latin-1": "character .* not UTF-8"}
    if reader in BYTES:
        sentences = dict.fromkeys(("utf-16", "utf-16 without mark"), "cells|NUL")
    if encoding in sentences:
        with pytest.raises(UserError, match=f"{path.name}.*({sentences[encoding]})"):
            read(path)
    elif encoding != "latin-1":
        assert read(path) == right


STRANGE = [  # reader, content, its reading or sentence
    ("csv_text", "text,label,,\na,b,,\nWell, I do,pos,\n", "3: 4 cells, not 2: put .*name all"),
    ("csv_text", "text,label,Unnamed: 2\na,b,\nWell, I do,b\n", "line 3: 3 cells, not 2"),
    ("csv_text", ",Unnamed: 0,label,text,\n0,0,b,a,\n", [["b", "a"]]),
    ("csv_text", 'text, label\n"a, b" , "pos"\nb,neg,,\n,\n', [["pos", "a, b"], ["neg", "b"]]),
    ("csv_text", 'text,label\n"say ""a""" ,x\n', [["x", 'say "a"']]),
    ("csv_text", 'text,label\n"a\nb",x\nc,y,z\n', "line 4: 3 cells, not 2"),
    ("csv_text", '\ufeff"text";"label"\n"a";"b"\n', "texts.csv is separated by ';'"),
    ("csv_text", "text,label,label\na,b,c\n", "texts.csv has 2 columns 'label'"),
    ("csv_text", f"text,label\n{'a' * 200_000},b\n", [["b", "a" * 200_000]]),
    ("csv_text", 'text,label\na,b\n"c,d\ne,f\n', "line 3: unexpected end of data"),
    ("csv_text", 'text,label\n"So" he said,b\n', "line 2: ',' expected after '\"': put a text"),
    ("csv_text", "text,label\nx,\n", "texts.csv, line 2: label is empty"),
    ("csv_text", "text,label\na,b\n\ufefftext, label\n", "line 3 is the header again: remove it"),
    ("csv_text", "text,label\nNA,nan\n", [["nan", "NA"]]),
    ("csv_text", "text,label\n", "texts.csv has no rows"),
    ("csv_text", "", "texts.csv is empty"),
    ("wav_folder", "path,text\na.wav,a\n", "no column 'file' .data.*, but path, text$"),
    ("wav_folder", "file,text\nc.wav,a\n", "index.csv, line 2: c.wav does not exist"),
    ("wav_folder", "file,text\na.wav,a\n../data/a.wav,b\n", "line 3: ../data/a.wav is named twice"),
    ("smiles_csv", 'y, smiles\n\n1e0,"CC" \n2\n3,C\n', [("CC", 1.0), ("", 2.0), ("C", 3.0)]),
    ("smi", "", "a.smi has no SMILES"),
    ("sst2", "sentence \tlabel\nNA\t1\t\n\"So\ta\n", "the label 'a' is none of 0, 1"),
    ("sst2", "sentence\tlabel\n\"So\u2028\x85\t1\t \n", [('"So\u2028\x85', None, 1)]),
    ("sst2", "sentence\tlabel\t\na\t1\t\na\tb\t1\n", "line 3: 3 cells, not 2: a tab"),
    ("sst2", "sentence\tlabel\tlabel\na\t1\t0\n", "train.tsv has 2 columns 'label': rename one"),
    ("uea", HEAD + "1,2: A b?\n# May\n\n% June\n2,1:nan\n",
     [("A b?", [[1, 2]]), ("nan", [[2, 1]])]),
    ("uea", HEAD.replace("true a b", "false") + "1,2\n", [("", [[1, 2]])]),
    ("uea", STAMPS + "(0,1),(1,2):(2024-01-01 00:00,4),(5,5):(a,b)\n",
     [("(a,b)", [[1, 2], [4, 5]])]),
    ("uea", STAMPS + "(0,1,2),(1,2,3):a\n", "is no series"),
    ("uea", HEAD.replace("@class", "@TARGET"), "line 3: its targets are numbers, not classes"),
    ("uea", HEAD + "1,2\n", "X.ts, line 5 is no series: no value, or no ':' and"),
    ("uea", HEAD + "1,2:a\n1,2:3,4:a\n", "line 6: 2 features, not 1 as in the first series"),
    ("uea", HEAD + "1,2:a\n1,2,3:a\n", [("a", [[1, 2]]), ("a", [[1, 2, 3]])]),
    ("uea", HEAD + "1,2:3:a\n", r"line 5 is no series: features of \[1, 2\] steps"),
    ("uea", HEAD + "?,NaN:1,2:a\n", "line 5, feature 0 has no value, or one beyond 3e38"),
    ("uea", HEAD + "1,2:4,inf:a\n", "line 5, feature 1 has no value, or one beyond 3e38"),
    ("uea", HEAD + "1,,2:a\n", "X.ts, line 5 is no series: could not convert"),
    ("uea", HEAD.upper() + "1, 2 : 3, 4 : a\n", [("a", [[1, 2], [3, 4]])]),
    ("uea", HEAD, "X.ts holds no series"),
    ("json_texts", '{"text": null}\n', 'a.jsonl, row 1: no JSON object with a text "text"'),
    ("json_texts", '{"text": "a"}\n["b"]\n', "a.jsonl, line 2: no JSON object"),
    ("json_texts", '{"text": "\\uD800"}\n', "a.jsonl, line 1: not JSON .*surrogates not allowed"),
    ("json_texts", '{"text": "\\ud83d\\ude00"}\n', ["\U0001f600"]),
    ("text_files", "a\r\n \r\n\r\nb\rc", ["a", "b\rc"]),
    ("text_files", "a\n" * 9000 + "b\0", "a.txt, line 9001 has characters NUL.* zip have"),
    ("csv_text", '{"text": "a", "label": "b"}\n', "texts.csv is JSON: save it as csv"),
    ("text_files", "a\rb\r\rc\r", ["a\nb", "c"]),
    ("smiles_csv", "smiles,target\nCC,1e400\nC,1e39\n", [("CC", math.inf), ("C", 1e39)]),
    ("csv_text", "sep=,\ntext,label\na,b\n", [["b", "a"]]),
    ("csv_text", "text,label\ra,x\rb,y\r", [["x", "a"], ["y", "b"]]),
    ("listops", "Source\tTarget\n[MAX 4 ]\t4\t\n", [(4, b"\x0a\x04\x0e")]),
    ("listops", "Source\tTarget\n( ( [MAX\n", "row 2 has 1 cells, not 2: Source, Target"),
    ("listops", "Source\tTarget\n[FIRST 3 ]\t3\n", r"row 2 has the unknown token '\[FIRST'"),
    ("listops", "Source\tTarget\n[MAX 1 ]\t10\n", "row 2 has label '10', not 0 to 9"),
    ("listops", "Target\tSource\n", r"has the header \['Target', 'Source'\]"),
    ("listops", "Source\tTarget\n", "a.tsv holds no expression"),
    ("listops", "Source\tTarget\n( )\t7\n", "row 2 has no expression"),
    ("text", "1\t4\ta\tb\n", "row 1: 4 cells, not 3: a tab .* or CR ends"),
    ("text", "1\t4_9\t\n", "row 1 has no text"),
    ("retrieval", "1\ta\tb\tx\ty\t\r\n0\tc\td\tx\ty\n", [(0, b"x", b"y"), (1, b"x", b"y")]),
    ("retrieval", "1.0\ta\tb\t\ty\n", "row 1 has an empty text"),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "content", "right"), STRANGE)
def test_a_strange_file_is_read_rightly_or_refused(reader, content, right, tmp_path) -> None:
    read, name, *_ = LINES[reader]
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    path.write_text(content, newline="")
    if isinstance(right, str):
        with pytest.raises(UserError, match=right):
            read(path)
    else:
        assert read(path) == right


def test_recordings_of_one_name_are_refused(tmp_path) -> None:
    for place in ("a/0", "b/0"):
        corpora.write_noise(tmp_path / f"{place}.flac", 0.5)
        (tmp_path / f"{place}.trans.txt").write_text(f"0 {place}\n")
    for sentence in ("a/0.flac and .*b/0.flac have one name", "b/0.trans.txt: 0 has other words"):
        with pytest.raises(UserError, match=sentence):
            librispeech.read_folder("x", tmp_path)
        (tmp_path / "a/0.flac").unlink(missing_ok=True)


def test_texts_of_linked_folders_and_upper_case_are_read_others_counted(tmp_path, capsys) -> None:
    for name in ("texts/Train.TXT", "texts/b.md", "other/test-c.JSONL"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"text": "c"}\n')
    (tmp_path / "texts/more").symlink_to("../other")
    assert [*read_text_files(tmp_path / "texts")] == ['{"text": "c"}', "c"]
    warned = ("neither .txt nor .jsonl, and not read: 1\n", "train and of test: all are one text")
    assert all(map(capsys.readouterr().err.count, warned))


def test_texts_without_a_token_and_classes_that_are_one_or_numbers(tmp_path, capsys) -> None:
    for count, mark in ((10, ".."), (12, ".,")):  # half stars up to 5, and up to 6
        rows = [f'a,"{n / 2}"\n'.replace(*mark) for n in range(count)] * 2
        (tmp_path / "texts.csv").write_text("".join(["text,label\n", *rows]))
        assert len(CsvText(data_dir=str(tmp_path)).label_names) == count
    (tmp_path / "texts.csv").write_text(
        "text,label\n" + "a,x\nb,#N/A\nb,x|y\nc,[u; v]\n" * 2 + "a,Total\n"
    )
    assert CsvText(data_dir=str(tmp_path)).num_labels == 5
    warned = ("label of texts.csv has numbers with decimals: each", "#N/A' (2 rows), 'Total' (1 r",
              "has 'x|y': joint labels are a class")  # fmt: skip
    assert [*map(capsys.readouterr().err.count, warned)] == [1, 1, 1]
    (tmp_path / "texts.csv").write_text("text,label\na,x\nb,x\n")
    with pytest.raises(UserError, match=r"texts.csv has one class, 'x': classification takes two"):
        _ = CsvText(data_dir=str(tmp_path)).label_names
    texts = [Example("a", None, 0), Example("", None, 0)]
    with pytest.raises(UserError, match="text 2 of 2 has no token"):  # GPT-2's adds none
        encode_texts(texts, train_tokenizer("gpt2", [], 261), 8)
