"""Each data set lists the files that its runs depend on, and no cache or other data beside them."""

from pathlib import Path

import pytest
from attention_graph.data import PCQM, MoleculeNet, SmilesCSV, SyntheticMolecules, Zinc
from attention_nlp.data.codexglue import Devign
from attention_nlp.data.corpora import Corpus
from attention_nlp.data.csv_text import CsvText
from attention_nlp.data.docs import PythonDocsCorpus, PythonDocsOrder
from attention_nlp.data.glue import Glue
from attention_nlp.data.pretraining import Pretraining
from attention_sequence.data import UEA, ListOps
from attention_speech.data import An4, FreeSpokenDigits, LibriSpeech, SyntheticDigits, WavFolder
from attention_vision.data import CIFAR, Digits, ImageFolder, ImageFolders
from experiment_kit.run import list_files

BOOKS = ("train-clean-100", "dev-clean", "test-clean", "test-other")
CASES = [
    (MoleculeNet, "esol", ["moleculenet/esol.csv"], ["moleculenet/other.csv"]),
    (PCQM, "pcqm4m", ["pcqm4m_kddcup2021/raw/data.csv.gz", "pcqm4m_kddcup2021/split_dict.pt"],
     ["pcqm4m_kddcup2021/processed/cache.pt"]),
    (Zinc, "zinc", ["zinc12k.npz"], ["other.npz"]),
    (SyntheticMolecules, "synthetic", [], ["a"]),
    (SmilesCSV, "smiles_csv", ["molecules.csv"], ["other.csv"]),
    (CsvText, "csv_text", ["texts.csv"], ["other.csv"]),
    (WavFolder, "wav_folder", ["recordings/index.csv", "recordings/a.wav"],
     ["recordings/b.wav"]),
    (ImageFolder, "image_folder", ["images/cat/a.png", "images/dog/b.png"], ["c.png"]),
    (Devign, "devign", ["function.json", "train.txt"], ["other/x.txt", "note.md"]),
    (Corpus, "ptb", ["ptb/ptb.train.txt", "ptb/ptb.valid.txt", "ptb/ptb.test.txt"], ["ptb/x.txt"]),
    (Glue, "mnli", ["MNLI/train.tsv", "MNLI/dev_matched.tsv", "MNLI/dev_mismatched.tsv"],
     ["MNLI/test.tsv"]),
    (Glue, "cola", ["glue/CoLA/train.tsv", "glue/CoLA/dev.tsv"], ["glue/CoLA/cache"]),
    (PythonDocsOrder, "docs", [], ["a"]),
    (PythonDocsCorpus, "docs_corpus", [], ["a"]),
    (Pretraining, "python_docs", [], ["a"]),
    (Pretraining, "text_files", ["texts/a.txt", "texts/b/c.jsonl"], ["b.txt"]),
    (ListOps, "drawn", [], ["a"]),
    (UEA, "Other", ["Other/Other_TRAIN.ts", "Other/Other_TEST.ts"], ["Other/x.arff"]),
    (An4, "an4", ["etc/an4_train.transcription", "wav/a/b.sph"], ["other/c.wav"]),
    (FreeSpokenDigits, "fsdd", ["recordings/0_theo_1.wav"], [".git/x"]),
    (LibriSpeech, "librispeech_100h", [f"{name}/1.flac" for name in BOOKS],
     ["train-other-500/1.flac"]),
    (SyntheticDigits, "synthetic", [], ["a"]),
    (CIFAR, "CIFAR-10", ["cifar-10-batches-bin/data_batch_1.bin"], ["a"]),
    (ImageFolders, "Tiny-ImageNet", ["tiny-imagenet-200/train/a/b.JPEG",
     "tiny-imagenet-200/val/c.JPEG"], ["tiny-imagenet-200/test/d.JPEG"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "read", "others"), CASES)
def test_a_data_set_lists_what_it_reads(kind, name, read, others, tmp_path) -> None:
    for file in (*read, *others):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("file,text\na.wav,A" * ("index" in file))
    paths = kind(name, data_dir=str(tmp_path)).list_data_files()
    assert {*map(Path, list_files(paths).values())} == {tmp_path / file for file in read}


def test_data_that_ships_with_a_package_is_its_file() -> None:
    assert [*list_files(Digits("digits").list_data_files())] == ["digits.csv.gz"]
    assert len(list_files(UEA("JapaneseVowels").list_data_files())) == 2
