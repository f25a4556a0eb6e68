"""A network learns the task with attention's residual; each method is trained on the same data."""

import torch

from benchmarks.evidence.methods import TRAINED
from benchmarks.evidence.settings import QUICK, TaskSettings
from benchmarks.evidence.task import TokenNamer, describe_run, list_runs, list_trials, train_namer

SMALL = TaskSettings(dim=8, num_tokens=5, vocabulary=4, batch_size=8, test_samples=64, depths=(1,))


def test_a_network_with_residual_learns_to_name_its_tokens():
    (row,) = train_namer(**describe_run(SMALL, "residual", 1, 1e-2, seed=0, steps=150))
    assert row["accuracy"] > 0.95
    assert 0 < row["start_cosine"] <= 1


def test_the_residual_is_the_only_difference_from_plain():
    networks = []
    for name in ("plain", "residual"):
        torch.manual_seed(0)
        networks.append(TokenNamer(TRAINED[name], 2, 8, 2, 5, 4))
    plain, residual = networks
    for ours, theirs in zip(plain.parameters(), residual.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    tokens = torch.tensor([[0, 1, 2, 3, 0]])
    assert not torch.allclose(plain(tokens), residual(tokens))


def test_a_training_is_repeated_by_its_seed():
    run = describe_run(QUICK.task, "polynomial", 2, 1e-3, seed=3, steps=4)
    assert train_namer(**run) == train_namer(**run)


def test_runs_take_the_rate_of_the_best_trial_and_other_seeds():
    settings = QUICK.task
    trials = [
        {"method": run["name"], "loss": -run["learning_rate"]}
        | {key: run[key] for key in ("learning_rate", "steps")}
        for run in list_trials(settings)
    ]
    runs = list_runs(settings, trials)
    assert {run["learning_rate"] for run in runs} == {max(settings.learning_rates)}
    assert {run["seed"] for run in runs} == set(settings.seeds) != {settings.trial_seed}
    longer = [run for run in runs if run["steps"] > settings.steps]
    assert {run["name"] for run in longer} == set(settings.patient)
    assert {run["depth"] for run in longer} == {settings.depths[0]}
    assert len(runs) == len(settings.seeds) * len(TRAINED) * len(settings.depths) + len(longer)
