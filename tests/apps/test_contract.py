"""Every app keeps one contract: its overlays parse, its methods train, its runs resume."""

import csv
import fnmatch
import inspect
import json
import pydoc
import re
import shutil
from argparse import ArgumentError
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import soundfile
import torch
import yaml
from attention_core import diagnose
from experiment_kit.app_files import ROW
from experiment_kit.commands import disagreements
from experiment_kit.diagnosis.model_sources import load_model, load_run
from experiment_kit.errors import UserError, summarize_parser_error
from experiment_kit.launch.overlays import KINDS
from experiment_kit.launch.plan import answer_batches, load_app
from experiment_kit.papers.figures import DrawnModel
from experiment_kit.run import Run
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import LambdaCallback
from PIL import Image

from tests.apps.cases import CASES
from tests.apps.contract import AppCase, find_run, stop_training
from tests.apps.settings import list_values
from tests.processes import run_allpass
from tests.robustness.compare_runs import compare_runs

REPOSITORY = Path.cwd()
STEPS = ("--trainer.max_epochs=2", "--trainer.limit_train_batches=3", "--spectral.every_n_steps=3")
SCALE = frozenset({  # the settings that a profile of any app may change
    *("max_epochs", "limit_train_batches", "limit_val_batches", "limit_test_batches", "warmup"),
    *("every_n_steps", "profile"),
})  # fmt: skip


def by_app(values: Any = None) -> list[Any]:
    """A parameter set for every app, or for every app and each of its values."""
    if values is None:
        return [pytest.param(case, id=case.name) for case in CASES]
    pairs = [(case, value) for case in CASES for value in values(case)]
    return [pytest.param(case, value, id=f"{case.name}-{value}") for case, value in pairs]


def overlays(case: AppCase) -> list[str]:
    """Each overlay, with others for every pattern of its settings, in few command lines."""
    found, lines = [], []
    for kind, name in [(k, n) for k in KINDS for n in case.names(k)]:
        for row in ",".join(["*", *case.read(kind, name).get("at", {})]).split(","):
            patterns = zip(ROW, row.strip().split("/"), strict=False)
            # for * the defaults suit the others
            named = {k: fnmatch.filter(case.names(k), p)[0] for k, p in patterns if p != "*"}
            found.append({kind: name} | named)
    for one in sorted(found, key=len, reverse=True):
        free = [x for x in lines if not (x.keys() & one or {"data", "backbone"} <= {*x, *one})]
        line = next((x for x in lines if one.items() <= x.items() or x in free), {})
        lines += [] if line else [line]
        line |= one
    return [" ".join(sorted(f"{kind}/{name}" for kind, name in line.items())) for line in lines]


@pytest.mark.parametrize(("case", "overlay"), by_app(overlays))
def test_every_overlay_parses_for_each_data_set_that_it_names(case: AppCase, overlay: str) -> None:
    """A fused optimizer unscales gradients itself, after they would have been clipped."""
    chosen = dict(part.split("/") for part in overlay.split())
    parsed = case.parse(**chosen)
    assert all(parsed.run[kind] == name for kind, name in chosen.items() if kind != "recipe")
    fused, trainer = parsed.model.optimizer.init_args.get("fused"), parsed.trainer
    assert not (fused and trainer.gradient_clip_val and "mixed" in str(trainer.precision))


@pytest.mark.parametrize("case", by_app())
def test_downloads_are_protected(case: AppCase) -> None:
    for files in load_app(case.name).downloads.values():
        for file in files if isinstance(files, list | tuple) else ():
            assert file.url.startswith("https://")
            assert file.inside is not None or file.sha256  # a text may be cut anywhere


@pytest.mark.parametrize(("case", "step"), by_app(lambda case: ["validation", "test", "predict"]))
def test_every_step_of_evaluation_takes_several_loaders(case: AppCase, step: str) -> None:
    assert "dataloader_idx" in inspect.signature(getattr(case.app.model, f"{step}_step")).parameters


