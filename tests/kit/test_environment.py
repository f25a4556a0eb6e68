"""What a run records of the code that it ran."""

import inspect
import subprocess

from experiment_kit import environment


def test_published_results_do_not_mark_the_code_as_modified(tmp_path, monkeypatch) -> None:
    def ask(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True)

    code, results = tmp_path / "kit/run.py", tmp_path / "docs/results/table.csv"
    for path in (code, results):
        path.parent.mkdir(parents=True)
        path.write_text("a")
    ask("init", "-q")
    ask("add", ".")
    ask("commit", "-qm", "Add both")
    monkeypatch.setattr(environment, "__file__", str(code))
    monkeypatch.setattr(environment, "_find_versions", lambda _: {})
    read = inspect.unwrap(environment.describe_code)  # it is asked once a process
    assert len(read()["commit"]) == 40
    results.write_text("b")
    assert not read()["modified"]
    code.write_text("b")
    assert read()["modified"]
