"""Tokenizers: of pretrained weights, or trained on the texts at hand."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiment_kit.errors import UserError
from experiment_kit.runs import write_atomically
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from attention_nlp.models import checkpoint
from attention_nlp.weights import reached, source

BERT_LIKE = ("bert", "albert", "crammed")
_WORDS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
          "mask_token": "[MASK]"}  # fmt: skip
_BYTES = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>",
          "mask_token": "<mask>"}  # fmt: skip
BYTES = 256


def special_id(architecture: str, kind: str) -> int | None:
    """The id that a trained tokenizer gives to a special token, None where it has no such token.

    >>> special_id("bert", "pad"), special_id("gpt2", "eos"), special_id("bert", "eos")
    (0, 2, None)
    """
    special = _WORDS if architecture in BERT_LIKE else _BYTES
    return next((i for i, name in enumerate(special) if name == f"{kind}_token"), None)


def pretrained(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder, a hub id, minilm, or the checkpoint of a run of pre-training.

    Raises UserError where it cannot be had.
    """
    if name.endswith(".ckpt"):
        return checkpoint.tokenizer(name)
    with reached("data.tokenizer", name):
        tokenizer: Any = AutoTokenizer.from_pretrained(source(name), use_fast=True)
    if tokenizer.pad_token is None:  # GPT-2 has none, and what is padded is masked
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def train(architecture: str, texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Train WordPiece (BERT, ALBERT, Crammed BERT) or byte-level BPE (the others) on texts.

    WordPiece lowers case and strips accents; BERT-like texts become `[CLS] a [SEP] b [SEP]`,
    those of RoBERTa, BART and T5 `<s> a </s></s> b </s>`, those of GPT-2 have nothing added. A
    byte-level vocabulary of 261, the bytes and five special tokens, merges nothing.

    Raises UserError where `size` is too small: WordPiece has every character of the texts, twice.

    Source: https://huggingface.co/docs/tokenizers

    >>> tokenizer = train("bert", ["one two three"] * 3, 60)
    >>> tokenizer.decode(tokenizer("One two")["input_ids"])
    '[CLS] one two [SEP]'
    """
    wordpiece = architecture in BERT_LIKE
    tokenizer = _wordpiece(texts, size) if wordpiece else _bytes(texts, size)
    if (least := tokenizer.get_vocab_size()) > size:
        raise UserError(
            f"data.vocabulary must be at least {least}, which single characters and special tokens "
            f"take, got {size}"
        )
    special = _WORDS if wordpiece else _BYTES
    if architecture != "gpt2":
        first, last = ("[CLS]", "[SEP]") if wordpiece else ("<s>", "</s>")
        pair = f"{first} $A {last} $B:1 {last}:1" if wordpiece else "<s> $A </s> </s> $B </s>"
        ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}", pair=pair, special_tokens=ids
        )
    names = {} if wordpiece else {"cls_token": "<s>", "sep_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, **names)


def _wordpiece(texts: Iterable[str], size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer: Any = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=list(_WORDS.values()), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _bytes(texts: Iterable[str], size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = list(_BYTES.values())
    trainer: Any = trainers.BpeTrainer(
        vocab_size=max(size, BYTES + len(special)),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def cached(
    folder: Path, architecture: str, texts: Iterable[str], size: int, key: Iterable[str]
) -> PreTrainedTokenizerFast:
    """The same, trained once: kept in `folder` under a hash of `key`, which names the texts.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> first = cached(folder, "bert", ["one two"], 40, ["a"])
    >>> cached(folder, "bert", [], 40, ["a"]).get_vocab() == first.get_vocab()
    True
    """
    text = json.dumps([architecture, size, *key])
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if not path.is_file():
        tokenizer = train(architecture, texts, size)
        write_atomically(path, tokenizer.backend_tokenizer.to_str())
        return tokenizer
    wordpiece = architecture in BERT_LIKE
    names = {} if wordpiece else {"cls_token": "<s>", "sep_token": "</s>"}
    return PreTrainedTokenizerFast(
        tokenizer_file=str(path), **(_WORDS if wordpiece else _BYTES), **names
    )
