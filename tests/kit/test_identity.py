"""The identity of a run: its folder says it, and its hash outlives what the configs become."""

import hashlib
from pathlib import Path

import pytest
from experiment_kit.errors import UserError
from experiment_kit.launch.overlays import choose_overlays
from experiment_kit.launch.plan import Experiment, plan_runs
from experiment_kit.papers.provenance import read_runs
from experiment_kit.run import Run, config_hash

RESULTS = Path(__file__).parents[2] / "docs/results"
MINILM = ("--model.task.init_args.num_chunks=2", "--trainer.precision=bf16-mixed")
NAME = "sequence/japanese_vowels-uea/gfsa/seed-2-f076c9dcb8"


def test_a_folder_says_what_a_run_is(tmp_path: Path) -> None:
    expected = ("sequence", "japanese_vowels", "uea", "gfsa", 2, "f076c9dcb8")
    assert Run.parse(tmp_path / NAME) == expected
    assert Run.parse(f"elsewhere/{Path(NAME).name}")[4:] == expected[4:]
    assert Run.parse(NAME.replace("gfsa", "plain/../gfsa")) == expected
    assert Run.parse(tmp_path / NAME / "checkpoints") is None
    assert Run(tmp_path / NAME).task_folder == tmp_path / "sequence/japanese_vowels-uea"
    with pytest.raises(UserError, match="name the folder of a run"):
        _ = Run(tmp_path).hash


def test_all_runs_of_a_folder_are_found(tmp_path: Path) -> None:
    names = [NAME, "nlp/cola-minilm/plain/seed-0-0123456789"]
    for name in (*names, "nlp/cola-minilm/plain/seed-0-unfinished", "search/a/b/c"):
        (tmp_path / name).mkdir(parents=True)
    assert [run.folder for run in Run.find_all(tmp_path)] == [tmp_path / n for n in sorted(names)]
    assert [run.folder for run in Run.find_all(tmp_path, "sequence")] == [tmp_path / NAME]
    assert Run.find_all(tmp_path / "absent") == []


def test_a_published_run_has_the_hash_that_its_names_give() -> None:
    """Those of before the overlays had today's names keep the hash under which they ran."""
    experiments = {}
    for run, published in read_runs(RESULTS).items():
        if (result := published.get("result")) is None:
            continue
        names = {k: result[k] for k in ("backbone", "method", "profile", "protocol")}
        length = published["config"]["data"]["init_args"].get("max_length")
        if names["protocol"] == "published" and length == 29:  # by the older name
            names["protocol"] = "published_29"
        chosen = choose_overlays(result["app"], result["data"], recipe=None, **names)
        chosen |= {"app": result["app"], "method": result["method"], "seed": result["seed"]}
        chosen |= {"args": MINILM} if names["backbone"] == "minilm" else {}
        experiments[Experiment(**chosen)] = run
    planned = plan_runs(experiments, "runs")
    assert {e: run.hash for e, run in planned.items()} == experiments
    named = {e: Run.parse(run.folder)[1:4] for e, run in planned.items()}
    assert named == {e: (e.data, e.backbone, e.method) for e in experiments}


def test_a_published_config_has_one_hash_for_good() -> None:
    """A whole number or a null that is written otherwise must not make another run."""
    hashes = {run: config_hash(data["config"]) for run, data in sorted(read_runs(RESULTS).items())}
    older = [found for run, found in hashes.items() if run != found]  # named before today
    digest = hashlib.sha256("".join(older).encode()).hexdigest()[:16]
    assert (len(older), digest) == (152, "2b7277e9dfd55718")
