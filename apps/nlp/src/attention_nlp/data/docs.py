"""Sentences of the documentation that ships with Python, as they are and scrambled."""

import ast
import random
import re
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from experiment_kit.errors import UserError

from attention_nlp.data.base import LanguageData
from attention_nlp.data.encoding import Example

_SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")
_PROSE = re.compile(r"[A-Z][A-Za-z,;:'\- ]+\.")
_WORDS = range(6, 25)
_TEST = 5  # one sentence of so many
_LIBRARY = Path(sysconfig.get_path("stdlib"))


@cache
def sentences() -> tuple[str, ...]:
    """Plain sentences of 6 to 24 words of Python's documentation, each once, in its order.

    Raises UserError where this Python ships without its documentation.

    >>> all(text.endswith(".") for text in sentences())
    True
    """
    found: dict[str, None] = {}
    for text in (*_reference(), *_docstrings()):
        for paragraph in re.split(r"\n\s*\n", text):
            plain = re.sub(r"[*`\"]|(?<=-) ", "", " ".join(paragraph.split()))
            for sentence in _SENTENCE.split(plain):
                if _PROSE.fullmatch(sentence) and len(sentence.split()) in _WORDS:
                    found[sentence] = None
    return tuple(found)


def scrambled(sentence: str, seed: int = 0) -> str:
    """The same words in another order, first and last letter as a sentence has them.

    >>> scrambled("The value is a number here.") != "The value is a number here."
    True
    """
    words = sentence[:-1].split()
    words[0] = words[0][0].lower() + words[0][1:]
    mixed, draw = list(words), random.Random(f"{seed} {sentence}")
    while mixed == words:
        draw.shuffle(mixed)
    text = " ".join(mixed)
    return f"{text[0].upper()}{text[1:]}."


def _reference() -> Iterator[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise UserError("this Python ships without pydoc_data, its documentation") from error
    return (text for _, text in sorted(topics.items()))


def _docstrings() -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for path in sorted(_LIBRARY.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, documented) and (text := ast.get_docstring(node)):
                yield text


class Docs(LanguageData):
    """Is a sentence of Python's documentation in order (1) or scrambled (0)?

    The documentation is that of the Python that runs. Every sentence is in it once, in one of the
    two states; every fifth is of the development set.

    >>> Docs("docs").num_labels
    2
    """

    num_labels = 2
    known: ClassVar[Mapping[str, Any]] = {"docs": 2}

    @staticmethod
    def whereabouts(name: str) -> Path:
        """Where Python keeps it."""
        return _LIBRARY

    def read(self, split: str) -> list[Example]:
        """The sentences of a split."""
        draw = random.Random(0)
        drawn = [(text, draw.random() < 0.5) for text in sentences()]
        chosen = [pair for i, pair in enumerate(drawn) if (i % _TEST == 0) == (split == "dev")]
        return [
            Example(text if whole else scrambled(text), None, int(whole)) for text, whole in chosen
        ]
