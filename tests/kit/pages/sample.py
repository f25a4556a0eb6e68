"""A page with everything that the macros of pages have, for tests."""

from pathlib import Path

from experiment_kit.pages.run_figures import FigureSet, PageFigure
from experiment_kit.pages.svg import SERIES, draw_panels
from experiment_kit.pages.tables import Cell, PageTable
from experiment_kit.pages.template import write_page
from matplotlib.figure import Figure

TEMPLATE = """
{% extends "page.html" %}
{% block body %}
<h2>Results</h2>
{{ table(results) }}
{{ command(lines) }}
<h2>Figures</h2>
{{ figures(figure_set) }}
<h2>More</h2>
{% call disclosure("All settings") %}{{ key_values(settings) }}{% endcall %}
{% call disclosure("Runs") %}{{ table(runs) }}{% endcall %}
<h2>More</h2>
{{ table(wide) }}
{% endblock %}
"""
SCORES = {"plain": 98.0, "gfsa": 99.0, "agf": None, "w_0": 9.5}


def draw(count: int) -> Figure:
    figure = Figure(figsize=(3 * count, 2.4))
    for i, axis in enumerate(figure.subplots(1, count, squeeze=False)[0]):
        axis.plot([0, 1, 2], [0, 1, i], color=SERIES[i % 8])
        axis.set(title=f"measure {i}", xlabel="block")
    return figure


def write_sample(path: Path, **context: object) -> Path:
    """Write a page with a table, figures, settings, and a table that is too wide."""
    best = max(value for value in SCORES.values() if value)
    rows = [
        [
            Cell(name),
            Cell("–" if score is None else str(score), score, is_best=score == best),
            Cell("9.0", 9.0, "9.5", "−0.5", "worse"),
        ]
        for name, score in SCORES.items()
    ]
    panels = [draw_panels(lambda: draw(3), "depth"), draw_panels(lambda: draw(9), "heads", False)]
    wide = [[Cell(f"row {i}"), *(Cell(f"{i}.{j}", i) for j in range(60))] for i in range(2)]
    given = {
        "title": "A sample",
        "results": PageTable("results", ["method", "accuracy", "loss"], rows, "Bold is best."),
        "lines": ["make sequence METHODS=plain,gfsa ARGS='--model.filter.K=5'" + " --more" * 40],
        "figure_set": FigureSet(
            {"plain": "border-top: 3px solid var(--series-0)"},
            [PageFigure(part, "A caption.") for part in panels],
        ),
        "settings": {"model.filter": "attention_core.GFSA", "model.filter.K": "3" * 200},
        "runs": PageTable("runs", ["run"], [[Cell("0123456789", id="plain-small")]]),
        "wide": PageTable("wide", ["row", *map(str, range(60))], wide),
    }
    template = path.with_name("sample_template.html")
    template.write_text(TEMPLATE)
    write_page(path, template, **given | context)
    return path
