"""The page of a table in Markdown: the numbers, their statistics and their runs."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from experiment_kit.papers.cell_statistics import (
    EXPLANATION,
    format_pairs,
    format_statistics,
    format_tests,
)
from experiment_kit.papers.provenance import (
    NOT_RECORDED,
    RunLine,
    format_heading,
    group_lines,
    list_run_lines,
    make_anchors,
)
from experiment_kit.papers.render import (
    FormattedCell,
    describe_cells,
    describe_setting,
    escape_markdown,
    format_commands,
    format_rows,
)
from experiment_kit.papers.results import TableResults

_IN_CODE = "`"  # ends it
_RUNS = (
    "One line a seed. The hash leads to the config, which alone reruns the experiment; the record "
    "has the result with its digest, the environment of each start, training curves and the end "
    "of the log. `git show <commit>` has the code; a commit that ends in -modified had changes "
    "that were not committed."
)


def render_markdown(results: TableResults, out: Path) -> str:
    """Write the page of a table: what was measured, its runs, and the notes on misprints.

    The configs and records of the runs are in `out`, the folder of the page.
    """
    spec, paper = results.spec, results.paper
    source = f"Source: {paper.citation}."
    head = [*map(escape_markdown, ["method", *(paper.headings[k] for k in paper.measurable)])]
    blocks = [f"# {paper.title}", paper.caption, source, escape_markdown(describe_cells(results))]
    blocks += [spec.remark] if spec.remark else []
    blocks += [EXPLANATION] if results.settings else []
    anchors = make_anchors(results)
    for setting in results.settings:
        names = (escape_markdown(name, _IN_CODE) for name in setting)
        blocks += [
            "## Profile `{}`, protocol `{}`".format(*names),
            escape_markdown(describe_setting(spec, *setting)),
            _format_code(format_commands(results, *setting)),
            render_table(head, [*_list_rows(results, *setting, anchors)]),
        ]
        for table in (
            format_statistics(results, *setting),
            format_pairs(results, *setting),
            format_tests(results, *setting),
        ):
            if table is not None:
                cells = [[*map(escape_markdown, line)] for line in (table.head, *table.body)]
                blocks += [escape_markdown(table.caption), render_table(cells[0], cells[1:])]
    if not results.settings:
        command = (
            f"make table TABLE={spec.table} PROFILE=small PROTOCOL={next(iter(spec.protocols))}"
        )
        blocks.append(f"Nothing has been measured yet: `{command}`.")
    if results.settings:
        blocks += ["## Runs", _RUNS, *_render_runs(results, out)]
    if paper.notes:
        blocks += ["## Notes on the printed values", "\n".join(f"- {n}" for n in paper.notes)]
    return "\n\n".join(blocks) + "\n"


def _format_code(lines: Sequence[str]) -> str:
    return "\n".join(["```", *(escape_markdown(line, _IN_CODE) for line in lines), "```"])


def _list_rows(
    results: TableResults, profile: str, protocol: str, anchors: Mapping[tuple[str, str, str], str]
) -> Iterator[list[str]]:
    """Yield the cells of each row; ours lead to the runs of the row."""
    keys = results.spec.labels(results.paper)
    for key, (label, cells) in zip(keys, format_rows(results, profile, protocol), strict=True):
        anchor = anchors.get((key, profile, protocol), "")
        yield [escape_markdown(label), *(_format_cell(cell, anchor) for cell in cells.values())]


def _format_cell(cell: FormattedCell, anchor: str) -> str:
    ours = f"[{cell.measured}](#{anchor})" if cell.estimate and anchor else cell.measured
    difference = f" ({cell.difference})" if cell.difference else ""
    return f"{ours}<br>{cell.printed}{difference}" if cell.printed else ours


def _render_runs(results: TableResults, out: Path) -> Iterator[str]:
    """Yield a heading and a table for the runs of each row, profile and protocol."""
    labels, headings = results.spec.labels(results.paper), results.paper.headings
    head = ["column", "seed", "value", "run", "commit", "environment", "record"]
    for setting in results.settings:
        rows = group_lines(list_run_lines(results, *setting, out))
        for row, lines in rows.items():
            yield f"### {escape_markdown(format_heading(labels.get(row, row), *setting))}"
            yield render_table(
                head,
                [
                    [escape_markdown(headings[line.column]), *_format_line(line, out)]
                    for line in lines
                ],
            )


def _format_line(line: RunLine, out: Path) -> list[str]:
    run, commit, environment = map(escape_markdown, (line.run, line.commit, line.environment))
    return [
        str(line.seed),
        line.value,
        f"[{run}]({link_from(out, line.config)})" if line.config else run,
        commit,
        environment,
        f"[record]({link_from(out, line.record)})" if line.record else NOT_RECORDED,
    ]


def link_from(folder: Path, file: Path) -> str:
    """Return the address of a file relative to the folder of the page that names it.

    >>> link_from(Path("docs/results"), Path("docs/results/configs/0123456789.yaml"))
    'configs/0123456789.yaml'
    """
    return quote(Path(os.path.relpath(file, folder)).as_posix())


def render_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Write a table in Markdown, of which the first columns are aligned to the left."""
    rule = [*["---"] * left, *["---:"] * (len(head) - left)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))
