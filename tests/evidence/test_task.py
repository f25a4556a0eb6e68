"""A network learns the task with attention's residual; each method is trained on the same data."""

from benchmarks.evidence.methods import TRAINED
from benchmarks.evidence.settings import QUICK, TaskSettings
from benchmarks.evidence.task import describe_run, list_runs, list_trials, train_namer

SMALL = TaskSettings(dim=8, num_tokens=5, vocabulary=4, batch_size=8, test_samples=64, depths=(1,))


def test_a_network_with_residual_learns_to_name_its_tokens():
    (row,) = train_namer(**describe_run(SMALL, "residual", 1, 1e-2, seed=0, steps=150))
    assert row["accuracy"] > 0.95
    assert 0 < row["start_cosine"] <= 1


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
