"""Efficiency of a model on this machine, without data: multiply-adds, parameters, speed, memory."""

import copy
import time
from collections.abc import Callable
from itertools import accumulate
from statistics import median
from typing import Any

import torch
from attention_core import penalties
from lightning.fabric import Fabric
from lightning.fabric.utilities.throughput import measure_flops
from torch import Tensor, nn

from experiment_kit.environment import describe_environment

Inputs = tuple[Tensor, ...]
WARM_UP = 2
BATCH_SIZES = {"cpu": 8, "cuda": 128}
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")  # the papers' throughput is of float32
MIB = 2**20
_MECHANISMS = ("attention_core.filters", "attention_core.tokens")


def measure_efficiency(
    network: nn.Module,
    make_inputs: Callable[[int], Inputs],
    device: str = "auto",
    batch_size: int | None = None,
    precision: Any = "32-true",
    repeats: int = 10,
) -> dict[str, Any]:
    """Return the metrics of a network on inputs of a batch size, and the settings they hold for."""
    fabric: Any = Fabric(accelerator=device, devices=1, precision=precision)
    size = batch_size or BATCH_SIZES.get(fabric.device.type, BATCH_SIZES["cpu"])
    return {
        "metrics": {
            **count_parameters(network),
            "multiply_adds": count_macs(network, make_inputs(1)),
            **measure_speed(network, make_inputs(size), fabric, repeats),
        },
        "device": fabric.device.type,
        "batch_size": size,
        "precision": fabric.strategy.precision.precision,  # bfloat16 where a CPU lacks float16
        "repeats": repeats,
        "environment": describe_environment(),
    }


def count_macs(network: nn.Module, inputs: Inputs) -> int:
    """Count the multiply-adds of products and convolutions: half of PyTorch's FLOPs, as papers do.

    GFSA multiplies by A a second time; its released code forms A^2, which is n^3 a head.
    """
    # on the meta device nothing is computed, and fused attention is counted as its products
    network = copy.deepcopy(network).to("meta").eval().requires_grad_(False)
    return measure_flops(network, lambda: network(*(x.to("meta") for x in inputs))) // 2


def count_parameters(network: nn.Module) -> dict[str, int]:
    """Count the trainable parameters, and those of filters and token mechanisms among them."""
    added = [m for m in network.modules() if type(m).__module__.startswith(_MECHANISMS)]
    extra = {p for module in added for p in module.parameters() if p.requires_grad}
    return {
        "parameters": sum(p.numel() for p in network.parameters() if p.requires_grad),
        "extra_parameters": sum(p.numel() for p in extra),
    }


def measure_speed(
    network: nn.Module, inputs: Inputs, fabric: Fabric, repeats: int
) -> dict[str, float]:
    """Time a forward pass in eval mode and a training step with AdamW: the median of `repeats`.

    The samples are on the device already. The step includes the penalties of the kernels. Its peak
    memory is all that PyTorch holds then, from the weights to the activations.
    """
    # fused: its temporaries, copies of all weights, would hide what attention takes
    adam = torch.optim.AdamW(network.parameters(), lr=1e-6, fused=True)
    model, optimizer = fabric.setup(network, adam)
    inputs = tuple(fabric.to_device(x) for x in inputs)

    @torch.no_grad()
    def run_inference() -> None:
        model(*inputs)

    def run_step() -> None:
        with penalties(network) as terms:
            loss = model(*inputs).float().square().mean()
        fabric.backward(loss + torch.stack(terms).mean() if terms else loss)
        optimizer.step()
        optimizer.zero_grad()

    model.eval()
    inference = _time_step(run_inference, repeats) / len(inputs[0])
    model.train()
    training = _time_step(run_step, repeats) / len(inputs[0])
    held = [*network.parameters(), *network.buffers(), *inputs]
    states = (value for state in optimizer.state.values() for value in state.values())
    held += [value for value in states if isinstance(value, Tensor)]
    sizes = {s.data_ptr(): s.nbytes() for s in map(Tensor.untyped_storage, held)}  # shared once
    peak = peak_allocated_mib(run_step, fabric.device.type)
    return {
        "samples_per_second": 1 / inference,
        "train_samples_per_second": 1 / training,
        "seconds_per_sample": inference,
        "train_seconds_per_sample": training,
        "train_peak_mib": sum(sizes.values()) / MIB + peak,
    }


def _time_step(step: Callable[[], None], repeats: int) -> float:
    seconds = []
    for _ in range(WARM_UP + repeats):
        began = time.perf_counter()
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return median(seconds[WARM_UP:])


def peak_allocated_mib(step: Callable[[], Any], device: str) -> float:
    """Return the MiB of tensors that a step allocates at its peak, operands apart."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - before) / MIB
    # torch.profiler.profile would build a tree of all events, which takes seconds
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        step()
    events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    changes = (e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    return max(accumulate(changes), default=0) / MIB
