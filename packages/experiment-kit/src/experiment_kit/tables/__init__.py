"""Results of runs beside the values that the papers print."""

from experiment_kit.tables.paper import PaperColumn, PaperRow, PaperTable, known, load
from experiment_kit.tables.publish import publish
from experiment_kit.tables.reading import load_spec
from experiment_kit.tables.render import markdown, terminal
from experiment_kit.tables.results import (
    Measurement,
    aggregate,
    arrange,
    measure,
    merge,
    read_csv,
    write_csv,
)
from experiment_kit.tables.spec import Cell, TableSpec
from experiment_kit.tables.wilcoxon import Significance, significance

__all__ = [
    "Cell",
    "Measurement",
    "PaperColumn",
    "PaperRow",
    "PaperTable",
    "Significance",
    "TableSpec",
    "aggregate",
    "arrange",
    "known",
    "load",
    "load_spec",
    "markdown",
    "measure",
    "merge",
    "publish",
    "read_csv",
    "significance",
    "terminal",
    "write_csv",
]
