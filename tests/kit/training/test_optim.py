"""Every learning rate of every step against the closed form; groups; resuming in mid-run."""

import math
from types import SimpleNamespace

import pytest
import torch
from experiment_kit.errors import UserError
from experiment_kit.training import optim
from experiment_kit.training.optim import param_groups_weight_decay
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

T, PER_EPOCH, LR = 23, 5, 0.8


def build(schedule, total=T, lr=LR, **group):
    optimizer = torch.optim.AdamW([{"params": [nn.Parameter(torch.zeros(2))], **group}], lr=lr)
    return optimizer, schedule(optimizer, total, PER_EPOCH)


def step_through(optimizer, config, count):
    """Return the rate in use at each of the next steps (or epochs)."""
    seen = []
    for _ in range(count):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        config["scheduler"].step()
    return seen


def rates(schedule, count=T, **kwargs):
    return step_through(*build(schedule, **kwargs), count)


def decay(w, shape, start=0.0, end=0.0):
    """Return the rate at t: a line from `start` to LR, then `shape` from LR to `end`."""
    return lambda t: (
        start + (LR - start) * t / w if t < w else end + (LR - end) * shape((t - w) / (T - w))
    )


def straight(x):
    return 1 - x


def half_cosine(x):
    return (1 + math.cos(math.pi * x)) / 2


def one_cycle(t, w=7):
    start, end = LR / 25, LR / 25e4
    if t <= w - 1:
        return start + (LR - start) * t / (w - 1)
    return LR + (end - LR) * (t - (w - 1)) / (T - w)


