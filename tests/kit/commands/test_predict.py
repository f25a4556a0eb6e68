"""Predictions of named files: arguments that name none, and runs that cannot answer."""

import pytest
import torch
from experiment_kit.commands.predict import list_rows

from tests.processes import run_allpass


@pytest.mark.parametrize(("arguments", "sentence"), [
    (("{folder}",), "--files=[] names none: name at least one file"),
    (("{folder}", "{folder}/none"), "/none is not a file"),
    (("{folder}", "{folder}/a", "--out={folder}/b"), " is the folder of no finished run"),
    (("{folder}", "{folder}/b", "--out={folder}/a"), "/a is there, and no file of predictions"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(arguments, sentence, tmp_path, read_error) -> None:
    (tmp_path / "a").write_text("text")
    (tmp_path / "b").write_text("name,value")
    given = [argument.format(folder=tmp_path) for argument in arguments]
    assert sentence in read_error(run_allpass, "predict", *given)


def test_a_single_logit_is_a_number() -> None:
    found = [*list_rows(["a", "b"], [torch.tensor([[0.5], [2.0]])], ())]
    assert found == [("name", "value"), ("a", 0.5), ("b", 2.0)]
