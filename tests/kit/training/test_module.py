"""The base of the apps' modules: its arguments on the command line, its checkpoints, its groups."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
import yaml
from attention_core import AGF, GFSA, Plain, SelfAttention, Softmax
from experiment_kit.cli import run_app
from experiment_kit.errors import UserError
from lightning.pytorch.plugins import HalfPrecision
from torch import nn
from torchmetrics import MeanMetric

from tests.apps.contract import find_run
from tests.kit.tiny import APP, DIM, LENGTH, Classifier, arguments


def test_the_config_contains_every_argument_with_its_default(tmp_path) -> None:
    options = ("--model.filter=GFSA", "--model.filter.K=2", "--model.layers=1")
    options += ("--spectral.every_n_steps=2",)
    run_app(APP, ["fit", *arguments(tmp_path, *options)])
    run = find_run(tmp_path)
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    model = config["model"]
    assert model["optimizer"]["class_path"] == "torch.optim.RAdam"
    assert (model["weight_decay"], model["decay_norm_and_bias"]) == (0.05, False)
    assert (model["layers"], model["kernel"], model["schedule"]) == ("1", None, None)
    assert model["filter"]["class_path"] == "attention_core.GFSA"
    assert set(config["data"]["init_args"]) == {
        *("dataset_name", "data_dir", "protocol", "batch_size", "num_workers", "seed"),
        *("dim", "others"),
    }
    assert config["data"]["init_args"]["batch_size"] == 2
    newest = torch.load(run.find_newest_checkpoint(), weights_only=True)
    saved = newest["hyper_parameters"]
    assert saved["filter"]["init_args"]["K"] == 2
    assert (saved["num_layers"], saved["weight_decay"], saved["classes"]) == (2, 0.05, 3)
    assert newest["datamodule_hyper_parameters"]["dataset_name"] == "points"
    assert (run.folder / "spectral.json").exists()
    best = run.checkpoint_folder / "best.ckpt"  # which loads without the command line
    model = Classifier.load_from_checkpoint(best, weights_only=True)
    assert [type(layer.filter) for layer in model.model[:2]] == [Plain, GFSA]
    assert model.model[1].filter.K == 2


def test_metrics_stay_in_single_precision() -> None:
    module = Classifier(3)
    module.mean = MeanMetric()
    assert module.to(torch.bfloat16).mean.mean_value.dtype == module.mean.dtype == torch.float32
    with HalfPrecision("bf16-true").forward_context():
        module.mean.to("cpu")  # as Lightning does where it logs one
    module.on_validation_batch_start()
    assert module.mean.dtype == torch.float32
    module.to_empty(device="cpu")


def test_a_copy_shares_what_refers_to_the_parser() -> None:
    module = Classifier(3, filter=partial(GFSA, K=2))
    copied = copy.deepcopy(module)
    assert copied.slots["filter"] is module.slots["filter"]
    assert {*map(id, copied.parameters())}.isdisjoint(map(id, module.parameters()))


@pytest.mark.parametrize("dropout_mask", ["shared", "filtered", None])
def test_filters_drop_entries_of_the_map_that_is_asked_for(dropout_mask) -> None:
    layer = Classifier(3, filter=GFSA, dropout_mask=dropout_mask).model[0]
    A = Softmax(*torch.randn(2, 1, layer.num_heads, 4, 8), dropout=0.5)
    layer.filter(A, torch.randn(1, layer.num_heads, 4, 8))
    assert A.shares_dropout == (dropout_mask == "shared")
    assert getattr(layer.filter, "dropout_mask", None) == dropout_mask


def test_only_matrices_decay_unless_asked() -> None:
    def decays(**options: Any) -> list[tuple[float, int]]:
        module = Classifier(3, **options)
        module._trainer = type("", (), {"estimated_stepping_batches": 9, "num_training_batches": 3})
        module._trainer.accumulate_grad_batches = 1
        (optimizer,), _ = module.configure_optimizers()
        assert isinstance(optimizer, torch.optim.RAdam)
        return [(group["weight_decay"], len(group["params"])) for group in optimizer.param_groups]

    sizes = [size for _, size in decays()]
    assert decays() == [(0.05, sizes[0]), (0.0, sizes[1])]
    assert decays(decay_norm_and_bias=True) == [(0.05, size) for size in sizes]
    module = Classifier(3)
    module.extra = nn.Linear(1, 1)
    with pytest.raises(UserError, match=r"extra.weight would not be trained: .* self.model"):
        module.configure_optimizers()


def test_a_kernel_adds_its_penalty_to_the_loss_and_logs_both() -> None:
    module, logged = Classifier(3, kernel=lambda dim, heads: AGF(dim, heads, K=2)), {}
    module.log = lambda name, value, **_: logged.update({name: value})
    for layer, penalty in zip(module.model, (1.0, 3.0), strict=False):
        layer.kernel.penalty = lambda A, penalty=penalty: torch.tensor(penalty)
    x = torch.randn(2, LENGTH, DIM)
    total = module.compute_training_loss(lambda: module.model(x).sum())
    assert logged["train/loss"] is total
    assert logged["train/penalty"] == 2  # the mean over layers
    torch.testing.assert_close(total, module.model(x).sum() + 2)


def test_slots_are_attached_to_the_selected_layers_and_plain_to_the_others() -> None:
    module = Classifier(3, filter=GFSA, layers="1:")
    hosted = nn.Sequential(SelfAttention(DIM, 2), SelfAttention(DIM, 2))
    assert [type(module.attention_builder(2, DIM, 2)(i).filter) for i in range(2)] == [Plain, GFSA]
    with pytest.raises(ValueError, match="attention"):
        module.attach_slots(hosted)  # attention that holds its parts already
