"""What a model costs on this machine, without data: multiply-adds, parameters, speed, memory.

    python -m attention_<app>.efficiency -c overlay.yaml ... --key=value
        [--device=cuda] [--batch_size=128] [--precision=16-mixed] [--repeats=10]

The arguments are those of `fit`, and the numbers go to `efficiency.json` in the folder of that
run. Only the shapes of the inputs matter, so that they are noise.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from attention_core import penalties
from lightning.fabric import Fabric
from torch import Tensor, nn

from experiment_kit.cli import AppCLI, AppSpec
from experiment_kit.diagnostics.flops import Inputs, multiply_adds, parameters
from experiment_kit.diagnostics.memory import allocated, held
from experiment_kit.errors import UserError, exit_on_user_error, summarize_parser_error
from experiment_kit.run import describe_environment, write_atomically

Parts = tuple[nn.Module, Callable[[int], Inputs]]  # a network, and its inputs by batch size
WARM_UP = 2
BATCH = {"cpu": 8, "cuda": 128}
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")  # the papers' throughput is of float32


def speed(network: nn.Module, inputs: Inputs, fabric: Fabric, repeats: int) -> dict[str, float]:
    """Time a forward pass in eval mode and a training step with AdamW: the median of `repeats`.

    Both are of samples that lie on the device already: no loading, no augmentation. What the
    kernels add to the loss belongs to the step. Its peak memory is all that PyTorch holds then:
    weights, gradients, the optimiser's state, the samples, and what the step makes of them.
    """
    # fused: its temporaries, copies of all weights, would hide what attention takes
    adam = torch.optim.AdamW(network.parameters(), lr=1e-6, fused=True)
    model, optimizer = fabric.setup(network, adam)
    inputs = tuple(fabric.to_device(x) for x in inputs)

    @torch.no_grad()
    def infer() -> None:
        model(*inputs)

    def train() -> None:
        with penalties(network) as terms:
            loss = model(*inputs).float().square().mean()
        fabric.backward(loss + torch.stack(terms).mean() if terms else loss)
        optimizer.step()
        optimizer.zero_grad()

    model.eval()
    inference = _seconds(infer, repeats) / len(inputs[0])
    model.train()
    training = _seconds(train, repeats) / len(inputs[0])
    kept = [*network.parameters(), *network.buffers(), *_state(optimizer), *inputs]
    return {
        "samples_per_second": 1 / inference,
        "train_samples_per_second": 1 / training,
        "seconds_per_sample": inference,
        "train_seconds_per_sample": training,
        "train_peak_mib": held(kept) + allocated(train, fabric.device.type),
    }


def _state(optimizer: Any) -> Iterator[Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


def main(
    app: AppSpec,
    parts: Callable[[Any, Any], Parts],
    args: Sequence[str] | None = None,
    batch_size: Callable[[Any], int] | None = None,
    stand_ins: Mapping[type, Callable[..., Any]] | None = None,
) -> None:
    """Measure the model of a config, and write `efficiency.json` into the folder of its run.

    `parts` takes the model and data modules of the config to a network and a maker of its inputs,
    `batch_size` the latter to the samples of a step, where the recipe's are to be measured.
    `stand_ins` are made instead of data modules that read files to know their sizes. A mistake is
    one sentence and exit status 2.
    """
    with exit_on_user_error():
        options, rest = _parser().parse_known_args(sys.argv[1:] if args is None else args)
        if options.repeats < 1 or (options.batch_size is not None and options.batch_size < 1):
            raise UserError("--repeats and --batch_size must be at least 1")
        if options.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device=cuda: there is no GPU here that this PyTorch can use")
        cli = AppCLI(app, ["fit", *rest], plan=True)
        try:
            built = _build(cli, stand_ins or {})
            if batch_size and options.batch_size is None:
                options.batch_size = batch_size(built.data)
            report = _report(*parts(built.model, built.data), options)
        except ValueError as error:
            raise UserError(summarize_parser_error(str(error))) from error
        path = cli.run.folder / "efficiency.json"
        write_atomically(path, json.dumps(report, indent=2) + "\n")
        print(f"measured {path}: {json.dumps(report['metrics'])}")


def _build(cli: AppCLI, stand_ins: Mapping[type, Callable[..., Any]]) -> Any:
    made = [(lambda _, make=make, **kw: make(**kw), kind, True) for kind, make in stand_ins.items()]
    return cli.parser.instantiate(cli.config, instantiators=made).fit


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
        "environment": describe_environment(),
    }


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