@pytest.mark.parametrize(("case", "method"), by_app(lambda case: case.names("method")))
def test_a_method_spells_out_all_arguments(case: AppCase, method: str) -> None:
    """A later class_path would keep what an earlier class had under the same names."""
    model = case.read("method", method)["model"]
    (slot,) = set(model) - {"layers", "position"}
    if "class_path" in model[slot]:
        kind, given = pydoc.locate(model[slot]["class_path"]), model[slot].get("init_args", {})
    else:  # the options of a dataclass
        annotation = inspect.signature(case.app.model).parameters[slot].annotation
        kind, given = get_args(annotation)[0], model[slot]
    assert set(given) == set(inspect.signature(kind).parameters) - case.host_arguments


@pytest.mark.parametrize(("case", "profile"), by_app(lambda case: case.names("profile")))
def test_a_profile_changes_the_scale_alone(case: AppCase, profile: str) -> None:
    settings = {k: v for k, v in case.read("profile", profile).items() if k not in ("at", "run")}
    leaves = (path for path, value in list_values(settings) if not isinstance(value, dict))
    assert {path.rpartition(".")[2] for path in leaves} <= SCALE | case.scale


@pytest.fixture(scope="module", autouse=True)
def workspace(tmp_path_factory) -> Iterator[Path]:
    """A folder of its own for the runs and caches of this module, with the configs of the apps."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "apps").symlink_to(REPOSITORY / "apps")
    (folder / "noise").write_text("a: [1")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield folder


@pytest.mark.parametrize(("case", "argument"), by_app(lambda case: case.mistakes))
def test_a_mistake_is_one_sentence_and_status_2(case: AppCase, argument: str, workspace) -> None:
    outcome = case.run("fit", argument.format(file=workspace / "noise"))
    assert outcome.status == 2
    (message,) = (line for line in outcome.error.splitlines() if line.startswith("error: "))
    assert re.search(case.mistakes[argument], message)
    assert "Traceback" not in outcome.error


@pytest.mark.parametrize("case", by_app())
def test_a_slot_takes_a_class_of_its_base_alone(case: AppCase, workspace: Path) -> None:
    config, slots = workspace / "slot.yaml", case.slots()
    assert {"model.filter", "model.optimizer", "model.schedule", "data"} <= set(slots)
    for slot in slots:
        group, name = slot.split(".") if "." in slot else ("", slot)
        value = {name: {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", "mark"]}}}
        config.write_text(yaml.safe_dump({group: value} if group else value))
        with pytest.raises((UserError, ArgumentError)) as refused:
            case.build(case.arguments("-c", str(config)))
        assert slot in summarize_parser_error(str(refused.value))
        assert "subprocess" in str(refused.value)
    assert not (workspace / "mark").exists()


def build_tiny(case: AppCase, method: str) -> Any:
    seed_everything(0, verbose=False)
    constant = ("--model.schedule=null", "--model.optimizer.init_args.lr=0.01")
    return case.build(case.tiny_arguments(*constant, method=method))


@cache
def plain(case: AppCase) -> Any:
    """The smallest plain network, its first weights and its data, which all methods share."""
    fit = build_tiny(case, "plain")
    return fit.data, {name: weight.clone() for name, weight in fit.model.state_dict().items()}


@cache
def train_three_steps(case: AppCase, method: str) -> list[float]:
    """The losses of three steps that begin with plain's weights, wherever a method has the same."""
    model, (data, weights) = build_tiny(case, method).model, plain(case)
    own = model.state_dict()
    same = {k: w for k, w in weights.items() if k in own and own[k].shape == w.shape}
    model.load_state_dict(same, strict=False)
    seed_everything(1, verbose=False)
    losses: list[float] = []

    def check_gradients(trainer: Trainer, module: Any) -> None:
        """DDP waits for the gradient of a parameter that has none."""
        trained = [w.grad for w in module.parameters() if w.requires_grad]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in trained)

    keep = LambdaCallback(
        on_after_backward=check_gradients,
        on_train_batch_end=lambda *x: losses.append(x[2]["loss"].item()),
    )
    options = {"max_epochs": 1, "limit_train_batches": 3, "limit_val_batches": 0}
    Trainer(accelerator="cpu", barebones=True, callbacks=[keep], **options).fit(model, data)
    return losses


