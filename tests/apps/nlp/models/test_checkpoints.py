"""Checkpoints that cannot be loaded, and tokenizers in checkpoints."""

import pytest
import torch
from attention_nlp.models import checkpoints, crammed
from experiment_kit.errors import UserError

from tests.apps.nlp.small import CRAMMED, SLOTS
from tests.apps.nlp.small import CRAMMED_INFO as INFO


@pytest.mark.parametrize(
    ("saved", "sentence"),
    [
        (None, r"best\.ckpt does not exist"),
        (b"no archive", "is not a readable checkpoint"),
        ({"state_dict": {}}, r"is of another network: it lacks embedding\.scale"),
    ],
)
def test_weights_that_cannot_be_loaded_are_reported(saved, sentence, tmp_path) -> None:
    path = tmp_path / "best.ckpt"
    if isinstance(saved, bytes):
        path.write_bytes(saved)
    elif saved is not None:
        torch.save(saved, path)
        with pytest.raises(UserError, match="holds no tokenizer"):
            checkpoints.load_tokenizer(str(path))
    with pytest.raises(UserError, match=sentence):
        crammed.build_crammed("labels", str(path), CRAMMED, INFO, SLOTS)
