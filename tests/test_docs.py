"""The code of the documentation runs, every mechanism has a page, and README's numbers are ours."""

import csv
import math
import re
import shlex
from pathlib import Path
from statistics import mean, stdev

import attention_core
import pytest
from attention_core import kernels
from experiment_kit.launch.overlays import list_overlays
from experiment_kit.papers.results import open_results
from experiment_kit.papers.spec import find_spec
from scipy.stats import t

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path
    for path in [*DOCS.glob("*.md"), *DOCS.glob("mechanisms/*.md"), *DOCS.glob("notebooks/*.md")]
    if not path.is_relative_to(DOCS / "build")
)
BLOCK = re.compile(r"^```(?:python|\{code-cell\} python)\n((?:(?!```).*\n)*)```", re.MULTILINE)
TAGS = re.compile(r"^:tags:.*\n", re.MULTILINE)


def read_code(page: Path) -> list[str]:
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [re.sub(r"^%.*\n", "", TAGS.sub("", block), flags=re.MULTILINE) for block in blocks]


@pytest.mark.parametrize(
    "page", [p for p in [ROOT / "README.md", *PAGES] if read_code(p)], ids=lambda page: page.stem
)
def test_the_code_of_a_page_runs(page, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(DOCS / "figures"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": page.stem}
    for block in read_code(page):
        exec(compile(block, str(page), "exec"), names)


def test_every_mechanism_has_a_page_and_an_entry_in_the_api():
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCS.glob("mechanisms/*.md"))
    api = (DOCS / "api.md").read_text(encoding="utf-8")
    classes = ["GFSA", "AttnScale", "CenteredAttention", "Polynomial", "ReAttention"]
    classes += ["FeatScale", "ContraNorm", "LayerScale", "EigenSpectrum"]
    classes += [name for name, value in vars(kernels).items() if hasattr(value, "forward")]
    assert not [name for name in classes if name not in text]
    functions = {*attention_core.__all__} - {"spectral", "theory", "Operator"}
    assert not [name for name in {*classes, *functions} if f":: {name}\n" not in api]


def list_table_commands(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(r"make (?:table|plan|report) (TABLE=[^`\n|#]*)", text)


@pytest.mark.parametrize(
    "page", [p for p in [ROOT / "README.md", *PAGES] if list_table_commands(p)],
    ids=lambda page: page.stem,
)  # fmt: skip
def test_tables_rows_and_columns_in_the_commands_of_a_page_exist(page):
    for command in list_table_commands(page):
        variables = dict(word.split("=", 1) for word in shlex.split(command))
        spec = find_spec(variables["TABLE"])
        chosen = dict(re.findall(r"--(rows|columns)=\[(.*?)\]", variables.get("ARGS", "")))
        names = {kind: value.split(",") for kind, value in chosen.items()}
        profile, protocol = variables.get("PROFILE", "paper"), variables.get("PROTOCOL", "paper")
        assert spec.list_cells(profile, protocol, [0], **names)
        assert profile in ["paper", *list_overlays(spec.app, "profile")]


def test_means_on_the_page_of_results_are_those_of_runs():
    found = []
    for path in sorted((DOCS / "results").glob("*.csv")):
        results = open_results(path.parent, find_spec(path.stem))
        for cells in (results.compare_cells(*condition) for condition in results.conditions):
            found += [cell.estimate for cell in cells if cell.estimate]
    page = (DOCS / "results/README.md").read_text(encoding="utf-8")
    for mean_text, half in re.findall(r"(\d+\.\d+) ± (\d+\.\d+)", page):
        digits = len(mean_text.partition(".")[2])
        near = 0.501 * 10**-digits
        assert any(
            abs(e.mean - float(mean_text)) < near and abs(e.std - float(half)) < near for e in found
        ), f"{mean_text} ± {half}"


def test_readme_has_the_counts_of_the_index():
    readme, index = ((ROOT / p).read_text() for p in ("README.md", "docs/results/index.md"))
    pattern = r"print ([\d,]+) numbers.* (\d+) cells are measured, and (\d+) of"
    printed, measured, comparable = re.search(pattern, index).groups()
    assert f"print {printed} values that can be measured. {measured} are measured here" in readme
    assert f"; {comparable} of these can be compared with the paper" in readme


SOURCES = {  # a row of README: its table, rows of plain and of GFSA, column, profile, protocol
    **{
        f"{name}, Transformer": ("agf-table-1", "transformer", "gfsa", column, "paper", "published")
        for name, column in (
            ("Handwriting", "handwriting"),
            ("JapaneseVowels", "japanese_vowels"),
            ("UWaveGestureLibrary", "uwave_gesture_library"),
        )
    },
    **{
        f"{task}, MiniLM": ("gfsa-table-1", "minilm", "minilm-gfsa", column, "paper", "test")
        for task, column in (("CoLA", "cola"), ("MRPC", "mrpc"), ("STS-B", "stsb"), ("RTE", "rte"))
    },
}


def read_seeds(table: str, *place: str) -> list[float]:
    with (DOCS / f"results/{table}.csv").open(encoding="utf-8") as file:
        lines = sorted(csv.DictReader(file), key=lambda line: line["seed"])
    keys = ("row", "column", "profile", "protocol")
    return [float(line["value"]) for line in lines if tuple(line[k] for k in keys) == place]


@pytest.mark.parametrize("label", SOURCES)
def test_readme_has_the_results_of_the_runs(label):
    table, plain, gfsa, *place = SOURCES[label]
    ours, other = read_seeds(table, plain, *place), read_seeds(table, gfsa, *place)
    gains = [b - a for a, b in zip(ours, other, strict=True)]
    half = t.ppf(0.975, len(gains) - 1) * stdev(gains) / math.sqrt(len(gains))
    low, high = mean(gains) - half, mean(gains) + half
    text = f"{mean(ours):.2f} | {mean(other):.2f} | {mean(gains):+.2f} [{low:.2f}, {high:.2f}] |"
    rows = (ROOT / "README.md").read_text().replace("−", "-").splitlines()
    assert [row for row in rows if row.startswith(f"| {label} |") and row.endswith(text)]
