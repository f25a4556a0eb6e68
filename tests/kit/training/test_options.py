"""Every option of an optimizer and of a mechanism acts, or is refused."""

import inspect
import typing
from functools import partial
from typing import Any

import attention_core
import pytest
import torch
from attention_core import kernels, penalties
from experiment_kit.app_cli import AppCLI
from experiment_kit.errors import UserError
from experiment_kit.training.optim import build_optimizer

from tests.kit.tiny import APP, Classifier, arguments

DIM, TOKENS = 8, 12
# they change no result: memory and speed, and an option that old configs of SOFT have
SPEED = {"foreach", "fused", "capturable", "differentiable", "block", "iterations"}
FILTERS = ("GFSA", "AttnScale", "Polynomial", "ReAttention")
SLOTS = {
    "filter": [getattr(attention_core, name) for name in FILTERS],
    "tokens": [attention_core.FeatScale, attention_core.ContraNorm, attention_core.LayerScale],
    "reparam": [attention_core.EigenSpectrum],
    "kernel": [x for name, x in vars(kernels).items() if name[0].isupper() and name != "GraphSVD"],
    "optimizer": [torch.optim.AdamW, torch.optim.RAdam, torch.optim.SGD],
}
BASES = {  # other options beside which some act
    "Polynomial": [{"basis": "jacobi"}], "ContraNorm": [{"scale": 0.1, "learnable": True}],
    "EigenSpectrum": [{}, {"kind": "band-pass"}], "AGF": [{"gamma": 0.1}],
    "Nystromformer": [{"landmarks": 2, "kernel_size": 3}], "Longformer": [{"window": 4}],
    "Primalformer": [{"length": 16, "rank": 2, "multiplier": n} for n in (2, 9)],
    "Reformer": [{"chunk": 4, "hashes": 2, "buckets": 4}, {"chunk": 4, "max_buckets": 2}],
    "Singularformer": [{"rank": 4}], "Linformer": [{"length": 16}], "SOFT": [{"ratio": 2}],
    "Performer": [{"redraw_every": 1}],
    "AdamW": [{"betas": (0.1, 0.1)}], "RAdam": [{"lr": 0.1}], "SGD": [{"momentum": 0.5}],
}  # fmt: skip


def train(slot: str, factory: Any) -> torch.Tensor:
    """Return the weights and the answer after a few steps on tokens with padding."""
    torch.manual_seed(0)
    module = Classifier(3, dim=DIM, **{slot: factory})
    x, mask = torch.randn(4, TOKENS, DIM), torch.ones(4, TOKENS, dtype=torch.bool)
    mask[0, 5:] = False
    optimizer = build_optimizer(module.build_optimizer, module.build_param_groups())

    def answer() -> torch.Tensor:
        y = x
        for layer in module.model[:-1]:
            y = layer(y, mask)
        return module.model[-1](y)

    for _ in range(7 if slot == "optimizer" else 2):
        optimizer.zero_grad()
        with penalties(module) as terms:
            loss = answer().square().mean()
        (loss + sum(terms)).backward()
        optimizer.step()
    torch.manual_seed(1)
    module.eval()
    return torch.cat([x.detach().flatten() for x in (answer(), *module.parameters())])


def flip(parameter: inspect.Parameter, value: Any) -> Any:
    choices = typing.get_args(parameter.annotation)
    if typing.get_origin(parameter.annotation) is typing.Literal:
        return next(choice for choice in choices if choice != value)
    if isinstance(value, bool) or bool in choices:
        return not value
    if parameter.name in ("learn", "betas"):
        return ("w0",) if parameter.name == "learn" else (0.5, 0.5)
    return value + 2 if isinstance(value, int) else 0.3 + (value or 0.0) / 2


def acts(slot: str, made: type, name: str, base: dict[str, Any], whole: torch.Tensor) -> bool:
    parameter = inspect.signature(made).parameters[name]
    flipped = {**base, name: flip(parameter, base.get(name, parameter.default))}
    try:
        other = train(slot, partial(made, **flipped))
    except (UserError, ValueError):
        return True
    return other.shape != whole.shape or not torch.equal(other, whole)


@pytest.mark.filterwarnings("ignore:re-attention fills")
@pytest.mark.parametrize(("slot", "made"), [(s, m) for s, all in SLOTS.items() for m in all])
def test_a_flipped_option_changes_the_run_or_is_refused(slot: str, made: type) -> None:
    names = inspect.signature(made).parameters.keys() - {"dim", "num_heads", "params", *SPEED}
    for base in BASES.get(made.__name__, [{}]):
        whole = train(slot, partial(made, **base))
        assert whole.isfinite().all()
        names = {name for name in names if not acts(slot, made, name, base, whole)}
    assert not names


ADAMW = "--model.optimizer=torch.optim.AdamW"
OWN = "--model.optimizer.weight_decay"


@pytest.mark.parametrize(("options", "decay"), [
    ([], 0.05),  # the module's default, where the class's is 0
    ([ADAMW], 0.05),
    ([f"{OWN}=0.3"], 0.3),
    ([ADAMW, OWN, "0.01"], 0.01),  # the class's own default, given
    (["--model.weight_decay=0.1", "--model.optimizer.init_args.weight_decay=0.3"], 0.3),
    ([f"{OWN}=0.3", "--model.weight_decay=0.1"], 0.1),
    (["-c", "{file}"], 0.2),
    (["--model", "{part}"], 0.2),
    (["--model.optimizer={{class_path: AdamW, init_args: {{weight_decay: 0.3}}}}"], 0.3),
    ([ADAMW, "--model.optimizer={{weight_decay: 0.3}}"], 0.3),
    (["-c", "{file}", "--model.weight_decay=0.1"], 0.1),
])  # fmt: skip
def test_the_last_weight_decay_that_is_given_acts(options, decay, tmp_path) -> None:
    file = tmp_path / "mine.yaml"
    part = tmp_path / "part.yaml"
    part.write_text("optimizer: {class_path: SGD, init_args: {lr: 0.1, weight_decay: 0.2}}")
    file.write_text(f"model: {{{part.read_text()}}}")
    args = arguments("runs", *(option.format(file=file, part=part) for option in options))
    cli = AppCLI(APP, ["fit", *args])
    model, _ = cli.build_model_and_data()
    assert model.build_param_groups()[0]["weight_decay"] == decay
    assert cli.export_config()["model"]["weight_decay"] == decay


def test_two_weight_decays_of_a_module_are_refused() -> None:
    with pytest.raises(UserError, match=r"weight_decay=0.3 of the optimizer is not that"):
        Classifier(3, optimizer=partial(torch.optim.AdamW, weight_decay=0.3))
