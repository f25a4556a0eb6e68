"""The command line of an app before it is parsed, and the options of Lightning that it refuses.

    attention-vision {fit,validate,test,predict} RUN --key=value

RUN is the folder of a run, which stands for its config.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningDataModule

from experiment_kit.app import AppSpec
from experiment_kit.app_files import find_config, read_settings
from experiment_kit.environment import expand_home
from experiment_kit.errors import UserError, convert_user_errors, find_own_line
from experiment_kit.run import Run, config_hash
from experiment_kit.run_files import read_mapping
from experiment_kit.training.module import AttentionModule

LENGTHS = ("max_epochs", "max_steps", "min_epochs", "min_steps", "max_time")
REFUSED = {  # flags of the Trainer -> the values that act, and what to use instead of others
    "default_root_dir": ((None,), "a run has its own folder below run.folder: name that one"),
    "enable_checkpointing": (
        (None, True),
        "a run goes on from its checkpoints; --checkpoint.every_n_minutes=null leaves those at the"
        " end of an epoch, and --trainer.fast_dev_run=1 leaves nothing",
    ),
    "barebones": ((False,), "speed is measured by allpass efficiency"),
    "model_registry": ((None,), "nothing is uploaded: share the folder of the run"),
}
_OPTIONS = {
    "optimizer": "the model has it: --model.optimizer=SGD --model.optimizer.lr=0.1",
    "lr_scheduler": "the model has it: --model.schedule=CosineSchedule",
}


def expand_arguments(app: AppSpec, args: Sequence[str]) -> tuple[list[str], Path | None]:
    """Return the arguments with the config of RUN in its place, and the folder that RUN names."""
    args = expand_home(args)
    for name, remedy in _OPTIONS.items():
        if any(re.match(f"--{name}(\\.|=|$)", argument) for argument in args):
            raise UserError(f"--{name}: {remedy}")
    if args == ["fit"]:
        chosen = (find_config(app.package, "base") or {}).get("defaults", {})
        raise UserError(
            f"fit needs a config: attention-{app.name} fit -c base -c data/{chosen.get('data')}"
            " -c profile/smoke is a first command, and fit --help lists the options"
        )
    if len(args) < 2 or args[1].startswith("-"):
        return args, None
    folder = Path(args[1])
    run = Run.parse(folder)
    if run is None or not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is no folder of a run: it is .../seed-N-HASH with config.yaml")
    if run.app != app.name:
        raise UserError(f"{folder} is a run of {run.app}: write attention-{run.app} {args[0]}")
    path = folder if len(folder.parts) > 4 else folder.absolute()
    root = f"--run.folder={path.parents[3]}"
    return [args[0], "-c", str(folder / "config.yaml"), root, *args[2:]], folder


def take_model(args: Sequence[str]) -> tuple[list[str], type[AttentionModule] | None]:
    """Return the arguments without `--model=CLASS`, and the class; None if it is that of the app.

    The config of a run has it as `model_class`.
    """
    found = [a.partition("=")[2] for a in args if re.fullmatch(r"--model=[A-Za-z_][\w.]*", a)]
    found = [name for name in found if not Path(name).is_file()]
    files = [Path(b) for a, b in pairwise(args) if a in ("-c", "--config")]
    for path in files if not found else ():
        if path.is_file() and (name := read_settings(path.resolve()).get("model_class")):
            found.append(name)
    if not found:
        return [*args], None
    parser = ArgumentParser(exit_on_error=False)  # refuses what a stranger's config must not name
    parser.add_argument("--model", type=type[AttentionModule])
    with convert_user_errors(ImportError, AttributeError, prefix=f"--model={found[-1]}: "):
        model = parser.parse_args([f"--model={found[-1]}"]).model
    return [a for a in args if a != f"--model={found[-1]}"], model


def check_flags(options: Any) -> None:
    """Raise UserError for a flag of the Trainer that would not act."""
    for name, (values, remedy) in REFUSED.items():
        if options[name] not in values:
            raise UserError(f"trainer.{name}: {remedy}")
    for name in ("accumulate_grad_batches", "check_val_every_n_epoch", "val_check_interval"):
        if isinstance(options[name], int) and options[name] < 1:
            raise UserError(f"trainer.{name} must be at least 1, got {options[name]}")
    if re.search("spawn|fork|notebook", str(options["strategy"])):
        raise UserError(
            "trainer.strategy: processes that are forked within a run do not return its scores:"
            " take ddp, or ModelParallelStrategy"
        )


@contextmanager
def explain_absent_size(links: Mapping[str, str]) -> Iterator[None]:
    """Name what an own data module lacks of the attributes that the model takes from it."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        absent = [k for k, v in links.items() if re.search(f"missing .*'{v}'", str(error))]
        is_data = isinstance(getattr(error, "obj", None), LightningDataModule)
        if is_data and not find_own_line(error):
            absent = [str(error.name)]  # type: ignore[union-attr]
        if not absent:
            raise
        names = " and ".join(absent)
        text = f"data: the model needs {names}: make it an attribute of the class"
        raise UserError(text) from error


def copy_last_state(source: Run, run: Run, config: Mapping[str, Any]) -> None:
    """Let a run that is longer than the one it was made from start from the last state of that."""
    step = source.find_latest_step()
    if source.hash == run.hash or step is None or run.find_latest_step() is not None:
        return
    shorter = read_mapping(source.folder / "config.yaml", "", yaml.safe_load) or {}
    if reason := explain_difference(shorter, config):
        print(f"{run.folder} starts from nothing, not from {source.folder}: {reason}")
        return
    shutil.copytree(source.checkpoint_folder, run.checkpoint_folder)
    print(f"{run.folder} starts from step {step} of {source.folder}")


def explain_difference(shorter: Mapping[str, Any], longer: Mapping[str, Any]) -> str:
    """Return why a run does not pass through the last state of a shorter one; "" if it does."""
    old, new = ({**config, "trainer": {**config["trainer"]}} for config in (shorter, longer))
    ends = [[c["trainer"].pop(name, None) for name in LENGTHS] for c in (old, new)]
    if config_hash(old) != config_hash(new):
        return "it differs in more than its length"
    path = (longer["model"].get("schedule") or {}).get("class_path", "ConstantSchedule")
    if (name := path.rpartition(".")[2]) != "ConstantSchedule":
        return f"the learning rates of {name} depend on the length"
    unbound = (None, -1)
    pairs = [*zip(*ends, strict=True)][:2]
    is_longer = all(b in unbound or (a not in unbound and a <= b) for a, b in pairs)
    return "" if is_longer else "it is shorter"
