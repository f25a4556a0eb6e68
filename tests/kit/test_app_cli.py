"""Every option of Lightning's command line acts, or is refused with what to use instead."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch.nn.functional as F
import yaml
from experiment_kit.app_cli import AppCLI, take_model
from experiment_kit.cli import REFUSED, check_flags, explain_difference, run_app
from experiment_kit.errors import UserError
from experiment_kit.parsing import parsing_settings, restrict_classes
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from tests.kit.tiny import APP, Classifier, arguments

PASSED_ON = {
    "accelerator": "cpu", "strategy": "ddp", "devices": "2", "num_nodes": 2,
    "precision": "bf16-mixed", "fast_dev_run": 2, "max_epochs": 3, "min_epochs": 2,
    "max_steps": 5, "min_steps": 2,
    "max_time": "00:00:01:00", "limit_train_batches": 3, "limit_val_batches": 3,
    "limit_test_batches": 3, "limit_predict_batches": 3, "overfit_batches": 2,
    "val_check_interval": 2, "check_val_every_n_epoch": 2, "num_sanity_val_steps": 1,
    "log_every_n_steps": 7, "enable_progress_bar": False, "enable_model_summary": True,
    "accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "gradient_clip_algorithm": "value",
    "deterministic": True, "benchmark": True, "inference_mode": False, "profiler": "simple",
    "detect_anomaly": True, "sync_batchnorm": True, "reload_dataloaders_every_n_epochs": 2,
    "enable_autolog_hparams": False,
}  # fmt: skip
REFUSALS = {
    "default_root_dir": "here", "enable_checkpointing": False, "barebones": True,
    "model_registry": "name", "use_distributed_sampler": False,
}  # fmt: skip
IO = "lightning.pytorch.plugins.io.TorchCheckpointIO"
FILES = {
    "seed": "data: {init_args: {seed: 7}}", "typo": "trainer: {max_epoch: 4}",
    "null": "model: {filter: null}", "twice": "trainer: {}\ntrainer: {}",
}  # fmt: skip
ADDED = ("callbacks", "logger", "plugins")  # to those of every run


def build_trainer(folder, *flags: str):
    cli = AppCLI(APP, ["fit", *arguments(folder, *flags)])
    cli.trainer_class = lambda **options: options
    cli.build_all()
    return cli.trainer


def test_every_flag_of_lightnings_trainer_acts_or_is_refused(tmp_path) -> None:
    flags = signature(Trainer.__init__).parameters.keys() - {"self"}
    assert flags == {*PASSED_ON, *REFUSALS, *ADDED}
    given = build_trainer(tmp_path, *(f"--trainer.{k}={v}" for k, v in PASSED_ON.items()))
    assert {name: given[name] for name in PASSED_ON} == PASSED_ON
    options = {name: values[0] for name, (values, _) in REFUSED.items()}
    for name in REFUSED:
        with pytest.raises(UserError, match=f"trainer.{name}: "):
            check_flags(options | {name: REFUSALS[name]})
    with pytest.raises(UserError, match="use_distributed_sampler: each device"):
        build_trainer(tmp_path, "--trainer.use_distributed_sampler=false")


def test_what_a_user_adds_to_every_run(tmp_path, capsys) -> None:
    more = "--trainer.logger={class_path: CSVLogger, init_args: {save_dir: x}}"
    bar = ("--trainer.callbacks+=TQDMProgressBar", "--trainer.enable_progress_bar=true")
    given = build_trainer(tmp_path, more, *bar, f"--trainer.plugins={IO}")
    assert [type(logger).__mro__[1] for logger in given["logger"]][:1] == [TensorBoardLogger]
    assert isinstance(given["logger"][1], CSVLogger)
    (bar,) = (callback for callback in given["callbacks"] if isinstance(callback, ProgressBar))
    assert isinstance(bar, TQDMProgressBar)
    assert len(given["plugins"]) == 2
    quiet = build_trainer(tmp_path, "--trainer.callbacks=TQDMProgressBar")["callbacks"]
    assert not any(isinstance(callback, ProgressBar) for callback in quiet)  # as in compare
    assert build_trainer(tmp_path, "--trainer.logger=false")["logger"] == []
    own = "--model=tests.kit.test_app_cli.Activated", "--run.data=1e4"
    more = "--trainer.callbacks+=ModelPruning", "--trainer.callbacks.pruning_fn=l1"
    given = arguments(tmp_path, "--trainer.callbacks=Timer", *more, *own)
    settings = AppCLI(APP, ["fit", *given]).dump_settings()
    assert "interval: step" in settings  # a member of an Enum
    assert "data: '1e4'" in settings
    assert "pruning_fn: l1\n" in settings  # text where a function may stand
    assert "activation: torch.nn.functional.relu\n" in settings
    with pytest.raises(SystemExit, match="0"):
        run_app(APP, ["fit", *given, "--print_config"])
    assert yaml.safe_load(capsys.readouterr().out)["trainer"]["max_epochs"] == 1


@pytest.mark.parametrize(("args", "sentence"), [
    (["ft"], "invalid choice: 'ft' (choose from 'fit', 'validate'"),
    (["fit"], "fit -c base -c data/"),
    (["fit", "--optimizer=SGD"], "--optimizer: the model has it: --model.optimizer=SGD"),
    (["fit", "--lr_scheduler.gamma=2"], "--lr_scheduler: the model has it: --model.schedule="),
    (["fit", "--method=gfsa"], "--method: name it by -c method/NAME"),
    (["fit", "--run.method", "gfsa"], "--run.method=gfsa is a name alone: set it by -c method/gf"),
    (["fit", "--model", "nowhere.Model"], "--model=nowhere.Model: No module named 'nowhere'"),
    (["fit", "--data=tests.kit.test_app_cli.Untested"], "Untested has no test_dataloader: a run"),
    (["test", *arguments("x")], "is not trained: run fit, name the folder of a run"),
    (["test", "nowhere"], "nowhere is no folder of a run"),
    (["fit", "--model=torch.nn.Linear"], "model: "),
    (["fit", "-c", "metod/plain"], "no such config (did you mean method/plain"),
    (["fit", *arguments("x", "trainer.max_epoch=3")], "(did you mean --trainer.max_epochs"),
    *((["fit", *arguments("x"), "-c", f"{name}.yaml"], sentence) for name, sentence in (
        ("typo", "typo.yaml: trainer.max_epoch is no option (did you mean trainer.max_epochs"),
        ("null", "model.filter: null is no filter; that of plain attention is attention_core.Pl"),
        ("twice", "twice.yaml: trainer stands twice"), ("seed", "seed: seed_everything sets"))),
    (["fit", *arguments("x", "--model.filter=null")], "model.filter: null is no filter; that of"),
    (["fit", *arguments("x", "--model.filter=AGF")], "a kernel is for --model.kernel"),
    (["fit", *arguments("x", "--model.filter=tests.kit.tiny.Clasifier")], "mean Classifier?"),
    (["fit", *arguments("x", "--model.optimizer.lr=1,5e-3")], "lr: Expected a <class 'float'>."),
    (["-c", "base", "fit"], "write a command, then a config or a run: attention-tiny fit -c"),
    (["fit", *arguments("x", "--model.filter=GFSA", "--model.filter.k=3")],
     "Option 'k' is not accepted: --model.filter.help=CLASS lists those that are"),
    (["fit", *arguments("x", "--trainer.logger=CSVLogger", "--trainer.logger.path=x")],
     "trainer.logger: Option 'path' is not accepted"),
    (["fit", *arguments("x", "--trainer.callbacks=tests.kit.test_app_cli.Broken")],
     f"without a name (TypeError in {__file__}, line "),
    (["fit", *arguments("x", "--model.filter=gfsaa")], "path string: gfsaa (did you mean GFSA?)"),
    (["fit", *arguments("x", "--trainer.precision=bf16-mixd")], "(did you mean bf16-mixed"),
    (["fit", *arguments("x", "--data.seed=7")], "--data.seed: --seed_everything sets it"),
    (["fit", *arguments("x", "--data.init_args.dim", "3")], "--data.dim: --model.dim sets it"),
    (["fit", *arguments("x", "--ckpt_path=best")], "ckpt_path best has weights alone"),
    (["fit", *arguments("x", "--trainer.strategy=ddp_fork")], "forked return no scores"),
])  # fmt: skip
def test_a_mistake_is_a_sentence_with_its_remedy(args, sentence, tmp_path, monkeypatch, read_error):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    assert sentence in read_error(run_app, APP, args)


def test_the_model_of_a_strangers_config_is_not_imported(tmp_path, stranger, monkeypatch) -> None:
    monkeypatch.setitem(parsing_settings, "import_paths_enforced", False)  # as in a new process
    path = tmp_path / "config.yaml"
    path.write_text(f"model_class: {stranger.name}")
    with pytest.raises(UserError, match="allow it by --trust="), restrict_classes(path):
        take_model(["fit", f"--config={path}"])
    assert not stranger.has_run


class Activated(Classifier):
    def __init__(self, classes: int, activation: Callable[..., Any] = F.relu) -> None:
        super().__init__(classes)


class Untested(LightningDataModule):
    """Data of a user that has no test part."""

    classes = 3


class Broken(Callback):
    """A callback of a user, with a mistake in it."""

    def __init__(self, name: str | None = None) -> None:
        if name is None:
            raise TypeError("without a name")


def make_config(schedule=None, lr=0.1, warmup=0, **trainer):
    path = f"experiment_kit.training.optim.{schedule}"
    schedule = schedule and {"class_path": path, "init_args": {"warmup": warmup}}
    return {"trainer": {"precision": 32, **trainer}, "model": {"lr": lr, "schedule": schedule}}


@pytest.mark.parametrize(("both", "longer", "reason"), [
    ({}, {"max_epochs": 3}, ""),
    ({"max_time": "00:00:00:01"}, {"max_epochs": -1}, ""),
    ({}, {"max_epochs": 1}, "it is shorter"),
    ({}, {"max_epochs": 3, "lr": 0.2}, "it differs in more than its length"),
    ({}, {"max_epochs": 3, "precision": 16}, "it differs in more than its length"),
    *((first, {**dict.fromkeys(first), "max_epochs": 3}, "it had a longer minimum")
      for first in ({"min_epochs": 2}, {"min_steps": 9})),
    ({"schedule": "ConstantSchedule", "warmup": 5}, {"max_epochs": 3}, ""),
    *(({"schedule": name, "warmup": 0.1}, {"max_epochs": 3}, f"the learning rates of {name} depend "
       "on the length") for name in ("CosineSchedule", "ConstantSchedule")),
])  # fmt: skip
def test_a_run_goes_on_from_the_state_that_it_passes_through(both, longer, reason) -> None:
    pair = (make_config(**{**both, **options}) for options in ({"max_epochs": 2}, longer))
    assert explain_difference(*pair) == reason
