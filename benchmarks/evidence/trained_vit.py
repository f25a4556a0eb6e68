"""Tokens and accuracy over the training of a ViT whose eigenvalues of W_V W_O are chosen.

`python -m benchmarks.evidence.trained_vit RUNS` reads the events of the runs in a folder, finished
or not, and writes the CSV file, the table and the figure of docs/evidence.md.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from attention_core.plots import add_legend, make_panels, render_figure
from experiment_kit.pages.records import read_scalars
from experiment_kit.run import Run
from experiment_kit.run_files import write_atomically
from matplotlib.figure import Figure

from benchmarks.evidence.figures import THEMES, WIDTH
from benchmarks.evidence.publish import PAGE, replace_tables
from benchmarks.evidence.runner import Row, format_csv
from benchmarks.evidence.tables import format_table

LAST = "layer_11"
MEASURES = {
    "token_cosine": f"val/smoothing/token_cosine/{LAST}",
    "hfc_lfc": f"val/smoothing/hfc_lfc/{LAST}",
    "accuracy": "val/accuracy",
}
LABELS = {"token_cosine": "cosine of tokens", "hfc_lfc": "HFC/LFC", "accuracy": "accuracy in %"}
STYLES: dict[str, dict[str, Any]] = {
    "plain": {"color": "C1", "label": "plain"},
    "sharpening": {"color": "C0", "label": "in [−1, 0]"},
    "smoothing": {"color": "C2", "label": "in [0, 1]"},
    "band_pass": {"color": "C4", "linestyle": "dashed", "label": "both signs"},
    "centered": {"color": "C3", "linestyle": (0, (5, 1)), "label": "centered"},
    "gfsa": {"color": "C0", "linestyle": "dotted", "label": "GFSA"},
}
EVERY = 100  # steps between two rows of the file
SHOWN = (50, 700, 1600)  # steps of the table: the first measurement, and the last of both seeds


def read_runs(folder: Path) -> list[Row]:
    """Read the measures of every run at every hundredth step; accuracy is the newest one."""
    rows = []
    for run in Run.find_all(folder):
        *_, method, seed, _ = Run.parse(run.folder)
        curves = pd.DataFrame(read_scalars(run.folder, "|".join(MEASURES.values())))
        curves = curves.sort_index().ffill()
        steps = [s for s in curves.index if s % EVERY == 0 or s == SHOWN[0]]
        for step, values in curves.loc[steps].iterrows():
            named = {name: round(float(values[tag]), 4) for name, tag in MEASURES.items()}
            rows.append({"method": method, "seed": seed, "step": step, **named})
    return rows


def tabulate_steps(rows: Sequence[Row]) -> str:
    """Tabulate the cosine and the accuracy at some steps, seed 0 / seed 1."""
    columns = [(n, s) for n in ("token_cosine", "accuracy") for s in SHOWN[n == "accuracy" :]]
    lines = []
    for method in STYLES:
        line = [STYLES[method]["label"]]
        for name, step in columns:
            mine = [r for r in rows if (r["method"], r["step"]) == (method, step)]
            scale, form = (100, ".1f") if name == "accuracy" else (1, ".2f")
            line.append(" / ".join(f"{scale * r[name]:{form}}" for r in mine))
        lines.append(line)
    return format_table(["", *(f"{LABELS[name]}, step {step}" for name, step in columns)], lines)


def draw_training(rows: Sequence[Row]) -> Figure:
    """Draw each measure over the steps of seed 0."""
    figure, panels = make_panels(len(LABELS), height=3.0, width=WIDTH)
    for axis, (name, label) in zip(panels, LABELS.items(), strict=False):
        for method, style in STYLES.items():
            mine = [row for row in rows if (row["method"], row["seed"]) == (method, 0)]
            scale = 100 if name == "accuracy" else 1
            steps = [row["step"] for row in mine]
            axis.plot(steps, [scale * row[name] for row in mine], **style)
        axis.set(xlabel="step", ylabel=label)
        axis.set_ylim(bottom=0)
    add_legend(figure)
    return figure


def main(folder: str) -> None:
    """Write the file, the table and the figure."""
    rows = read_runs(Path(folder))
    docs = PAGE.parent
    write_atomically(docs / "results/evidence/trained_vit.csv", format_csv(rows))
    page = replace_tables(PAGE.read_text("utf-8"), {"trained_vit": tabulate_steps(rows)})
    write_atomically(PAGE, page)
    for theme in THEMES:
        path = docs / f"figures/evidence-trained-vit-{theme}.svg"
        write_atomically(path, render_figure(partial(draw_training, rows), theme=theme))


if __name__ == "__main__":
    main(*sys.argv[1:])
