"""ListOps: an evaluator of the text, published statistics, files."""

import csv
import statistics
from functools import cache

import numpy as np
from attention_sequence.generate import listops
from attention_sequence.generate.workers import map_in_order
from scipy.stats import chisquare

MANY = 4000


@cache
def all_trees() -> list[np.ndarray]:
    return list(listops.generate_trees(seed=1, count=MANY))


@cache
def all_values() -> np.ndarray:
    return np.array([listops.evaluate_tree(tree) for tree in all_trees()])


def evaluate_words(words: list[str]) -> tuple:
    """Evaluate one node of the official text, nested pairs; an open operator is (name, digits)."""
    word = words.pop(0)
    if word != "(":
        return int(word) if word.isdigit() else (word, []) if word != "]" else word
    left, right = evaluate_words(words), evaluate_words(words)
    assert words.pop(0) == ")"
    if right != "]":
        return left[0], [*left[1], right]
    name, digits = left
    operators = {"[MIN": min, "[MAX": max, "[SM": lambda d: sum(d) % 10}
    return operators.get(name, lambda d: int(statistics.median(d)))(digits)


def test_every_target_is_that_of_the_text() -> None:
    for tree in all_trees()[:300]:
        words = listops.format_tree(tree).split(" ")
        assert [w for w in words if w not in "()"] == [listops.TOKENS[t] for t in tree]
        assert evaluate_words(words) == listops.evaluate_tree(tree)
        assert words == []


def test_the_distribution_is_that_of_the_definition() -> None:
    lengths = [len(tree) for tree in all_trees()]
    # the mean over 82,803 trees of the definition; their standard deviation is 394
    assert abs(np.mean(lengths) - 1034.3) < 4 * 394 / MANY**0.5
    np.testing.assert_allclose(np.percentile(lengths, [5, 50, 95]), [537, 952, 1797], atol=40)
    *_, tries = listops.draw_trees(np.random.default_rng(0), MANY)
    assert abs(MANY / tries - 0.083) < 4 * (0.083 * 0.917 / tries) ** 0.5  # .0830 of a million


# The published shares come from 4,000 trees, and so do ours: a difference has the error of one,
# times the root of two.
def test_classes_and_roots_are_distributed_as_published() -> None:
    shares = np.bincount(all_values(), minlength=10) / MANY
    error = 5 * (0.17 * 0.83 / MANY) ** 0.5 * 2**0.5
    np.testing.assert_allclose(shares[[0, 9]], [0.173, 0.175], atol=error)
    assert 0.075 - error < shares[1:9].min() <= shares[1:9].max() < 0.094 + error
    roots = np.array([tree[0] for tree in all_trees()])
    assert chisquare(np.bincount(roots, minlength=15)[10:14]).pvalue > 1e-3
    best = [np.bincount(all_values()[roots == root]).max() for root in range(10, 14)]
    assert abs(sum(best) / MANY - 0.372) < 5 * (0.37 * 0.63 / MANY) ** 0.5 * 2**0.5


def test_duplicates_are_removed(monkeypatch) -> None:
    first = listops.draw_chunk(0, 0)
    monkeypatch.setattr(listops, "draw_chunk", lambda seed, number: [first[0], first[number]])
    found = list(listops.generate_trees(seed=0, count=3))
    assert [t.tobytes() for t in found] == [t.tobytes() for t in first[:3]]


def test_workers_change_nothing() -> None:
    alone, together = (list(map_in_order(abs, range(-9, 0), workers)) for workers in (1, 2))
    assert alone == together == list(range(9, 0, -1))
    apart = list(listops.generate_trees(seed=1, count=1200, num_workers=2))
    assert all((a == b).all() for a, b in zip(apart, all_trees(), strict=False))
    assert len(apart) == 1200


def test_files_are_the_official_ones_to_a_reader(tmp_path) -> None:
    folder = listops.write_dataset(tmp_path, count=150, seed=1, num_workers=1)
    assert folder == tmp_path / "listops-1000"
    rows = []
    for split, size in (("train", 144), ("val", 3), ("test", 3)):
        path = folder / f"basic_{split}.tsv"
        assert path.read_bytes().startswith(b"Source\tTarget\r\n( ( ")
        with path.open(newline="") as file:
            found = list(csv.DictReader(file, delimiter="\t"))
        assert len(found) == size
        rows += found
    assert [row["Source"] for row in rows] == [*map(listops.format_tree, all_trees()[:150])]
    assert [int(row["Target"]) for row in rows] == all_values()[:150].tolist()
