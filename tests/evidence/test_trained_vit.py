"""The curves of runs become rows of steps; the table shows both seeds."""

from torch.utils.tensorboard import SummaryWriter

from benchmarks.evidence import trained_vit


def test_curves_of_runs_become_rows_and_a_table(tmp_path):
    for seed in (0, 1):
        folder = tmp_path / f"vision/cifar100-vit_tiny/plain/seed-{seed}-0123456789"
        with SummaryWriter(folder) as writer:
            for step in (50, 100, 700, 750):
                writer.add_scalar(trained_vit.MEASURES["token_cosine"], 0.5 + seed / 4, step)
                writer.add_scalar(trained_vit.MEASURES["hfc_lfc"], 2.0, step)
            writer.add_scalar("val/accuracy", 0.125, 60)
    rows = trained_vit.read_runs(tmp_path)
    assert [(row["seed"], row["step"]) for row in rows] == [
        (seed, step) for seed in (0, 1) for step in (50, 100, 700)
    ]
    assert rows[1]["accuracy"] == rows[2]["accuracy"] == 0.125
    plain = trained_vit.tabulate_steps(rows).splitlines()[2]
    assert plain.startswith("| plain | 0.50 / 0.75 | 0.50 / 0.75 |  |")
    assert plain.endswith("| 12.5 / 12.5 |  |")