@pytest.mark.parametrize(("case", "method"), by_app(lambda case: case.names("method")))
def test_every_method_trains_and_differs_from_plain(case: AppCase, method: str) -> None:
    """A mechanism that starts as the identity shows after the step that moves it."""
    if message := case.unfit.get(method):
        with pytest.raises((ValueError, UserError), match=message):
            train_three_steps(case, method)
        return
    losses = train_three_steps(case, method)
    assert len(losses) == 3
    assert all(0 < loss < 100 for loss in losses)
    if method != "plain":
        assert losses != train_three_steps(case, "plain")


@pytest.fixture(scope="module", params=by_app())
def finished(request, workspace: Path) -> tuple[AppCase, Run]:
    """A case, and a run of it that was not interrupted."""
    case = request.param
    return case, case.fit(workspace / f"whole-{case.name}", *STEPS, method="gfsa")


def test_a_run_is_watched_and_ends_with_a_result(finished) -> None:
    case, run = finished
    result = run.read_result()
    assert case.metrics <= set(result["metrics"])
    assert (result["app"], result["method"], result["epochs"]) == (case.name, "gfsa", 2)
    watched = json.loads((run.folder / "spectral.json").read_text())
    assert len(watched["depth"]) == len(watched["response"]) + 1 >= 3
    assert {name.split(".")[-2] for name in watched["coefficients"]} == {"filter"}


def list_differences(whole: Run, other: Run) -> list[str]:
    """What is not equal but for the config, which has the folder."""
    found = compare_runs(whole.folder, other.folder)
    return [line for line in found if not line.startswith("config.yaml")]


def test_an_interrupted_run_resumes_to_the_same_result(finished, workspace) -> None:
    case, whole = finished
    folder = workspace / f"broken-{case.name}"
    stop_training(case, folder, 2, *STEPS, method="gfsa")
    stop_training(case, folder, 1, *STEPS, method="gfsa")  # the last of its epoch
    assert find_run(folder).read_result() is None
    assert list_differences(whole, find_run(folder))
    assert list_differences(whole, case.fit(folder, *STEPS, method="gfsa")) == []


def test_a_trained_run_predicts(finished) -> None:
    case, run = finished
    outcome = case.run("predict", f"--run.folder={run.folder.parents[3]}", *STEPS, method="gfsa")
    assert outcome.status == 0
    assert len(torch.load(run.folder / "predictions.pt", weights_only=True)) >= 1


def test_a_finished_run_is_diagnosed(finished, monkeypatch) -> None:
    _, run = finished
    network, batches, sentence = load_run(str(run.folder), [], 2)
    batch, mask = next(batches)
    with monkeypatch.context() as patch:
        patch.setattr("attention_core.diagnosis.run.MAX_MAP_ENTRIES", 1)  # in slices
        report = diagnose(network, batch, mask=mask, mechanisms=[])
    assert report.num_samples == 2
    names = [layer.name for layer in report.layers]
    assert len(names) > 0
    assert all(name.startswith("run.") for name in names)
    assert all(layer.coefficients for layer in report.layers)  # GFSA's
    assert report.layers[-1].steps
    assert str(run.folder) in sentence
    network, batches, _ = load_model(f"run:{run.folder}", samples=0)
    first, *others = batches
    ends = [first, *others[-1:]]  # the last may be a smaller one
    found = [diagnose(network, x, mask=mask, measures="light") for x, mask in ends]
    counts = [report.num_samples for report in found]
    curves = np.array([report.curve("hfc_lfc") for report in found])
    drawn = DrawnModel("", network, *first, iter(ends[1:])).average_curve("hfc_lfc")
    assert drawn == pytest.approx(np.average(curves, axis=0, weights=counts), rel=1e-5)


