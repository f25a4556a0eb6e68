"""What an app may ask of its command line, on an app of a linear layer."""

import json
from dataclasses import replace

import pytest
import torch
import yaml
from experiment_kit.cli import AppCLI, run_app
from experiment_kit.run import Run

from tests.apps.tiny import only_run
from tests.kit.linear import APP, Line, Points, arguments


def fit(folder, *extra: str) -> Run:
    run_app(APP, ["fit", *arguments(folder, *extra)])
    return only_run(folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Run:
    return fit(tmp_path_factory.mktemp("linear"), "--model.width=5", "--data.others=true")


def loss(weights: dict, width: int = 5) -> float:
    """The mean loss over the test set, written out."""
    data = Points(width)
    data.setup("test")
    x, label = data.splits["test"].tensors
    logits = x @ weights["model.weight"].T + weights["model.bias"]
    picked = logits.log_softmax(-1)[range(len(x)), label]
    return -picked.mean().item()


def weights_of(path) -> dict:
    return torch.load(path, weights_only=True)["state_dict"]


def test_a_linked_argument_is_given_once_and_saved_twice(finished: Run) -> None:
    config = yaml.safe_load((finished.folder / "config.yaml").read_text())
    assert config["model"]["width"] == config["data"]["init_args"]["width"] == 5
    cli = AppCLI(APP, ["fit", "-c", str(finished.folder / "config.yaml")])
    assert cli.run.folder == finished.folder


def test_a_linked_argument_enters_the_hash(tmp_path) -> None:
    folders = {
        AppCLI(APP, ["fit", *arguments(tmp_path, f"--model.width={n}")]).run.folder for n in (3, 5)
    }
    assert len(folders) == 2


def test_the_last_epoch_is_scored_beside_the_best(finished: Run) -> None:
    metrics, folder = finished.read_result()["metrics"], finished.checkpoint_folder
    best, last = loss(weights_of(folder / "best.ckpt")), loss(weights_of(folder / "step=8.ckpt"))
    assert finished.read_result()["best_epoch"] == 0
    assert abs(best - last) > 1e-3
    assert metrics["test/loss"] == pytest.approx(best, rel=1e-5)
    assert metrics["last/loss"] == pytest.approx(last, rel=1e-5)


def test_a_run_without_validation_is_scored_where_it_ended(tmp_path) -> None:
    run = fit(tmp_path, "--trainer.limit_val_batches=0")
    assert run.read_result()["best_epoch"] is None
    ended = loss(weights_of(run.checkpoint_folder / "step=8.ckpt"), width=3)
    assert run.read_result()["metrics"]["test/loss"] == pytest.approx(ended, rel=1e-5)
    assert run.find_test_checkpoint() == run.checkpoint_folder / "step=8.ckpt"
    run_app(APP, ["predict", *arguments(tmp_path, "--trainer.limit_val_batches=0")])
    assert (run.folder / "predictions.pt").is_file()


def test_a_trial_of_two_batches_is_not_a_result(tmp_path) -> None:
    run_app(APP, ["fit", *arguments(tmp_path, "--trainer.fast_dev_run=2")])
    assert not list(tmp_path.rglob("result.json"))


def test_what_every_loader_of_the_test_set_says_is_kept(finished: Run) -> None:
    metrics = finished.read_result()["metrics"]
    assert metrics["test/other_loss"] == metrics["test/loss"]
    assert metrics["last/other_loss"] == metrics["last/loss"]


def test_the_last_epoch_is_scored_where_the_process_died_after_training(finished: Run) -> None:
    before = finished.read_result()["metrics"]
    (finished.folder / "result.json").unlink()
    run_app(APP, ["fit", "-c", str(finished.folder / "config.yaml")])
    after = finished.read_result()["metrics"]
    scores = [name for name in before if not name.startswith("time/")]
    assert {name: after[name] for name in scores} == {name: before[name] for name in scores}
    assert "time/epoch" in before
    assert "time/epoch" not in after  # no epoch was trained here
    assert after["time/test"] > 0


@pytest.mark.parametrize("source", ["random", None])
def test_the_source_of_the_weights_is_in_the_result(tmp_path, source) -> None:
    extra = [] if source is None else [f"--model.weights_source={source}"]
    result = fit(tmp_path, *extra, "--trainer.max_epochs=1").read_result()
    assert result.get("weights_source") == source
    assert ("weights_source" in result) == (source is not None)


def test_an_app_that_does_not_ask_is_not_scored_at_the_last_epoch(tmp_path) -> None:
    run_app(replace(APP, score_last=False), ["fit", *arguments(tmp_path)])
    names = json.loads(next(tmp_path.rglob("result.json")).read_text())["metrics"]
    assert not any(name.startswith("last/") for name in names)


def test_the_batches_of_a_part_are_shuffled_or_in_order() -> None:
    data = Points()
    data.setup("fit")
    x = data.splits["train"].tensors[0]
    in_order = torch.cat([batch[0] for batch in data.test_dataloader()[0]])
    shuffled = torch.cat([batch[0] for batch in data.train_dataloader()])
    assert torch.equal(in_order, x)
    assert not torch.equal(shuffled, x)
    assert torch.equal(shuffled.sort(0).values, x.sort(0).values)


def test_items_are_put_together_as_the_data_module_says() -> None:
    class Summed(Points):
        @staticmethod
        def collate(items):
            return torch.stack([x for x, _ in items]).sum(0)

    data = Summed()
    data.setup("fit")
    assert data.eval_loader("val").collate_fn is Summed.collate
    assert next(iter(data.train_dataloader())).shape == (3,)


def test_a_model_of_another_width_than_its_data_cannot_be_made(tmp_path) -> None:
    cli = AppCLI(APP, ["fit", *arguments(tmp_path, "--model.width=6")])
    model, data = cli.build_model_and_data()
    assert isinstance(model, Line)
    assert (model.model.in_features, data.width) == (6, 6)


def test_predictions_are_of_the_test_part(finished: Run) -> None:
    run_app(APP, ["predict", "-c", str(finished.folder / "config.yaml")])
    outputs = torch.load(finished.folder / "predictions.pt", weights_only=True)
    assert [len(batch) for batch in outputs] == [2, 2, 2, 1]
