"""ListOps of Long Range Arena, drawn anew: nested MIN, MAX, MED and SM of 500 to 2,000 tokens.

    node(depth) = a digit with probability 3/4, and always at depth 10; else an operator of 2 to 10
                  nodes(depth + 1)
    length      = 1 for a digit, 2 + the lengths of its arguments for an operator
    kept        = 500 < length < 2000 of node(1), and not drawn before
    value       = min, max, median rounded down, or sum mod 10, of the values of the arguments

Digits, operators and numbers of arguments are uniform. One tree of twelve is kept. Classes are not
balanced, and the root's operator alone tells 37 % of them.

Source: https://github.com/google-research/long-range-arena, lra_benchmarks/data/listops.py.
"""

from collections.abc import Iterator
from functools import cache, partial
from itertools import count as numbers
from pathlib import Path

import numpy as np
from numba import njit  # type: ignore[import-untyped]
from numpy.typing import NDArray

from attention_sequence.generate import folder as folders
from attention_sequence.generate.parallel import bar, ordered

TOKENS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
MIN, MAX, MED, SM, END = range(10, 15)
DEPTH, ARGUMENTS = 10, 10  # at most
SHORTEST, LONGEST = 501, 1999
OPERATOR = 0.25  # probability
CHUNK = 500  # trees of one random generator
SPLITS = ("train", "val", "test")


def trees(seed: int, count: int, workers: int = 1) -> Iterator[NDArray[np.uint8]]:
    """Draw trees, all different, each as its tokens: places in TOKENS, 501 to 1,999 of them.

    A chunk of trees is a function of the seed and its number, so workers change nothing.

    >>> tree = next(trees(seed=0, count=1))
    >>> 500 < len(tree) < 2000, TOKENS[tree[-1]]
    (True, ']')
    """
    seen: set[bytes] = set()
    for chunk in ordered(partial(chunk_of, seed), numbers(), workers):
        for tree in chunk:
            if (key := tree.tobytes()) not in seen:
                seen.add(key)
                yield tree
            if len(seen) == count:
                return


def chunk_of(seed: int, number: int) -> list[NDArray[np.uint8]]:
    """Draw a chunk of trees; two of them may be the same."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, number])))
    tokens, lengths, _ = draw(rng, CHUNK)
    return np.split(tokens[: lengths.sum()], np.cumsum(lengths)[:-1])


@njit(cache=True)
def draw(rng, count):
    """Draw until `count` trees are kept: their tokens in a row, their lengths, and the tries."""
    tokens, lengths = np.empty(count * LONGEST, np.uint8), np.empty(count, np.int64)
    start = kept = tries = 0
    while kept < count:
        tries += 1
        length = _draw_one(rng, tokens[start : start + LONGEST])
        if length >= SHORTEST:
            lengths[kept] = length
            start += length
            kept += 1
    return tokens, lengths, tries


@njit(cache=True)
def _draw_one(rng, tokens):
    """Draw a tree, depth first, and give its length, or 0 as soon as it must become too long."""
    waiting = np.zeros(DEPTH + 1, np.int64)  # nodes still to be drawn, by depth
    depth, length, due = 1, 0, 1  # due: tokens that have to follow
    waiting[1] = 1
    while depth:
        if waiting[depth] == 0:  # an operator has its arguments
            depth -= 1
            if depth:
                tokens[length] = END
                length, due = length + 1, due - 1
            continue
        waiting[depth] -= 1
        if depth == DEPTH or rng.random() > OPERATOR:
            tokens[length] = _below(rng, 10)
            length, due = length + 1, due - 1
            continue
        arguments = 2 + _below(rng, ARGUMENTS - 1)
        tokens[length] = MIN + _below(rng, 4)
        length, due, depth = length + 1, due + arguments, depth + 1
        waiting[depth] = arguments
        if length + due > LONGEST:
            return 0
    return length


@njit(cache=True)
def _below(rng, limit):
    return int(rng.random() * limit)


@njit(cache=True)
def value(tokens):
    """Evaluate a tree: a digit."""
    values = np.empty(tokens.size, np.int64)
    starts = np.empty(tokens.size, np.int64)  # of the arguments of each open operator
    operators = np.empty(tokens.size, np.int64)
    size = open_ = 0
    for token in tokens:
        if token < MIN:
            values[size] = token
            size += 1
        elif token < END:
            starts[open_], operators[open_] = size, token
            open_ += 1
        else:
            open_ -= 1
            start = starts[open_]
            values[start] = _apply(operators[open_], values[start:size])
            size = start + 1
    return values[0]


@njit(cache=True)
def _apply(operator, values):
    if operator == MIN:
        return values.min()
    if operator == MAX:
        return values.max()
    if operator == SM:
        return values.sum() % 10
    values.sort()
    return (values[(values.size - 1) // 2] + values[values.size // 2]) // 2


def text(tokens: NDArray[np.uint8]) -> str:
    """Write a tree in binary parentheses: `( ( ( [MAX 2 ) 9 ) ] )`, one pair for each argument.

    >>> text(np.array([MAX, 2, 9, END], np.uint8))
    '( ( ( [MAX 2 ) 9 ) ] )'
    """
    words = _words()
    # the root is nobody's argument: its pair ends with its own bracket
    return " ".join([words[code] for code in _codes(tokens).tolist()]).removesuffix(" )")


@njit(cache=True)
def _codes(tokens):
    """A token, and for an operator its number of arguments too: 15 token + arguments."""
    codes, opened = np.empty(tokens.size, np.int64), np.empty(tokens.size, np.int64)
    open_ = 0
    for i, token in enumerate(tokens):
        codes[i] = len(TOKENS) * token
        if token == END:
            open_ -= 1
        if token < MIN or token == END:
            if open_:
                codes[opened[open_ - 1]] += 1
        else:
            opened[open_] = i
            open_ += 1
    return codes


@cache
def _words() -> list[str]:
    def word(token: int, arguments: int) -> str:
        if token < MIN:
            return f"{TOKENS[token]} )"
        return "] ) )" if token == END else "( " * (arguments + 1) + TOKENS[token]

    return [word(token, n) for token in range(len(TOKENS)) for n in range(len(TOKENS))]


def sizes(count: int) -> tuple[int, int, int]:
    """Split a number of trees into train, val and test as 96,000 to 2,000 to 2,000.

    >>> sizes(100_000)
    (96000, 2000, 2000)
    """
    held_out = count // 50
    return count - 2 * held_out, held_out, held_out


def write(out: str | Path, count: int = 100_000, seed: int = 0, workers: int = 1) -> bool:
    """Write `listops-1000/basic_{train,val,test}.tsv`; False where they are there already.

    Lines are those of the official files: the text, a tab, the value, and a carriage return.
    Raises a UserError where others are there.
    """
    names = [f"basic_{split}.tsv" for split in SPLITS]

    def write_splits(folder: Path) -> None:
        drawn = trees(seed, count, workers)
        with bar("listops", count) as advance:
            for name, size in zip(names, sizes(count), strict=True):
                with (folder / name).open("w", encoding="ascii", newline="\r\n") as file:
                    file.write("Source\tTarget\n")
                    for _ in range(size):
                        tree = next(drawn)
                        file.write(f"{text(tree)}\t{value(tree)}\n")
                        advance(1)

    options = {"count": count, "seed": seed}
    return folders.make(Path(out) / "listops-1000", options, names, write_splits)
