"""Packages: one version, no direct references, configs and licences inside the wheels."""

import os
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
MEMBERS = {
    path.parent.relative_to(ROOT): tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    for path in sorted(
        [*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("apps/*/pyproject.toml")]
    )
}


def find_package(member: Path) -> str:
    (folder,) = (path for path in (ROOT / member / "src").iterdir() if path.is_dir())
    return folder.name


def test_all_packages_and_the_citation_have_one_version():
    versions = {import_module(find_package(member)).__version__ for member in MEMBERS}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    root = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert versions == {citation["version"]} == {root["version"]}


def test_the_root_lists_every_package():
    root = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names = {project["name"] for project in MEMBERS.values()}
    assert set(root["project"]["dependencies"]) == names == set(root["tool"]["uv"]["sources"])


@pytest.mark.parametrize("member", MEMBERS, ids=str)
def test_a_package_is_named_as_it_is_imported_and_its_commands_exist(member):
    project = MEMBERS[member]
    assert project["name"].replace("-", "_") == find_package(member)
    for target in project.get("scripts", {}).values():
        module, name = target.split(":")
        assert callable(getattr(import_module(module), name))


def dry_run_make(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--dry-run", "setup", "VENV=/nonexistent/venv", *arguments]
    environment = os.environ | {"CPU": "x86_64"}  # as openSUSE sets it
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


def test_setup_takes_torch_without_cuda_from_the_index_that_is_named():
    usual, cpu = dry_run_make(), dry_run_make("CPU=1", "TORCH_INDEX=file:///wheels")
    assert "--constraint constraints.txt torch\n" in usual.stdout
    index = '--constraint constraints.txt --index-url "file:///wheels" torch torchvision torchaudio'
    assert index in cpu.stdout
    assert usual.stdout.replace("constraints.txt torch", index[13:]) == cpu.stdout
    for half in ("CPU=1", "TORCH_INDEX=file:///wheels"):
        refused = dry_run_make(half)
        assert refused.returncode == 2
        assert "name both: make setup CPU=1 TORCH_INDEX=<address" in refused.stderr


@pytest.mark.parametrize(
    "member", [Path("packages/attention-core"), Path("apps/sequence")], ids=str
)
def test_a_wheel_holds_the_files_of_its_package(member, tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, f"--wheel-dir={tmp_path}", str(ROOT / member)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info" not in name}
        metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
        lines = archive.read(metadata).decode().splitlines()
        assert not [line for line in lines if line.startswith("Requires-Dist") and "@" in line]
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    source = ROOT / member / "src"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", str(source)],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    assert found == {str((ROOT / path).relative_to(source)) for path in listed}
