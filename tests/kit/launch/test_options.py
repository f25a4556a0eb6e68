"""Mistakes in the launcher's options are one sentence each, before anything is parsed."""

import os

import pytest
from experiment_kit.launch.plan import ConfigPlanner

from tests.processes import run_allpass

TABLE, COMPARE = ("table", "agf-table-1"), ("compare", "sequence")


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    for owner, name in ((ConfigPlanner, "merge_config"), (os, "execv")):
        monkeypatch.setattr(owner, name, lambda *_: pytest.fail("it was parsed or run"))


@pytest.mark.parametrize(("command", "sentence"), [
    ((*TABLE, "--nonsense=1"), "There is no option named '--nonsense'"),
    ((*TABLE, "--rows=[]"), "--rows=[] names none"),
    ((*TABLE, "--rows=agf,agf"), "--rows names agf twice"),
    ((*TABLE, "--rows=[agv]"), "no row of agf-table-1 to run named 'agv' (did you mean agf?)"),
    ((*TABLE, "--seed=0,1,0"), "--seeds names 0 twice"),
    ((*TABLE, "--seeds=[-1]"), "--seeds: a seed is 0 to 4294967295, got -1"),
    ((*TABLE, "--jobs=-1"), "jobs: Not of type NonNegativeInt: "),
    ((*TABLE, "--out="), "--out= is empty: name a folder"),
    ((*TABLE, "--folder=/dev/null"), "cannot use /dev/null: File exists"),
    (("table", "agf-table-99"), "There is no table named 'agf-table-99' (did you mean"),
    ((*COMPARE, "--profile=../base"), "no profile '../base' in sequence; there are: "),
    (("train", "../apps/sequence"), "no installed app named '../apps/sequence' (did you "),
    ((*COMPARE, "--args='"), "--args=': No closing quotation"),
    ((*COMPARE, "--args=--seed_everything=5"), "--args has seed_everything: name seeds by"),
    ((*COMPARE, "--args=-c {folder}/own.yaml"), "--args has seed_everything: name seeds by"),
    ((*COMPARE, "--grid=seed_everything=1,2"), "--grid has seed_everything: name seeds by"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(command, sentence, tmp_path, read_error) -> None:
    if command[0] != "train" and not any("--folder" in argument for argument in command):
        command += (f"--folder={tmp_path}",)
    (tmp_path / "own.yaml").write_text("seed_everything: 5")
    command = [argument.replace("{folder}", str(tmp_path)) for argument in command]
    assert sentence in read_error(run_allpass, *command)
