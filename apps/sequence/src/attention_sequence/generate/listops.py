"""ListOps of Long Range Arena, drawn anew: nested MIN, MAX, MED and SM of 500 to 2,000 tokens.

    node(depth) = a digit with probability 3/4, and always at depth 10; else an operator of 2 to 10
                  nodes(depth + 1)
    length      = 1 for a digit, 2 + the lengths of its arguments for an operator
    kept        = 500 < length < 2000 of node(1), and not drawn before
    value       = min, max, median rounded down, or sum mod 10, of the values of the arguments

Digits, operators and numbers of arguments are uniform. One tree in twelve is kept. Classes are not
balanced: the operator at the root alone predicts 37 % of them.

Source: https://github.com/google-research/long-range-arena, lra_benchmarks/data/listops.py.
"""

from collections.abc import Iterator
from functools import cache, partial
from itertools import count as count_from
from itertools import islice
from pathlib import Path

import numpy as np
from experiment_kit.run_files import write_folder_once
from numba import njit  # type: ignore[import-untyped]
from numpy.typing import NDArray

from attention_sequence.generate.workers import map_in_order, show_progress

TOKENS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
MIN, MAX, MED, SM, END = range(10, 15)
DEPTH, ARGUMENTS = 10, 10  # at most
SHORTEST, LONGEST = 501, 1999
OPERATOR = 0.25  # probability
CHUNK = 500  # trees of one random generator


def generate_trees(seed: int, count: int, num_workers: int = 1) -> Iterator[NDArray[np.uint8]]:
    """Draw trees, all different, each as 501 to 1,999 tokens, indices of TOKENS.

    A chunk of trees depends on the seed and its number alone, not on the number of workers.
    """
    seen: set[bytes] = set()
    for chunk in map_in_order(partial(draw_chunk, seed), count_from(0), num_workers):
        for tree in chunk:
            if (key := tree.tobytes()) not in seen:
                seen.add(key)
                yield tree
            if len(seen) == count:
                return


def draw_chunk(seed: int, number: int) -> list[NDArray[np.uint8]]:
    """Draw a chunk of trees; two of them may be the same."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, number])))
    tokens, lengths, _ = draw_trees(rng, CHUNK)
    return np.split(tokens[: lengths.sum()], np.cumsum(lengths)[:-1])


@njit(cache=True)
def draw_trees(rng, count):
    """Draw until `count` trees are kept; return their tokens in a row, their lengths, the tries."""
    tokens, lengths = np.empty(count * LONGEST, np.uint8), np.empty(count, np.int64)
    start = kept = tries = 0
    while kept < count:
        tries += 1
        length = _draw_tree(rng, tokens[start : start + LONGEST])
        if length >= SHORTEST:
            lengths[kept] = length
            start += length
            kept += 1
    return tokens, lengths, tries


@njit(cache=True)
def _draw_tree(rng, tokens):
    """Draw a tree, depth first; return its length, or 0 once it must become too long."""
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
            tokens[length] = _draw_below(rng, 10)
            length, due = length + 1, due - 1
            continue
        arguments = 2 + _draw_below(rng, ARGUMENTS - 1)
        tokens[length] = MIN + _draw_below(rng, 4)
        length, due, depth = length + 1, due + arguments, depth + 1
        waiting[depth] = arguments
        if length + due > LONGEST:
            return 0
    return length


@njit(cache=True)
def _draw_below(rng, limit):
    return int(rng.random() * limit)


@njit(cache=True)
def evaluate_tree(tokens):
    """Evaluate a tree: a digit."""
    values = np.empty(tokens.size, np.int64)
    starts = np.empty(tokens.size, np.int64)  # where the arguments of each open operator start
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
            values[start] = _apply_operator(operators[open_], values[start:size])
            size = start + 1
    return values[0]


@njit(cache=True)
def _apply_operator(operator, values):
    if operator == MIN:
        return values.min()
    if operator == MAX:
        return values.max()
    if operator == SM:
        return values.sum() % 10
    values.sort()
    return (values[(values.size - 1) // 2] + values[values.size // 2]) // 2


def format_tree(tokens: NDArray[np.uint8]) -> str:
    """Write a tree in binary parentheses: `( ( ( [MAX 2 ) 9 ) ] )`, one pair for each argument."""
    words = _list_words()
    # the root is no argument: its pair ends with its own bracket
    return " ".join([words[code] for code in _count_arguments(tokens).tolist()]).removesuffix(" )")


@njit(cache=True)
def _count_arguments(tokens):
    """Return for each token 15 token + its number of arguments, 0 for all but operators."""
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
def _list_words() -> list[str]:
    def word(token: int, arguments: int) -> str:
        if token < MIN:
            return f"{TOKENS[token]} )"
        return "] ) )" if token == END else "( " * (arguments + 1) + TOKENS[token]

    return [word(token, n) for token in range(len(TOKENS)) for n in range(len(TOKENS))]


def write_dataset(
    out: str | Path, count: int = 100_000, seed: int = 0, num_workers: int = 0
) -> Path:
    """Write `listops-1000/basic_{train,val,test}.tsv` once, and return their folder."""
    sizes = {"train": count - count // 50 * 2, "val": count // 50, "test": count // 50}

    def write_splits(folder: Path) -> None:
        trees = generate_trees(seed, count, num_workers)
        shown = iter(show_progress(trees, "listops", count))
        for split, size in sizes.items():
            path = folder / f"basic_{split}.tsv"
            with path.open("w", encoding="ascii", newline="\r\n") as file:
                file.write("Source\tTarget\n")
                for tree in islice(shown, size):
                    file.write(f"{format_tree(tree)}\t{evaluate_tree(tree)}\n")

    return write_folder_once(Path(out) / "listops-1000", write_splits)
