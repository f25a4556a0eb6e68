"""Modules of the apps in a stock Trainer: fit, load, test and go on as any Lightning user does."""

from functools import partial

import pytest
import torch
from attention_core import AGF, GFSA, EigenSpectrum, FeatScale
from attention_nlp.module import LanguageModule
from attention_nlp.tasks import Classification
from attention_sequence.module import SequenceClassifier
from attention_vision.module import VisionClassifier
from experiment_kit.training.optim import CosineSchedule
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

SERIES = {"num_features": 3, "num_classes": 2, "max_length": 5, "dim": 8, "num_heads": 2,
          "num_layers": 1, "ffn_dim": 8}  # fmt: skip
SLOTS = {
    "plain": {},
    "class": {"filter": GFSA, "kernel": AGF},
    "partial": {"filter": partial(GFSA, K=4), "optimizer": partial(torch.optim.SGD, lr=0.1)},
    "objects": {"tokens": FeatScale, "schedule": CosineSchedule(warmup=1)},
    "reparam": {"reparam": partial(EigenSpectrum, kind="smoothing")},
}


class Data(LightningDataModule):
    """A data module of Lightning alone."""

    def loader(self):
        x, mask = torch.randn(8, 5, 3), torch.ones(8, 5, dtype=torch.bool)
        return DataLoader([*zip(x, mask, torch.arange(8) % 2, strict=True)], batch_size=4)

    def test_dataloader(self):
        return [self.loader()] * 3

    train_dataloader = val_dataloader = loader


def make_trainer(folder, **options) -> Trainer:
    checkpoints = ModelCheckpoint(folder, monitor="val/score", mode="max")
    return Trainer(callbacks=[checkpoints], default_root_dir=folder, logger=False,
                   accelerator="cpu", enable_progress_bar=False, **options)  # fmt: skip


@pytest.mark.parametrize("slots", SLOTS)
def test_a_module_is_saved_loaded_tested_and_trained_on(slots, tmp_path) -> None:
    torch.manual_seed(0)
    model = SequenceClassifier(**SERIES, **SLOTS[slots])
    trainer = make_trainer(tmp_path, max_epochs=1)
    trainer.fit(model, Data())
    *_, tested = trainer.test(model, Data(), ckpt_path="best", verbose=False)
    assert "test/2_accuracy" in tested
    path = trainer.checkpoint_callback.best_model_path
    loaded = SequenceClassifier.load_from_checkpoint(path)
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight)
    assert str(loaded.model) == str(model.model)
    for name in ("filter", "kernel", "tokens", "reparam", "optimizer", "schedule"):
        classes = [module.hparams[name] and module.hparams[name]["class_path"]
                   for module in (model, loaded)]  # fmt: skip
        assert classes[0] == classes[1]
    longer = make_trainer(tmp_path, max_epochs=2)
    longer.fit(SequenceClassifier(**SERIES, **SLOTS[slots]), Data(), ckpt_path=path)
    assert longer.current_epoch == 2


def test_arguments_that_are_no_data_are_given_again(tmp_path) -> None:
    model = SequenceClassifier(**SERIES, filter=lambda heads: GFSA(heads, K=5))
    trainer = make_trainer(tmp_path, max_epochs=1)
    trainer.fit(model, Data())
    path = trainer.checkpoint_callback.best_model_path
    loaded = SequenceClassifier.load_from_checkpoint(path, filter=partial(GFSA, K=5))
    assert str(loaded.model) == str(model.model)


@pytest.mark.parametrize("build", [
    lambda: VisionClassifier(3, 32, "deit_tiny_patch16_224", filter=GFSA),
    lambda: LanguageModule(2, 20, 8, 0, task=Classification(), architecture="bert",
                       options={"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
                                "intermediate_size": 8}),
])  # fmt: skip
def test_checkpoints_hold_plain_data(build, tmp_path) -> None:
    torch.manual_seed(0)
    model, path = build(), tmp_path / "model.ckpt"
    trainer = make_trainer(tmp_path, max_epochs=0)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(path)
    torch.load(path, weights_only=True)
    assert [*type(model).load_from_checkpoint(path).state_dict()] == [*model.state_dict()]
