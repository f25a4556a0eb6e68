"""Where the weights came from that a number was measured with: drawn at random, or trained before.

An `origin` is a text: "random", or another, such as "pretrained: bert-base-uncased". What names
none trains from scratch as its paper does.
"""

from collections.abc import Iterable, Mapping

from experiment_kit.errors import UserError
from experiment_kit.tables.spec import Cell, TableSpec

BETWEEN = "; "  # of the origins of the seeds of a cell
RANDOM = "random"


def is_random(origin: str) -> bool:
    """Whether any of the origins of a cell is random weights.

    >>> is_random("random"), is_random("pretrained: random-bert"), is_random("")
    (True, False, False)
    """
    return RANDOM in parts(origin)


def parts(origin: str) -> list[str]:
    """The origins that `joined` has put together.

    >>> parts("pretrained: a; pretrained: b"), parts("")
    (['pretrained: a', 'pretrained: b'], [])
    """
    return origin.split(BETWEEN) if origin else []


def joined(origins: Iterable[str]) -> str:
    """Name the origins of the seeds of a cell, each once.

    >>> joined(["random", "", "random"])
    'random'
    """
    return BETWEEN.join(sorted({*origins} - {""}))


def check_unmixed(records: Iterable[Mapping[str, str]]) -> None:
    """Refuse random and other weights in one table and profile, which a reader would compare.

    Raises a `UserError` that names them.
    """
    found: dict[tuple[str, str], set[bool]] = {}
    for record in records:
        kinds = found.setdefault((record["table"], record["profile"]), set())
        kinds |= {is_random(part) for part in parts(record["origin"])}
    for (table, profile), kinds in found.items():
        if len(kinds) > 1:
            raise UserError(
                f"{table}, profile {profile}, would mix random and pretrained weights: make one of "
                "them (--rows) and publish it into another folder (OUT), or remove the lines of "
                "the other from the table's csv."
            )


def planned(spec: TableSpec, cells: Iterable[Cell]) -> list[dict[str, str]]:
    """What cells will be records of, as far as `check_unmixed` asks."""
    if not any(row.random for row in spec.made.values()):
        return []
    made = {
        (cell.profile, RANDOM if spec.made[cell.row].random else "pretrained") for cell in cells
    }
    return [{"table": spec.table, "profile": p, "origin": origin} for p, origin in sorted(made)]


def note(profiles: Iterable[str]) -> str:
    """Say of which profiles the weights are random.

    >>> note(["small"])
    ' Profile small is not comparable with the paper: weights are random.'
    """
    return "".join(
        f" Profile {profile} is not comparable with the paper: weights are random."
        for profile in profiles
    )
