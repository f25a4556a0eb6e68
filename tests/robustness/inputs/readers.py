"""The data modules on small files of every layout: how the files are written, and their names."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import attention_graph.data as graph
import attention_nlp.data as nlp
import attention_sequence.data as sequence
import attention_speech.data as speech
import attention_vision.data as vision
import numpy as np
import pyarrow
import pyarrow.parquet
from attention_nlp.data.codexglue import BigCloneBench, Devign
from attention_nlp.data.superglue import SuperGlue
from PIL import Image

from tests.apps.graph.data import files as molecules
from tests.apps.nlp.data import test_codexglue as code
from tests.apps.nlp.data import test_glue as glue
from tests.apps.nlp.data import test_superglue as superglue
from tests.apps.nlp.small import write_rows
from tests.apps.sequence import long_range_files as long_range
from tests.apps.sequence.data import test_long_range as reviews
from tests.apps.sequence.data import test_uea as series
from tests.apps.speech import corpora
from tests.apps.speech.data import test_datasets as recordings
from tests.apps.vision.data import test_cifar as cifar

ROOT = Path("root")  # DATA_DIR, in the folder of a case


@dataclass(frozen=True)
class Reader:
    """A data module on small files: the files that are damaged, and how all are written.

    `accepted` are reasons by patterns of the damage; the first that fits counts.
    """

    app: str
    name: str
    files: tuple[str, ...]
    write: Callable[[Path], object]
    module: Any
    dataset_name: str
    options: dict[str, Any] = field(default_factory=dict)
    accepted: dict[str, str] = field(default_factory=dict)
    text: bool = True

    def build(self) -> Any:
        return self.module(self.dataset_name, data_dir=str(ROOT), **self.options)


def write_series(root: Path) -> None:
    (root / "X").mkdir(parents=True)
    for split in ("TRAIN", "TEST"):
        (root / f"X/X_{split}.ts").write_text(series.GOOD)


def write_cifar(root: Path) -> None:
    generator = np.random.default_rng(0)
    for folder, coarse in (("cifar-10-batches-bin", False), ("cifar-100-binary", True)):
        (root / folder).mkdir()
        for file in ("train.bin", "test.bin") if coarse else ("data_batch_1.bin", "test_batch.bin"):
            pixels = generator.integers(0, 256, (20, 32, 32, 3), np.uint8)
            packed = cifar.pack_records(pixels, np.arange(20) % 10, coarse)
            (root / folder / file).write_bytes(packed)


def write_images(root: Path) -> None:
    generator = np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 4)):
        for name in ("cat", "dog"):
            folder = root / "imagenet" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (20, 24, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.JPEG", format="JPEG")
    (root / "classes.txt").write_text("cat\ndog\n")


def write_tasks(root: Path) -> None:
    for split in ("train", "dev"):
        for name in ("cola", "stsb"):
            glue.write(root / glue.TASKS[name].folder, name, split)


def write_parquet(root: Path) -> None:
    rows = [{"sentence": text, "label": label} for text, _, label in glue.ROWS]
    for split in ("train", "validation"):
        path = root / "glue/cola" / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def write_superglue(root: Path) -> None:
    for name in ("boolq", "multirc", "wsc"):
        row, _ = superglue.ARCHIVE[name]
        for split in ("train", "val"):
            write_rows(root / superglue.TASKS[name].folder / f"{split}.jsonl", [row] * 4)


def write_functions(root: Path) -> None:
    (root / "devign").mkdir()
    code.write_indexed(root / "devign")


def write_pairs(root: Path) -> None:
    (root / "bigclonebench").mkdir()
    code.write_pairs(root / "bigclonebench")


def write_corpus(root: Path) -> None:
    for split in ("train", "valid", "test"):
        path = root / f"wikitext-2-raw/wiki.{split}.raw"
        path.parent.mkdir(exist_ok=True)
        path.write_text("= A title =\n\nA cat sat on <unk> mats .\nIt did .\n" * 8)


def write_documents(root: Path) -> None:
    (root / "texts").mkdir()
    texts = [f"Document {number} has {'some ' * (number % 7)}words." for number in range(60)]
    (root / "texts/a.txt").write_text("\n\n".join(texts))
    rows = "\n".join(json.dumps({"text": text, "meta": 1}) for text in texts)
    (root / "texts/b.jsonl").write_text(rows + "\n")


def write_esol(root: Path) -> None:
    rows = [(molecules.SMILES[row % 8], row / 7) for row in range(40)]
    molecules.write_table(root / "moleculenet/esol.csv", rows, "smiles,logSolubility")


def write_retrieval(root: Path) -> None:
    reviews.write_papers(root, "1.0\ta\tb\tx\ty\n0.0\tc\td\tz\ty\n" * 4)


def write_zinc_pickles(root: Path) -> None:
    molecules.write_zinc_pickles(root / "molecules")


def write_zinc_arrays(root: Path) -> None:
    molecules.write_zinc_arrays(root / "graph/zinc/zinc12k.npz")


def write_zinc_smiles(root: Path) -> None:
    molecules.write_zinc_smiles(root / "zinc")


def write_pcqm(root: Path) -> None:
    molecules.write_pcqm(root / "pcqm4m-v2", molecules.PCQM_SPLIT)


def write_digits(root: Path) -> None:
    recordings.write_fsdd(root / "fsdd", takes=1)


def write_an4(root: Path) -> None:
    recordings.write_an4(root / "an4")


# damages -> why a file of this kind may be accepted with them
WHOLE_LINES = {
    "^(cut|last byte cut|twice)": "whole lines are left, or come twice: no file counts them",
    "byte order mark": "a byte order mark is skipped",
    "CR line ends|no line ends|other separators": "line ends and separators of more than one kind",
}
ANY_TEXT = "a text may hold any characters"
FREE_TEXT = WHOLE_LINES | {
    "flipped|inserted|all NUL|HTML|huge|negative|as text|NaN|quotes|long": ANY_TEXT,
}
SERIES = {
    "last byte cut": "the last line end",
    "inserted|byte order mark|very long|quotes": "it lies in the header, of which no name is read",
    "CR line ends": "a line may end with CR",
    "huge|negative|NaN": "a value may be any number; NaN is a missing one",
}
PIXELS = {
    "flipped|all NUL": "every byte is a pixel or a label in range",
    "cut|twice": "whole records are left, or come twice: a note counts them",
}
MEDIA = {"": "one of many files: it is left out and counted, or still whole to its decoder"}
JSON_LINES = WHOLE_LINES | {"huge|negative|NaN": "a number in a column that is not read, or text"}
OTHER_FILES = FREE_TEXT | {
    "empty|missing|folder|FIFO|link": "what the other files hold is read, and the rest counted",
}
OFFSETS = {
    "first byte flipped|last byte flipped|twice": "it is read by offsets, and these bytes are none",
    "flipped at a third": "a zip of torch has no check of its content: that is the download's",
}
TWO = {"batch_size": 2}
HALF = {"batch_size": 2, "val_fraction": 0.5}
TOKENS = {"vocab_size": 261, "max_length": 8, "batch_size": 2}
PACKED = {"max_tokens_per_char": None, "val_fraction": 0.2, "vocab_size": 60, "max_length": 12,
          "batch_size": 4}  # fmt: skip
DIGITS = {"batch_seconds": 8.0, "max_seconds": 6.0, **recordings.SETTINGS}
IMAGES = {"classes": str(ROOT / "classes.txt"), "val_fraction": 0.2, "batch_size": 2,
          "image_size": 16}  # fmt: skip
CIFAR = "cifar-10-batches-bin/data_batch_1.bin", "cifar-10-batches-bin/test_batch.bin"
DRAWINGS = "pathfinder32/curv_contour_length_14"
AUDIO = "LibriSpeech/{}/19/7/19-7-0001.flac"
RETRIEVAL = next(iter(sequence.Retrieval.DATASETS))
READERS = (
    Reader("sequence", "UEA", ("X/X_TRAIN.ts", "X/X_TEST.ts"), write_series, sequence.UEA, "X",
           {}, SERIES),
    Reader("sequence", "ListOps", ("listops-1000/basic_train.tsv", "listops-1000/basic_val.tsv"),
           long_range.write_listops, sequence.ListOps, "listops-1000", TWO, WHOLE_LINES),
    Reader("sequence", "Text", ("imdb/imdb_train.tsv",), reviews.write_reviews, sequence.Text,
           "imdb", TWO, FREE_TEXT),
    Reader("sequence", "Retrieval", ("tsv_data/new_aan_pairs.train.tsv",), write_retrieval,
           sequence.Retrieval, RETRIEVAL, TWO, FREE_TEXT),
    Reader("sequence", "Image", CIFAR, long_range.write_cifar, sequence.Image, "cifar10", TWO,
           PIXELS, text=False),
    Reader("sequence", "Pathfinder", (f"{DRAWINGS}/metadata/0.npy",), long_range.write_pathfinder,
           sequence.Pathfinder, "curv_contour_length_14", TWO,
           WHOLE_LINES | {"last": "what comes after the label is not read"}),
    Reader("sequence", "Pathfinder drawings", (f"{DRAWINGS}/imgs/0/sample_3.png",),
           long_range.write_pathfinder, sequence.Pathfinder, "curv_contour_length_14", TWO,
           MEDIA, text=False),
    Reader("vision", "CIFAR-10", CIFAR, write_cifar, vision.CIFAR, "CIFAR-10", HALF, PIXELS,
           text=False),
    Reader("vision", "CIFAR-100", ("cifar-100-binary/train.bin",), write_cifar, vision.CIFAR,
           "CIFAR-100", HALF, PIXELS, text=False),
    Reader("vision", "ImageFolders", ("imagenet/train/cat/2.JPEG", "imagenet/val/dog/1.JPEG"),
           write_images, vision.ImageFolders, "ImageNet-1k", IMAGES, MEDIA, text=False),
    Reader("vision", "ImageFolders classes", ("classes.txt",), write_images, vision.ImageFolders,
           "ImageNet-1k", IMAGES, WHOLE_LINES),
    Reader("nlp", "GLUE tsv", ("CoLA/train.tsv", "CoLA/dev.tsv"), write_tasks, nlp.Glue, "cola",
           TOKENS, FREE_TEXT),
    Reader("nlp", "GLUE tsv of numbers", ("STS-B/train.tsv",), write_tasks, nlp.Glue, "stsb",
           TOKENS, FREE_TEXT),
    Reader("nlp", "GLUE parquet", ("glue/cola/train.parquet",), write_parquet, nlp.Glue, "cola",
           TOKENS, OFFSETS, text=False),
    *(Reader("nlp", f"SuperGLUE {name}", (f"{superglue.TASKS[name].folder}/train.jsonl",),
             write_superglue, SuperGlue, name, TOKENS, JSON_LINES)
      for name in ("boolq", "multirc", "wsc")),
    Reader("nlp", "Devign", ("devign/function.json", "devign/train.txt"), write_functions, Devign,
           "devign", TOKENS, JSON_LINES),
    Reader("nlp", "BigCloneBench", ("bigclonebench/data.jsonl", "bigclonebench/train.txt"),
           write_pairs, BigCloneBench, "bigclonebench", TOKENS, JSON_LINES),
    Reader("nlp", "WikiText", ("wikitext-2-raw/wiki.train.raw",), write_corpus, nlp.Corpus,
           "wikitext-2-raw-v1", TOKENS, FREE_TEXT),
    Reader("nlp", "pre-training", ("texts/a.txt", "texts/b.jsonl"), write_documents,
           nlp.Pretraining, "text_files", PACKED, OTHER_FILES),
    Reader("graph", "ZINC pickles", ("molecules/train.pickle",), write_zinc_pickles, graph.Zinc,
           "zinc", TWO, OFFSETS, text=False),
    Reader("graph", "ZINC index", ("molecules/val.index",), write_zinc_pickles, graph.Zinc, "zinc",
           TWO, WHOLE_LINES),
    Reader("graph", "ZINC arrays", ("graph/zinc/zinc12k.npz",), write_zinc_arrays, graph.Zinc,
           "zinc", TWO, OFFSETS, text=False),
    Reader("graph", "ZINC SMILES", ("zinc/zinc250k.smi", "zinc/zincfull_test.txt"),
           write_zinc_smiles, graph.Zinc, "zinc_full", TWO, FREE_TEXT),
    Reader("graph", "PCQM4Mv2", ("pcqm4m-v2/raw/data.csv.gz", "pcqm4m-v2/split_dict.pt"),
           write_pcqm, graph.PCQM, "pcqm4mv2", {"batch_size": 2, "val_fraction": 0.4}, OFFSETS,
           text=False),
    Reader("graph", "MoleculeNet", ("moleculenet/esol.csv",), write_esol, graph.MoleculeNet,
           "esol", TWO, FREE_TEXT),
    Reader("speech", "LibriSpeech audio",
           (AUDIO.format("train-clean-100"), AUDIO.format("test-clean")),
           corpora.write_librispeech, speech.LibriSpeech, "librispeech_100h", corpora.SMALL,
           MEDIA, text=False),
    Reader("speech", "LibriSpeech transcripts",
           ("LibriSpeech/train-clean-100/19/7/19-7.trans.txt",), corpora.write_librispeech,
           speech.LibriSpeech, "librispeech_100h", corpora.SMALL, OTHER_FILES),
    Reader("speech", "FSDD", ("fsdd/recordings/3_ann_0.wav",), write_digits,
           speech.FreeSpokenDigits, "fsdd", DIGITS, MEDIA, text=False),
    Reader("speech", "AN4", ("an4/etc/an4_train.fileids", "an4/etc/an4_train.transcription"),
           write_an4, speech.An4, "an4", {"token_type": "char"}, FREE_TEXT),
    Reader("speech", "AN4 audio", ("an4/wav/an4_clstk/fash/an0-fash-b.sph",), write_an4,
           speech.An4, "an4", {"token_type": "char"}, MEDIA, text=False),
)  # fmt: skip
