"""Sentences of the documentation that ships with Python, in order and scrambled."""

import ast
import random
import re
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import ClassVar

from experiment_kit.errors import UserError

from attention_nlp.data.base import LanguageData
from attention_nlp.data.corpora import Corpus, CorpusFiles
from attention_nlp.data.encoding import Example

_SENTENCE_END = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")
_PROSE = re.compile(r"[A-Z][A-Za-z,;:'\- ]+\.")
_NUM_WORDS = range(6, 25)
_DEV_PERIOD = 5  # every fifth sentence
_LIBRARY = Path(sysconfig.get_path("stdlib"))


@cache
def list_sentences() -> tuple[str, ...]:
    """List the sentences of 6 to 24 plain words of Python's documentation, without repeats."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise UserError("this Python ships without pydoc_data, its documentation") from error
    sentences: dict[str, None] = {}
    for text in (*(text for _, text in sorted(topics.items())), *_list_docstrings()):
        for paragraph in re.split(r"\n\s*\n", text):
            plain = re.sub(r"[*`\"]|(?<=-) ", "", " ".join(paragraph.split()))
            for sentence in _SENTENCE_END.split(plain):
                if _PROSE.fullmatch(sentence) and len(sentence.split()) in _NUM_WORDS:
                    sentences[sentence] = None
    return tuple(sentences)


def make_paragraphs(count: int) -> list[str]:
    """Return texts of four sentences each, taken evenly from all of them."""
    sentences = list_sentences()
    starts = range(0, len(sentences) - 3, max(1, len(sentences) // count))
    return [" ".join(sentences[start : start + 4]) for start in starts][:count]


def scramble_sentence(sentence: str, seed: int = 0) -> str:
    """Put the words in another order, with the capital and the full stop of a sentence."""
    words = sentence[:-1].split()
    words[0] = words[0][0].lower() + words[0][1:]
    shuffled, generator = list(words), random.Random(f"{seed} {sentence}")
    while shuffled == words:
        generator.shuffle(shuffled)
    text = " ".join(shuffled)
    return f"{text[0].upper()}{text[1:]}."


def _list_docstrings() -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for path in sorted(_LIBRARY.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, documented) and (text := ast.get_docstring(node)):
                yield text


class PythonDocsOrder(LanguageData):
    """Predict if a sentence of Python's documentation is in order (1) or scrambled (0).

    The documentation is that of the running Python. Every sentence occurs once, in order or
    scrambled; every fifth is in the development set.
    """

    num_labels = 2
    DATASETS = ("docs",)
    IS_GENERATED = True  # the version of Python, which a result records, determines the texts

    def find_split(self, split: str) -> Path:
        """Return the folder of Python's library."""
        return _LIBRARY

    def read_split(self, split: str) -> list[Example]:
        """Read the sentences of `train` or `dev`."""
        generator = random.Random(0)
        drawn = [(text, generator.random() < 0.5) for text in list_sentences()]
        is_dev = split == "dev"
        return [
            Example(text if in_order else scramble_sentence(text), None, int(in_order))
            for i, (text, in_order) in enumerate(drawn)
            if (i % _DEV_PERIOD == 0) == is_dev
        ]


class PythonDocsCorpus(Corpus):
    """Sentences of the documentation as rows of a corpus, a tenth each for validation and test."""

    DATASETS: ClassVar[Mapping[str, CorpusFiles]] = {
        "docs_corpus": CorpusFiles((), (), False, "nothing: Python ships its documentation")
    }
    IS_GENERATED = True  # as above

    def name_hub_table(self, split: str) -> None:
        """Return None: the hub has no such corpus."""

    def find_split(self, split: str) -> Path:
        """Return the folder of Python's library."""
        return _LIBRARY

    def read_lines(self, split: str) -> Iterator[str]:
        """Read the sentences of a split."""
        held_out = {0: "valid", 1: "test"}
        sentences = enumerate(list_sentences())
        return (text for i, text in sentences if held_out.get(i % 10, "train") == split)
