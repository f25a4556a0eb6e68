"""Every option of a model, and of its data, has a description that `--help` shows."""

from typing import Any

import pytest
from attention_nlp.models.crammed import CrammedConfig
from attention_speech.language import LanguageModel, Transcripts
from attention_vision.losses import Mix
from attention_vision.models.late_class_token import ClassToken
from jsonargparse import ArgumentParser

from tests.apps.cases import CASES


def list_kinds(kind: type) -> list[type]:
    return [kind, *(found for sub in kind.__subclasses__() for found in list_kinds(sub))]


KINDS = [LanguageModel, Transcripts, Mix, ClassToken, CrammedConfig]
KINDS += [kind for case in CASES for kind in (case.app.model, *list_kinds(case.app.data))]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "attention_" in kind.__module__])
def test_every_option_has_a_description(kind: Any) -> None:
    parser = ArgumentParser()
    parser.add_class_arguments(kind, "of", fail_untyped=False)
    options = {action.dest: action.help for action in parser._actions}
    assert len(options) > 1
    assert [name for name, text in options.items() if not text] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_help_lists_the_mechanisms_of_a_slot_and_not_all_modules(case: Any) -> None:
    text = " ".join(case.cli.subparser.format_help().split())
    assert text.startswith(f"usage: attention-{case.name} ")
    assert type(case.cli.subparser)().prog == "attention-<app> ..."  # as in --data.help CLASS
    assert "such as AttnScale, CenteredAttention, GFSA, " in text
    assert "torch.nn.Identity" not in text
