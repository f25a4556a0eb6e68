"""What a model costs on this machine, without data: multiply-adds, parameters and speed.

    python -m attention_<app>.efficiency -c overlay.yaml ... --key=value
        [--device=cuda] [--batch_size=128] [--precision=16-mixed] [--repeats=10]

The arguments are those of `fit`, and the numbers go to `efficiency.json` in the folder of that
run. Only the shapes of the inputs matter, so that they are noise.
"""

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from attention_core import GFSA
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from experiment_kit.cli import App, AppCLI
from experiment_kit.environment import environment
from experiment_kit.errors import UserError
from experiment_kit.runs import write_atomically
from experiment_kit.sentences import one_sentence, told

Inputs = tuple[Tensor, ...]
Parts = tuple[nn.Module, Callable[[int], Inputs]]  # a network, and its inputs by batch size
ADDED = ("attention_core.filters", "attention_core.tokens")
WARM_UP = 2
BATCH = {"cpu": 8, "cuda": 128}
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")  # the papers' throughput is of float32


def multiply_adds(network: nn.Module, inputs: Inputs) -> tuple[int, int]:
    """Count the multiply-adds of a forward pass: as it runs, and as GFSA's own code would do it.

    That code forms A^2 (n^3 a head) where ours multiplies by A a second time. Products and
    convolutions are counted, half of what PyTorch calls FLOPs; the papers print such numbers.

    >>> multiply_adds(nn.Linear(3, 5), (torch.zeros(2, 3),))
    (30, 30)
    """
    # on the meta device nothing is computed, and fused attention is counted as its products
    network = copy.deepcopy(network).to("meta").eval().requires_grad_(False)
    inputs = tuple(x.to("meta") for x in inputs)
    excess = 0

    def squared(filter: nn.Module, arguments: Any, _: Tensor) -> None:
        nonlocal excess
        A, v = arguments
        *batch, n, _width = v.shape
        excess += 2 * torch.Size(batch).numel() * n**3 - _flops(lambda: A @ v)

    flops = _flops(lambda: network(*inputs))
    for module in network.modules():
        if isinstance(module, GFSA):
            module.register_forward_hook(squared)
    network(*inputs)
    return flops // 2, (flops + excess) // 2


def parameters(network: nn.Module) -> dict[str, int]:
    """Count the trainable parameters, and those that filters and token mechanisms have of them.

    >>> parameters(nn.Sequential(nn.Linear(3, 5), GFSA(num_heads=4)))
    {'parameters': 24, 'extra_parameters': 4}
    """
    added = [m for m in network.modules() if type(m).__module__.startswith(ADDED)]
    extra = {p for module in added for p in module.parameters() if p.requires_grad}
    return {
        "parameters": sum(p.numel() for p in network.parameters() if p.requires_grad),
        "extra_parameters": sum(p.numel() for p in extra),
    }


def speed(network: nn.Module, inputs: Inputs, fabric: Fabric, repeats: int) -> dict[str, float]:
    """Time a forward pass in eval mode and a training step with AdamW: the median of `repeats`.

    Both are of samples that lie on the device already: no loading, no augmentation.
    """
    model, optimizer = fabric.setup(network, torch.optim.AdamW(network.parameters(), lr=1e-6))
    inputs = tuple(fabric.to_device(x) for x in inputs)

    @torch.no_grad()
    def infer() -> None:
        model(*inputs)

    def train() -> None:
        fabric.backward(model(*inputs).float().square().mean())
        optimizer.step()
        optimizer.zero_grad()

    model.eval()
    inference = _seconds(infer, repeats) / len(inputs[0])
    model.train()
    training = _seconds(train, repeats) / len(inputs[0])
    return {
        "samples_per_second": 1 / inference,
        "train_samples_per_second": 1 / training,
        "seconds_per_sample": inference,
        "train_seconds_per_sample": training,
    }


def main(
    app: App,
    parts: Callable[[Any, Any], Parts],
    args: Sequence[str] | None = None,
) -> None:
    """Measure the model of a config, and write `efficiency.json` into the folder of its run.

    `parts` takes the model and data modules of the config to a network and a maker of its inputs.
    A mistake is one sentence and exit status 2.
    """
    with told():
        options, rest = _parser().parse_known_args(sys.argv[1:] if args is None else args)
        if options.repeats < 1 or (options.batch_size is not None and options.batch_size < 1):
            raise UserError("--repeats and --batch_size must be at least 1")
        if options.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device=cuda: there is no GPU here that this PyTorch can use")
        cli = AppCLI(app, ["fit", *rest], plan=True)
        try:
            built = cli.parser.instantiate_classes(cli.config).fit
        except ValueError as error:
            raise UserError(one_sentence(str(error))) from error
        report = _report(*parts(built.model, built.data), options)
        path = cli.run.folder / "efficiency.json"
        write_atomically(path, json.dumps(report, indent=2) + "\n")
        print(f"measured {path}: {json.dumps(report['metrics'])}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False, add_help=False)
    parser.add_argument("--device", choices=("auto", *BATCH), default="auto")
    parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0])
    parser.add_argument("--batch_size", type=int)
    parser.add_argument("--repeats", type=int, default=10)
    return parser


def _report(network: nn.Module, make: Callable[[int], Inputs], options: Any) -> dict[str, Any]:
    fabric = Fabric(accelerator=options.device, devices=1, precision=options.precision)
    size = options.batch_size or BATCH.get(fabric.device.type, BATCH["cpu"])
    executed, literal = multiply_adds(network, make(1))
    metrics = {
        **parameters(network),
        "multiply_adds": executed,
        "multiply_adds_literal": literal,
        **speed(network, make(size), fabric, options.repeats),
    }
    return {
        "metrics": metrics,
        "device": fabric.device.type,
        "batch_size": size,
        "precision": options.precision,
        "repeats": options.repeats,
        "environment": environment(),
    }


def _flops(step: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def _seconds(step: Callable[[], None], repeats: int) -> float:
    for _ in range(WARM_UP):
        step()
    return median(_timed(step) for _ in range(repeats))


def _timed(step: Callable[[], None]) -> float:
    _synchronize()
    began = time.perf_counter()
    step()
    _synchronize()
    return time.perf_counter() - began


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