def test_runs_with_other_weights_disagree(finished, tmp_path, capsys, monkeypatch) -> None:
    _, run = finished
    first = lambda *given: islice(answer_batches(*given), 9)  # noqa: E731  # of hundreds
    monkeypatch.setattr(disagreements, "answer_batches", first)
    other, out = tmp_path / run.folder.name, tmp_path / "all.csv"
    shutil.copytree(run.folder, other)
    for path in other.rglob("*.ckpt"):
        checkpoint = torch.load(path, weights_only=True)
        for value in checkpoint["state_dict"].values():
            if value.is_floating_point():
                value += torch.randn_like(value)
        torch.save(checkpoint, path)
    disagreements.list_disagreements(str(run.folder), str(other), out=str(out), limit=1)
    head, *rows = csv.reader(out.open())
    assert head[:3] == ["sample", "input", "target"]
    assert 0 < len(rows) == len({row[0] for row in rows})
    assert all(a != b for *_, a, b in rows)
    assert f"{len(rows)} of " in capsys.readouterr().out
    disagreements.list_disagreements(str(run.folder), str(run.folder), split="val")
    assert "0 of " in capsys.readouterr().out


def write_inputs(case: AppCase, folder: Path) -> tuple[list[str], int]:
    """Write files as a user would name them; return them and how many inputs they hold."""
    if case.name == "vision":
        Image.new("RGB", (40, 30), (200, 0, 0)).save(folder / "a.png")
        Image.new("L", (30, 40)).save(folder / "b.jpg")
        return [str(folder / name) for name in ("b.jpg", "a.png")], 2
    if case.name == "speech":
        for name, seconds in {"long": 2, "short": 1}.items():
            soundfile.write(folder / f"{name}.wav", torch.rand(seconds * 16_000) - 0.5, 16_000)
        return [str(folder / name) for name in ("long.wav", "short.wav")], 2
    lines = {
        "graph": "CCO ethanol\n\nc1ccccc1\nCCN\n",
        "nlp": "This is a sentence.\n\nSentence a is this.\nA third, with a comma.\n",
        "sequence": "@problemName own\n@univariate false\n@dimensions 12\n@equalLength true\n"
        "@classLabel false\n@data\n" + 3 * (":".join(["1,2,3,4"] * 12) + "\n"),
    }
    path = folder / {"sequence": "a.ts"}.get(case.name, "a.txt")
    path.write_text(lines[case.name])
    return [str(path)], 3


def test_a_finished_run_predicts_the_files_of_a_user(finished, tmp_path) -> None:
    case, run = finished
    files, count = write_inputs(case, tmp_path)
    out = tmp_path / "out.csv"
    run_allpass("predict", str(run.folder), *files, f"--out={out}")
    head, *rows = csv.reader(out.open())
    kinds = {"speech": ["text"], "graph": ["value"]}
    assert head == ["name", *kinds.get(case.name, ["label", "score"])]
    assert len(rows) == count
    if case.name in ("vision", "speech"):
        assert [row[0] for row in rows] == files
    if head[1:] == ["label", "score"]:
        assert all(0 < float(score) <= 1 for *_, score in rows)
    if case.name == "sequence":
        assert {label for _, label, _ in rows} <= set("123456789")
    if case.name == "graph":
        assert [row[0] for row in rows] == ["CCO", "c1ccccc1", "CCN"]
        assert len({value for _, value in rows}) == 3


BAD_INPUTS = {
    "vision": ("noise", "noise cannot be read"),
    "speech": ("noise", "noise: no audio file"),
    "graph": ("C1CC\n", "line 1: 'C1CC' has an invalid SMILES: write one in a line"),
    "nlp": ("\n", "bad has no text"),
    "sequence": ("noise", "line 1 is no series"),
}


def test_a_file_that_is_no_input_is_one_sentence(finished, tmp_path, read_error) -> None:
    case, run = finished
    content, sentence = BAD_INPUTS[case.name]
    bad = tmp_path / "bad"
    bad.write_text(content)
    error = read_error(run_allpass, "predict", str(run.folder), str(bad))
    assert sentence.replace("noise", str(bad)) in error
