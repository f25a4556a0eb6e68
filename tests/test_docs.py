"""The code of the documentation runs, every mechanism has a page, and every page is reached."""

import re
import shlex
from pathlib import Path

import attention_core
import pytest
from attention_core import kernels
from experiment_kit.launch.overlays import list_overlays
from experiment_kit.papers.spec import find_spec

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path
    for path in [*DOCS.glob("*.md"), *DOCS.glob("mechanisms/*.md"), *DOCS.glob("notebooks/*.md")]
    if not path.is_relative_to(DOCS / "build")
)
BLOCK = re.compile(r"^```(?:python|\{code-cell\} python)\n((?:(?!```).*\n)*)```", re.MULTILINE)
TAGS = re.compile(r"^:tags:.*\n", re.MULTILINE)
SLOW = {"fine_tune_with_trainer"}  # trains for a few seconds, and needs accelerate: `make docs`


def read_code(page: Path) -> list[str]:
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [re.sub(r"^%.*\n", "", TAGS.sub("", block), flags=re.MULTILINE) for block in blocks]


@pytest.mark.parametrize(
    "page", [p for p in [ROOT / "README.md", *PAGES] if read_code(p) and p.stem not in SLOW],
    ids=lambda page: page.stem,
)  # fmt: skip
def test_the_code_of_a_page_runs(page, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "figures"))
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
        profile, protocol = variables.get("PROFILE", "paper"), variables.get("PROTOCOL")
        assert spec.list_cells(profile, protocol or "validation", [0], **names)
        assert profile in ["paper", *list_overlays(spec.app, "profile")]
