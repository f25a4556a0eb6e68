"""Averaged weights: the mean of parameters, and the epochs that are kept."""

import pytest
import torch
from attention_speech.checkpoint_averaging import (
    CheckpointAveraging,
    average_weights,
    list_saved_epochs,
)
from experiment_kit.errors import UserError

from tests.apps.speech.recognizers import Utterances, make_module, make_trainer


def test_parameters_are_averaged_and_buffers_are_those_of_the_best(tmp_path) -> None:
    weights = [{"w": torch.randn(3, 2), "moments": torch.randn(2), "n": torch.tensor(i)}
               for i in range(3)]  # fmt: skip
    paths = [tmp_path / f"{i}.ckpt" for i in range(3)]
    for one, path in zip(weights, paths, strict=True):
        torch.save({"state_dict": one}, path)
    found = average_weights(paths, {"w"})
    mean = torch.stack([one["w"].double() for one in weights]).mean(0)
    torch.testing.assert_close(found["w"].double(), mean, atol=1e-7, rtol=1e-6)
    assert torch.equal(found["moments"], weights[0]["moments"])
    assert found["n"] == 0
    assert found["w"].dtype == torch.float32
    paths[1].write_bytes(paths[1].read_bytes()[:90])
    with pytest.raises(UserError, match=r"1\.ckpt is damaged"):
        average_weights(paths, {"w"})
    torch.save({"state_dict": {"w": torch.zeros(9)}}, paths[1])
    with pytest.raises(UserError, match="another model"):
        average_weights(paths, {"w"})


def test_a_resumed_run_deletes_epochs_that_it_has_not_reached(tokenizer_file, tmp_path) -> None:
    folder = tmp_path / "checkpoints" / "averaged"
    folder.mkdir(parents=True)
    for name in ("epoch=0-score=-1.0", "epoch=7-score=2.0", "note"):
        torch.save({"state_dict": {}}, folder / f"{name}.ckpt")
    module = make_module(tokenizer_file, num_averaged_epochs=2)
    make_trainer(tmp_path, max_epochs=1).fit(module, datamodule=Utterances(tokenizer_file))
    assert [saved.epoch for saved in list_saved_epochs(folder)] == [0]
    assert list_saved_epochs(folder)[0].score >= 0
    assert (folder / "note.ckpt").exists()


def test_one_epoch_is_not_averaged(tokenizer_file) -> None:
    assert make_module(tokenizer_file, num_averaged_epochs=1).configure_callbacks() == []
    with pytest.raises(ValueError, match=r"model\.num_averaged_epochs"):
        CheckpointAveraging(0)
