"""Tokenizers: those of pretrained weights, or trained on the texts of a data set."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiment_kit.data.folders import make_cache
from experiment_kit.errors import UserError
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

from attention_nlp.models import checkpoints

WORDPIECE_ARCHITECTURES = ("bert", "albert", "crammed")
_WORDPIECE_TOKENS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]",
                     "sep_token": "[SEP]", "mask_token": "[MASK]"}  # fmt: skip
_BPE_TOKENS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>",
               "unk_token": "<unk>", "mask_token": "<mask>"}  # fmt: skip

_TRAINING_VERSION = 2  # part of a kept tokenizer's name: raise it when training changes


def special_token_id(architecture: str, kind: str) -> int | None:
    """Return the id that a trained tokenizer gives to a special token; None if it has none."""
    special = _WORDPIECE_TOKENS if architecture in WORDPIECE_ARCHITECTURES else _BPE_TOKENS
    return next((i for i, name in enumerate(special) if name == f"{kind}_token"), None)


def load_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a folder, a hub id, minilm, or a pre-training run."""
    if checkpoints.is_own_run(name):
        return checkpoints.load_run_tokenizer(name)
    with checkpoints.hub_errors("model.weights or data.tokenizer", name):
        path = checkpoints.resolve_weights(name)
        tokenizer: Any = AutoTokenizer.from_pretrained(path, use_fast=True)
    if len(tokenizer) < len(tokenizer.all_special_tokens) + 2:  # transformers makes it of no file
        raise UserError(f"{name} has no tokenizer: save it there, or give data.tokenizer")
    if tokenizer.pad_token is None:  # GPT-2 has none; padding is masked anyway
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise UserError(f"the tokenizer {name} has no padding token: set pad_token and save it")
    return tokenizer


def train_tokenizer(
    architecture: str, texts: Iterable[str], vocab_size: int
) -> PreTrainedTokenizerFast:
    """Train WordPiece (BERT, ALBERT, Crammed BERT) or byte-level BPE (the others) on texts.

    WordPiece lowers case and strips accents; a pair of texts becomes `[CLS] a [SEP] b [SEP]`, in
    RoBERTa, BART and T5 `<s> a </s></s> b </s>`; GPT-2 adds nothing. Byte-level BPE with 261
    tokens, 256 bytes and five special tokens, merges nothing.

    The same texts make the same tokenizer, in any process; WordPiece reads them twice.
    """
    is_wordpiece = architecture in WORDPIECE_ARCHITECTURES
    train = _train_wordpiece if is_wordpiece else _train_byte_bpe
    tokenizer = train(texts, vocab_size)
    if (least := tokenizer.get_vocab_size()) > vocab_size:
        text = f"data.vocab_size must be at least {least}, for single characters and special"
        raise UserError(f"{text} tokens, got {vocab_size}")
    if architecture != "gpt2":
        first, last = ("[CLS]", "[SEP]") if is_wordpiece else ("<s>", "</s>")
        pair = f"{first} $A {last} $B:1 {last}:1" if is_wordpiece else "<s> $A </s> </s> $B </s>"
        ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}", pair=pair, special_tokens=ids
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **_special_tokens(architecture))


def _special_tokens(architecture: str) -> dict[str, str]:
    if architecture in WORDPIECE_ARCHITECTURES:
        return _WORDPIECE_TOKENS
    return _BPE_TOKENS | {"cls_token": "<s>", "sep_token": "</s>"}


def _train_wordpiece(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    # The trainer numbers the characters inside words in the order of a hash map, another in each
    # process, and breaks ties by these numbers. As special tokens they have the same ones always.
    special = list(_WORDPIECE_TOKENS.values())
    characters = _fit_wordpiece(texts, 0, special).get_vocab()
    inside = sorted(token for token in characters if token.startswith("##"))
    vocabulary = _fit_wordpiece(texts, vocab_size, [*special, *inside]).get_vocab()
    tokenizer = _make_wordpiece(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(special)
    return tokenizer


def _fit_wordpiece(texts: Iterable[str], vocab_size: int, special: Sequence[str]) -> Tokenizer:
    tokenizer = _make_wordpiece(models.WordPiece(unk_token="[UNK]"))
    trainer: Any = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=list(special), show_progress=False
    )
    tokenizer.train_from_iterator(map(_break_words, texts), trainer)
    return tokenizer


def _break_words(text: str) -> str:
    """Break words of more than 1,000 characters, on which a trainer spends quadratic time."""
    return re.sub(r"\S{1000}(?=\S)", r"\g<0> ", text)


def _make_wordpiece(model: Any) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _train_byte_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special, alphabet = list(_BPE_TOKENS.values()), pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=max(vocab_size, len(alphabet) + len(special)),
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(map(_break_words, texts), trainer)
    return tokenizer


def train_cached_tokenizer(
    folder: Path, architecture: str, texts: Iterable[str], vocab_size: int, key: Iterable[str]
) -> PreTrainedTokenizerFast:
    """Train a tokenizer once; keep it in `folder` under a hash of `key`, which names the texts."""
    text = json.dumps([_TRAINING_VERSION, architecture, vocab_size, *key])

    def write_tokenizer(new: Path) -> None:
        tokenizer = train_tokenizer(architecture, texts, vocab_size)
        tokenizer.backend_tokenizer.save(str(new / "tokenizer.json"))

    place = make_cache(folder / hashlib.sha256(text.encode()).hexdigest()[:16], write_tokenizer)
    path = str(place / "tokenizer.json")
    return PreTrainedTokenizerFast(tokenizer_file=path, **_special_tokens(architecture))