CLOSED_FORMS = {
    "constant-warm": (optim.ConstantSchedule(warmup=4), lambda t: LR * min(1, t / 4)),
    "fraction": (optim.LinearSchedule(warmup=0.1), decay(2, straight)),
    "graphormer": (optim.LinearSchedule(warmup=6, min_lr=1e-9), decay(6, straight, end=1e-9)),
    "cosine": (optim.CosineSchedule(warmup=0.1, min_lr=0.1), decay(2, half_cosine, end=0.1)),
    "cosine-whole": (
        optim.CosineSchedule(warmup=3, warmup_prefix=False),
        lambda t: LR * t / 3 if t < 3 else LR * half_cosine(t / T),
    ),
    "cosine-staircase": (
        optim.CosineSchedule(warmup=PER_EPOCH, staircase=True),
        lambda t: decay(PER_EPOCH, half_cosine)(t // PER_EPOCH * PER_EPOCH if t > PER_EPOCH else t),
    ),
    "cosine-start": (optim.CosineSchedule(warmup=4, warmup_lr=0.2), decay(4, half_cosine, 0.2)),
    "noam": (
        optim.NoamSchedule(d_model=512, warmup=8),
        lambda t: LR * 512**-0.5 * min((t + 1) ** -0.5, (t + 1) * 8**-1.5),
    ),
    "noam-peak": (
        optim.NoamSchedule(d_model=None, warmup=8, factor=2.0),
        lambda t: 2 * LR * min((8 / (t + 1)) ** 0.5, (t + 1) / 8),
    ),
    "steps": (
        optim.StepSchedule(milestones=(0.25, 0.5)),
        lambda t: LR * 0.1 ** ((t >= T / 4) + (t >= T / 2)),
    ),
    "one-cycle": (optim.OneCycleSchedule(warmup=7), one_cycle),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_by_step_follows_its_closed_form(name):
    schedule, formula = CLOSED_FORMS[name]
    assert build(schedule)[1]["interval"] == "step"
    assert rates(schedule) == pytest.approx([*map(formula, range(T))], rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("warmup", [0, 5])
def test_epoch_cosine_equals_timm_in_the_loop_of_deit(warmup):
    from timm.scheduler import CosineLRScheduler

    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=LR)
    timm = CosineLRScheduler(optimizer, 30, lr_min=1e-5, warmup_t=warmup, warmup_lr_init=1e-6)
    published = []
    for epoch in range(30):
        published.append(optimizer.param_groups[0]["lr"])
        timm.step(epoch)
    schedule = optim.EpochCosineSchedule(warmup=warmup)
    assert build(schedule, total=30 * PER_EPOCH)[1]["interval"] == "epoch"
    seen = rates(schedule, count=30, total=30 * PER_EPOCH - 2)
    assert seen == pytest.approx(published, rel=1e-12)
    assert published[0] == published[1] == (1e-6 if warmup else LR)  # it lags by one epoch


SCHEDULES = [*(s for s, _ in CLOSED_FORMS.values()), optim.EpochCosineSchedule(warmup=2)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
def test_lr_scale_of_a_group_multiplies_every_rate(schedule):
    scaled = rates(schedule, count=5, lr_scale=0.25)
    assert scaled == pytest.approx([0.25 * lr for lr in rates(schedule, count=5)])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
def test_resuming_in_mid_run_continues_identically(schedule, tmp_path):
    count = 5 if schedule.interval == "epoch" else T
    optimizer, config = build(schedule)
    step_through(optimizer, config, count // 2)
    state = {"optimizer": optimizer.state_dict(), "scheduler": config["scheduler"].state_dict()}
    torch.save(state, tmp_path / "state.pt")

    state = torch.load(tmp_path / "state.pt", weights_only=True)
    optimizer, config = build(schedule)
    optimizer.load_state_dict(state["optimizer"])
    config["scheduler"].load_state_dict(state["scheduler"])
    seen = step_through(optimizer, config, count - count // 2)
    assert seen == rates(schedule, count=count)[count // 2 :]


@given(warmup=st.integers(0, 40), total=st.integers(1, 40), per=st.integers(1, 7))
def test_warmup_ends_exactly_at_the_peak_or_is_refused(warmup, total, per):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=LR)
    schedule = optim.CosineSchedule(warmup=warmup)
    if warmup >= total:
        with pytest.raises(ValueError, match=f"shorter than the run, which is {total}, not"):
            schedule(optimizer, total, per)
        return
    seen = step_through(optimizer, schedule(optimizer, total, per), total)
    assert seen.index(max(seen)) == warmup
    assert max(seen) == pytest.approx(LR)


WARMUP = "a fraction below 1 or a whole number, got"


@pytest.mark.parametrize(("schedule", "options", "total", "sentence"), [
    *((optim.LinearSchedule, {"warmup": w}, T, f"{WARMUP} {w}") for w in (-1, 2.5, math.inf)),
    (optim.OneCycleSchedule, {"warmup": 1}, T, "of OneCycleSchedule must be 0 steps or at least 2"),
    (optim.EpochCosineSchedule, {"warmup": 5}, T, "shorter than the run, which is 5, not 5"),
])  # fmt: skip
def test_a_wrong_argument_is_an_error(schedule, options, total, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(schedule(**options), total=total)


def test_the_warmup_of_noam_is_a_step_where_a_part_of_the_run_is_less():
    schedule = optim.NoamSchedule(d_model=None, warmup=0.2)
    assert rates(schedule, count=2, total=2) == [LR, LR / math.sqrt(2)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.pos_embed = nn.Parameter(torch.zeros(1, 7, 3))
        self.norm = nn.LayerNorm(3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.table = nn.ModuleDict({"bias": nn.Linear(3, 2)})  # only the last word counts
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize(("exempt", "expected"), [
    ((), {"embed.weight", "pos_embed", "table.bias.weight"}),
    (("pos_embed",), {"embed.weight", "table.bias.weight"}),
    (("head.weight",), {"pos_embed", "table.bias.weight"}),  # the shared one's second name
    (("table.*",), {"embed.weight", "pos_embed"}),
    (("*",), set()),
])  # fmt: skip
def test_only_matrices_that_are_not_exempt_decay(exempt, expected):
    net = Net()
    groups = param_groups_weight_decay(net, 0.1, exempt)
    assert sum(len(group["params"]) for group in groups) == 7
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert {name for name, p in net.named_parameters() if id(p) in decayed} == expected


def test_an_epoch_is_as_long_as_the_trainer_says_whatever_ends_the_run():
    """max_steps, here, and not max_epochs."""
    trainer = SimpleNamespace(num_training_batches=8, accumulate_grad_batches=4)
    trainer.estimated_stepping_batches = 20
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=LR)
    config = optim.build_lr_scheduler(optim.EpochCosineSchedule(warmup=2), optimizer, trainer)
    step_through(optimizer, config, 10)
    (*_, expected) = rates(optim.EpochCosineSchedule(warmup=2), count=11, total=10 * PER_EPOCH)
    assert optimizer.param_groups[0]["lr"] == expected
    trainer.num_training_batches = math.inf  # an endless data set, which is one epoch
    trainer.fit_loop = SimpleNamespace(setup_data=lambda: None)
    optim.build_lr_scheduler(optim.EpochCosineSchedule(warmup=0), optimizer, trainer)
    trainer.estimated_stepping_batches = math.inf
    with pytest.raises(UserError, match="where the data has a length"):
        optim.build_lr_scheduler(optim.ConstantSchedule(), optimizer, trainer)
