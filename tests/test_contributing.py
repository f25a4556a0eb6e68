"""The steps of CONTRIBUTING.md, applied to a copy of the repository, pass its checks."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# a step names a file, and where its block goes: after or before a line, or at the end
STEP = re.compile(
    r"(?:^\d+\. `(?P<path>[^`]+)`,?|^   and) ?(?:(?P<where>after|before) `(?P<line>[^`]+)`"
    r"|(?P<end>at the end))?:[^`]*?\n\n   ```\w*\n(?P<block>.*?)\n   ```$",
    re.MULTILINE | re.DOTALL,
)
PACKAGES = ("packages/attention-core", "packages/experiment-kit", "apps/nlp")
CHECKS = {  # by the title above the steps
    "Add a filter": ("tests/core/filters/test_contract.py",),
    "Add a data set": ("tests/apps/nlp/data/test_spam.py", "tests/kit/launch/test_overlays.py"),
}


def apply_step(step: re.Match[str], path: Path) -> None:
    block = re.sub("^   ", "", step["block"], flags=re.MULTILINE) + "\n"
    if not step["where"]:
        before = path.read_text() if step["end"] else ""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(before + block)
        return
    lines = path.read_text().splitlines(keepends=True)
    place = lines.index(step["line"] + "\n") + (step["where"] == "after")
    path.write_text("".join([*lines[:place], block, *lines[place:]]))


@pytest.mark.timeout(400)
def test_the_steps_pass_the_checks(tmp_path: Path) -> None:
    copy, changed = tmp_path / "copy", []
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    ignored = ("__pycache__", "*.egg-info", ".[pr]*_cache", ".venv*", ".git", "runs", ".hypothesis")
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*ignored))
    for title in CHECKS:
        section = re.search(rf"^## {title}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
        steps, path = [*STEP.finditer(section[1] if section else "")], ""
        assert len(steps) >= 5
        for step in steps:
            path = step["path"] or path
            apply_step(step, copy / path)
        changed += [name for step in steps if (name := step["path"]) and name.endswith(".py")]
    sources = ":".join(f"{copy}/{package}/src" for package in PACKAGES)
    environment = {**os.environ, "PYTHONPATH": f"{sources}:{copy}", "MYPYPATH": sources}
    tests = (file for files in CHECKS.values() for file in files)
    for command in (
        ["ruff", "check", *changed],
        ["ruff", "format", "--check", *changed],
        ["mypy"],  # by the cache of `make check`, where it ran
        ["pytest", "-q", "-p", "no:cacheprovider", *tests, "-k", "azy or spam or names_overlays"],
    ):
        line = [sys.executable, "-m", *command]
        done = subprocess.run(line, cwd=copy, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
