"""The spectral monitor as a callback: of our modules, and of any LightningModule."""

import csv
import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from attention_core import GFSA, attach, diagnose
from experiment_kit.training import spectral_monitor as monitor
from experiment_kit.training.spectral_monitor import SpectralMonitor
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from timm.models import VisionTransformer
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

from tests.kit.trainers import make_trainer

B, N = 3, 7


def batch():
    ids, mask = torch.randint(11, (B, N)), torch.ones(B, N, dtype=torch.bool)
    mask[1, 4:] = False
    return [ids, mask]


def stand_in(whole):
    """What the monitor takes of a trainer: a loader, and a plugin that changes nothing."""
    plugin = SimpleNamespace(convert_input=lambda given: given, forward_context=nullcontext)
    data = SimpleNamespace(val_dataloader=lambda: {"val": iter([whole])})
    return SimpleNamespace(datamodule=data, val_dataloaders=[None], precision_plugin=plugin)


def load_batch(whole, samples):
    module = PaddedClassifier()
    module.token_mask = lambda given: None
    return SpectralMonitor(samples=samples)._load_call(stand_in(whole), module).args[0]


def test_a_batch_is_cut_to_few_samples_whatever_its_parts_are():
    whole = [*batch(), [torch.arange(n) for n in (2, 5, 1)]]
    ids, mask, lists = load_batch(whole, samples=2)
    assert (ids.shape, mask.shape, mask.dtype) == ((2, N), (2, N), torch.bool)
    assert [len(part) for part in lists] == [2, 5]
    assert ids.data_ptr() != whole[0].data_ptr()  # the loader's memory may be used again
    found = load_batch({"ids": whole[0], "mask": whole[1]}, samples=2)
    (nested, _), bare = (load_batch(x, samples=2) for x in ([found, whole[1]], whole[0]))
    assert [x.shape for x in (*found.values(), *nested.values(), bare)] == [(2, N)] * 5
    assert len(load_batch([torch.zeros(8, 1024)], samples=8)[0]) == 2  # a long text
    watch, network = SpectralMonitor(samples=2), torch.nn.TransformerEncoderLayer(12, 2, 8)
    watch._capture_call(network)
    network(torch.randn(9, 3, 12))
    assert len(watch.call.args[0]) == 9  # the tokens are the first axis


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


class PaddedClassifier(TextClassifier):
    """A module that says how it takes a batch, and which tokens are valid."""

    def token_mask(self, batch):
        return batch[1]

    def predict_step(self, batch, batch_idx):
        return self.bert(*batch)


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
    rows = [row for row in read_scalars(trainer) if row["val/smoothing/token_cosine/layer_01"]]
    assert [int(row["step"]) for row in rows] == [2, 4, 6]
    shown = capsys.readouterr().out.splitlines()
    assert "token cosine" in shown[-2]
    assert shown[-1] == "coefficients: none is trained"
    fit(alone := ImageClassifier(), tmp_path / "alone", *images, monitored=False)
    for watched, weight in zip(module.parameters(), alone.parameters(), strict=True):
        assert torch.equal(watched, weight)


def test_a_module_around_transformers_is_monitored_and_padding_left_out(tmp_path) -> None:
    ids, mask = batch()
    module = TextClassifier()
    module.teacher = TextClassifier().bert.requires_grad_(False)
    trainer = fit(module, tmp_path, ids, mask, torch.tensor([0, 1, 0]))
    found = json.loads((tmp_path / "spectral.json").read_text())
    assert len(found["depth"]) == 3
    assert {name.rpartition(".")[2] for name in found["coefficients"]} == {"w0", "w1", "wK"}
    assert "weights/wK/layer_01" in read_scalars(trainer)[0]
    watch = trainer.callbacks[0]
    assert watch.call.function is module.bert
    assert (len(watch.call.args), len(watch.call.kwargs["attention_mask"])) == (1, 2)


@pytest.mark.parametrize("value", [float("nan"), 1e30])
@pytest.mark.parametrize("name", ["filter.wK", "value.weight"])
def test_weights_that_are_no_numbers_are_measured(name, value, tmp_path) -> None:
    ids, mask = batch()
    module = TextClassifier()
    names = dict(module.named_parameters())
    (name,) = (key for key in names if key.endswith(f"1.attention.self.{name}"))

    def spoil(trainer, module, *_):
        if trainer.global_step == 2:
            module.get_parameter(name).data.flatten()[:1] = value

    loader = DataLoader(TensorDataset(ids, mask, torch.tensor([0, 1, 0])))
    logger = TensorBoardLogger(tmp_path)
    watch = [LambdaCallback(on_train_batch_end=spoil), SpectralMonitor(every_n_steps=2)]
    make_trainer(*watch, max_epochs=2, logger=logger, default_root_dir=tmp_path).fit(module, loader)
    assert json.loads((tmp_path / "spectral.json").read_text())["step"] == 6


class Bypassing(ImageClassifier):
    """Its steps call no module that holds all attention, so that no call can be repeated."""

    def training_step(self, batch, batch_idx):
        return self.vit.forward_head(self.vit.forward_features(batch[0])).sum()

    def validation_step(self, batch, batch_idx):
        pass


FLAT = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32**2, 3))
Misled = type("Misled", (ImageClassifier,), {"predict_step": lambda _, batch, __: batch["image"]})


@pytest.mark.parametrize(("kind", "change", "reason"), [
    (ImageClassifier, lambda vit: torch.compile(vit, backend="eager"), "wraps"),
    (ImageClassifier, lambda _: FLAT, "has no attention that attach knows"),
    (Misled, lambda vit: vit, r"\(TypeError in .*test_spectral_monitor.py"),
    (Bypassing, lambda vit: vit, "the steps do not call the network"),
])  # fmt: skip
def test_what_cannot_be_measured_is_warned_of_and_trained(kind, change, reason, tmp_path) -> None:
    module = kind()
    module.vit = change(module.vit)
    with pytest.warns(UserWarning, match=f"measures no tokens: .*{reason}"):
        fit(module, tmp_path, torch.randn(6, 3, 32, 32), torch.arange(6) % 3)
    found = json.loads((tmp_path / "spectral.json").read_text())["depth"]
    assert len(found) == 3 * (kind is Misled)  # later, a call of the training is repeated


def test_the_monitor_and_a_diagnosis_have_the_same_numbers() -> None:
    """Also of a layer that is used twice."""
    module, whole, watch = PaddedClassifier(), batch(), SpectralMonitor()
    layers = module.bert.bert.encoder.layer
    layers.append(layers[1])
    for _ in range(2):  # planned once
        found = watch._measure_layers(stand_in(whole), module)
    report = diagnose(module.bert, tuple(whole), mask=whole[1], measures="light")
    for name in monitor.TOKEN_MEASURES:
        assert [depth[name] for depth in found["depth"]] == report.curve(name)
    assert len(found["response"]) == len(report.layers) == 3
    for response, layer in zip(found["response"], report.layers, strict=True):
        assert response == torch.tensor(layer.responses).mean(0).tolist()
    assert found["attention"] == [f"bert.bert.encoder.layer.{i}.attention.self" for i in range(2)]


@pytest.mark.parametrize("every", [1, 7, 50])
def test_a_long_run_is_measured_twenty_times_in_each_doubling(every: int) -> None:
    measured = [s for s in range(1, 400 * every) if s % monitor.choose_period(s, every) == 0]
    assert measured[:40] == [every * i for i in range(1, 41)]
    for start in (40, 80, 160):
        assert sum(start * every < step <= 2 * start * every for step in measured) == 20
