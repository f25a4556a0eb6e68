"""The spectral monitor as a callback: of our modules, and of any LightningModule."""

import csv
import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from attention_core import GFSA, attach
from experiment_kit.training import spectral_monitor as monitor
from experiment_kit.training.spectral_monitor import SpectralMonitor
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import CSVLogger
from timm.models import VisionTransformer
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

from tests.kit.diagnostics.test_smoothness import N, batch
from tests.kit.trainers import make_trainer


def load_batch(whole, samples):
    data = SimpleNamespace(val_dataloader=lambda: [whole])
    plugin = SimpleNamespace(convert_input=lambda given: given)
    trainer = SimpleNamespace(datamodule=data, precision_plugin=plugin)
    module = SimpleNamespace(transfer_batch_to_device=lambda given, *_: given, device="cpu")
    return monitor.SpectralMonitor(samples=samples)._load_batch(trainer, module)


def test_a_batch_is_cut_to_few_samples_whatever_its_parts_are():
    whole = [*batch(), [torch.arange(n) for n in (2, 5, 1)]]
    ids, mask, lists = load_batch(whole, samples=2)
    assert (ids.shape, mask.shape, mask.dtype) == ((2, N), (2, N), torch.bool)
    assert [len(part) for part in lists] == [2, 5]
    assert ids.data_ptr() != whole[0].data_ptr()  # the loader's memory may be used again


def test_a_long_text_is_measured_on_fewer_samples():
    assert len(load_batch([torch.zeros(8, 1024)], samples=8)[0]) == 2


def test_a_mapping_is_a_batch() -> None:
    ids, mask = load_batch(
        dict(zip(("input_ids", "mask"), batch(), strict=True)), samples=2
    ).values()
    assert (ids.shape, mask.shape) == ((2, N), (2, N))


class ImageClassifier(LightningModule):
    """A module as a user of timm writes it, which knows nothing of the kit."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.vit = VisionTransformer(32, 8, embed_dim=12, depth=2, num_heads=3, num_classes=3)

    def training_step(self, batch, batch_idx):
        image, label = batch
        return F.cross_entropy(F.dropout(self.vit(image)), label)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self.vit(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class TextClassifier(ImageClassifier):
    """A module as a user of transformers writes it, with a filter in its second layer."""

    def __init__(self) -> None:
        LightningModule.__init__(self)
        size = {"hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 8}
        config = BertConfig(vocab_size=11, num_hidden_layers=2, **size)
        self.bert = attach(BertForSequenceClassification(config), GFSA, [1])

    def training_step(self, batch, batch_idx):
        ids, mask, label = batch
        return self.bert(ids, attention_mask=mask.long(), labels=label).loss

    def validation_step(self, batch, batch_idx):
        self.training_step(batch, batch_idx)


def fit(module, folder, *parts, monitored=True):
    loader = DataLoader(TensorDataset(*parts), batch_size=2, shuffle=True)
    watch = [SpectralMonitor(every_n_steps=2)] * monitored
    trainer = make_trainer(*watch, max_epochs=2, logger=CSVLogger(folder), default_root_dir=folder)
    torch.manual_seed(1)
    trainer.fit(module, loader, DataLoader(TensorDataset(*parts), batch_size=3))
    return trainer


def read_scalars(trainer) -> list[dict[str, str]]:
    with open(f"{trainer.logger.log_dir}/metrics.csv") as file:
        return list(csv.DictReader(file))


def test_a_module_around_timm_is_monitored(tmp_path, capsys) -> None:
    images = torch.randn(6, 3, 32, 32), torch.arange(6) % 3
    trainer = fit(module := ImageClassifier(), tmp_path, *images)
    found = json.loads((tmp_path / "spectral.json").read_text())
    assert (len(found["depth"]), len(found["response"]), found["step"]) == (3, 2, 6)
    assert len(found["singular_values"]) == min(17, 12)
    rows = [row for row in read_scalars(trainer) if row["x_smoothing/token_cosine/layer_1"]]
    assert [int(row["step"]) for row in rows] == [2, 4, 6, 6]
    shown = capsys.readouterr().out.splitlines()
    assert "token cosine" in shown[-3]
    assert shown[-1] == "coefficients: none is trained"
    fit(alone := ImageClassifier(), tmp_path / "alone", *images, monitored=False)
    for watched, weight in zip(module.parameters(), alone.parameters(), strict=True):
        assert torch.equal(watched, weight)


def test_a_module_around_transformers_is_monitored_and_padding_left_out(tmp_path) -> None:
    ids, mask = batch()
    trainer = fit(module := TextClassifier(), tmp_path, ids, mask, torch.tensor([0, 1, 0]))
    found = json.loads((tmp_path / "spectral.json").read_text())
    assert len(found["depth"]) == 3
    assert {name.rpartition(".")[2] for name in found["coefficients"]} == {"w0", "w1", "wK"}
    assert "y_filter/wK/layer_1/max" in read_scalars(trainer)[0]
    watch = trainer.callbacks[0]
    network, args, kwargs = watch.batch
    assert network is module.bert
    assert (len(args), len(kwargs["attention_mask"])) == (1, 2)


def test_a_model_without_attention_is_refused_at_the_start(tmp_path) -> None:
    module = ImageClassifier()
    module.vit = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(3))
    with pytest.raises(ValueError, match="has no attention that attach knows"):
        fit(module, tmp_path, torch.randn(6, 3, 32, 32), torch.arange(6) % 3)


def test_numbers_are_written_with_six_digits() -> None:
    assert monitor._round_numbers({"a": [1 / 3, 2], "b": "c"}) == {"a": [0.333333, 2], "b": "c"}


@pytest.mark.parametrize("every", [1, 7, 50])
def test_a_long_run_is_measured_twenty_times_in_each_doubling(every: int) -> None:
    measured = [s for s in range(1, 400 * every) if s % monitor.choose_period(s, every) == 0]
    assert measured[:40] == [every * i for i in range(1, 41)]
    for start in (40, 80, 160):
        assert sum(start * every < step <= 2 * start * every for step in measured) == 20


class Bypassing(ImageClassifier):
    """Its steps call no module that holds all attention, so that no call can be repeated."""

    def training_step(self, batch, batch_idx):
        return self.vit.forward_head(self.vit.forward_features(batch[0])).sum()

    def validation_step(self, batch, batch_idx):
        pass


def test_steps_that_bypass_the_network_are_warned_of(tmp_path) -> None:
    with pytest.warns(UserWarning, match="measures nothing: the steps do not call the network"):
        fit(Bypassing(), tmp_path, torch.randn(6, 3, 32, 32), torch.arange(6) % 3)
    assert not (tmp_path / "spectral.json").exists()
