"""The figures that the papers print, read from `entries/*.yaml`: one entry a figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from experiment_kit.papers.values import check_name

PAPERS = {
    "gfsa": "GFSA",
    "attnscale": "AttnScale and FeatScale",
    "agf": "AGF",
    "record_straight": "Setting the Record Straight",
}
DIAGRAM = "diagram"
# drawings of what runs wrote, and of results or nothing: all others are of models
OF_RUNS = {"training", "ratio_history", "condition_history", "sweep"}
OF_RESULTS = {"gains", "errors", "scores", "evolution"}


@dataclass(frozen=True)
class RunGroup:
    """The runs of a figure, or of one of its panels: methods of one backbone on one data set.

    `methods` maps the names of methods to the labels of their lines.
    """

    app: str
    data: str
    backbone: str
    methods: Mapping[str, str]
    recipe: str = ""
    panel: str = ""

    def make_command(self, grid: str = "") -> str:
        """Return the command that makes the runs, in the setting of the paper.

        >>> RunGroup("vision", "cifar100", "vit_tiny", {"plain": "ViT-Ti"}).make_command()
        'make vision DATA=cifar100 BACKBONE=vit_tiny METHODS=plain PROFILE=paper'
        """
        names = {"DATA": self.data, "BACKBONE": self.backbone, "METHODS": ",".join(self.methods),
                 "RECIPE": self.recipe, "GRID": grid}  # fmt: skip
        given = [f"{key}={value}" for key, value in names.items() if value]
        return " ".join([f"make {self.app}", *given, "PROFILE=paper"])


@dataclass(frozen=True)
class FigureEntry:
    """A printed figure: what it plots, by which drawing and from which runs or table.

    `missing` says what the printed one needs beyond a command, `claim` what the text sees in it,
    and `text` the numbers that it reads off. `options` are those of the drawing.
    """

    paper: str
    number: int
    caption: str
    draw: str
    plots: str = ""
    missing: str = ""
    claim: str = ""
    table: str = ""
    grid: str = ""
    groups: tuple[RunGroup, ...] = ()
    text: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The paper and the number, as `gfsa-2`."""
        return f"{self.paper.replace('_', '-')}-{self.number}"

    @property
    def title(self) -> str:
        """The name of the paper and the number of the figure."""
        return f"{PAPERS[self.paper]}, figure {self.number}"

    @property
    def is_diagram(self) -> bool:
        """True for a figure that shows an architecture, and plots nothing."""
        return self.draw == DIAGRAM

    @property
    def is_of_models(self) -> bool:
        """True for a figure that any model can be drawn into."""
        return self.draw not in {DIAGRAM, *OF_RUNS, *OF_RESULTS}

    @property
    def commands(self) -> list[str]:
        """The commands that make what the figure is drawn from; none if it needs nothing."""
        tables = [self.table, *(pair["table"] for pair in self.options.get("pairs", ()))]
        found = [f"make table TABLE={table}" for table in tables if table and not self.groups]
        found += [group.make_command(self.grid) for group in self.groups]
        return list(dict.fromkeys(found))


def list_figures(paper: str = "") -> list[FigureEntry]:
    """Return the figures of a paper, or of all; UserError, with the names, for an unknown one."""
    if paper:
        check_name(paper.replace("-", "_"), PAPERS, "paper with figures")
    return [e for e in _read_entries().values() if paper.replace("-", "_") in ("", e.paper)]


def find_figure(name: str) -> FigureEntry:
    """Return a figure by its id; UserError, with similar ones, if there is none."""
    entries = _read_entries()
    return entries[check_name(name.replace("_", "-"), entries, "figure")]


@cache
def _read_entries() -> dict[str, FigureEntry]:
    folder = files("experiment_kit.papers.figures") / "entries"
    contents = [
        yaml.safe_load((folder / f"{paper}.yaml").read_text(encoding="utf-8")) for paper in PAPERS
    ]
    entries = [_parse_entry(c["paper"], figure) for c in contents for figure in c["figures"]]
    return {entry.id: entry for entry in entries}


def _parse_entry(paper: str, content: Mapping[str, Any]) -> FigureEntry:
    known = FigureEntry.__dataclass_fields__
    groups: Sequence[Mapping[str, Any]] = content.get("groups", ())
    options = {key: value for key, value in content.items() if key not in known}
    own = {key: value for key, value in content.items() if key in known and key != "groups"}
    parsed = tuple(RunGroup(**group) for group in groups)
    return FigureEntry(paper=paper, groups=parsed, options=options, **own)
