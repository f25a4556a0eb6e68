"""Measure over-smoothing on one batch: tokens after each block, maps, coefficients."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from attention_core import Plain, spectral
from attention_core.diagnosis.batches import PADDING_MASKS, VALID_MASKS
from attention_core.operators import ValueFreeOutput
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from experiment_kit.diagnostics.coefficients import (
    collect_coefficients,
    list_frozen_coefficients,
    measure_condition_numbers,
)
from experiment_kit.diagnostics.hooks import (
    eval_mode,
    find_attention,
    find_networks,
    forward_hooks,
    gather_weights,
    plain_filters,
)

Measures = dict[str, Any]
TOKEN_MEASURES: dict[str, Callable[..., Tensor]] = {
    "hfc_lfc": spectral.hfc_lfc,
    "hfc_share": spectral.hfc_share,
    "token_cosine": spectral.token_cosine,
    "signed_token_cosine": partial(spectral.token_cosine, signed=True),
    "effective_rank": spectral.effective_rank,
}


class NetworkCall(NamedTuple):
    """One call of a network, as a batch to measure."""

    network: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def crop_samples(self, count: int) -> "NetworkCall":
        """Return the first samples of every tensor that has the samples on axis 0."""
        values = [*self.args, *self.kwargs.values()]
        size = next((len(value) for value in values if _is_batch(value)), 0)

        def crop(value: Any) -> Any:
            is_part = _is_batch(value) and len(value) == size
            return value[:count].detach().clone() if is_part else value

        args = tuple(map(crop, self.args))
        return NetworkCall(self.network, args, {k: crop(v) for k, v in self.kwargs.items()})


class _TokenRecorder:
    """The measures of the tokens of each block, taken as it runs."""

    def __init__(self, mask: Tensor | None) -> None:
        self.mask = mask
        self.depth: list[dict[str, float]] = []
        self.last: Tensor | None = None
        self.last_mask: Tensor | None = None

    def add(self, output: Any) -> None:
        """Measure the output of a layer, a tuple if it has more than tokens."""
        x = find_tensor([output])
        if x is None or x.ndim < 3:
            return
        x = x.flatten(1, -2).float()
        mask = self.mask if self.mask is not None and self.mask.shape == x.shape[:2] else None
        if x.shape[1] > 1 and (self.mask is None or mask is not None):
            self.depth.append(measure_sample_tokens(x, mask))
            self.last, self.last_mask = x, mask

    def measure_singular_values(self) -> list[float]:
        """Return the singular values of the last tokens, largest first, mean over samples."""
        x = self.last
        if x is None or not x.isfinite().all():
            return []
        x = x if self.last_mask is None else x * self.last_mask.unsqueeze(-1)
        return torch.linalg.svdvals(x).mean(0).tolist()


@torch.no_grad()
def measure_spectra(model: Any, batch: Any, full: bool = True) -> Measures:
    """Measure a LightningModule on one batch, in eval mode, and restore its mode.

    `monitored_layers`, `token_mask` and `predict_step` are used where the module has them. Else
    the tokens are the input of the first block and the output of each block: a block is the
    outermost module that holds one attention and keeps the shape of its tokens. `batch` is what
    `predict_step` takes, or a `NetworkCall`. A layer that is used several times counts each time.
    The steps of a decoder that generates token by token are left out: one token is not smooth and
    has no frequencies. `full` adds what takes longer: cosine of maps, singular values, condition
    numbers.

    Raises ValueError for a module without attention that names no layers.
    """
    mask = model.token_mask(batch) if hasattr(model, "token_mask") else None
    tokens = _TokenRecorder(mask)
    maps: dict[str, list[Any]] = {"response": [], **({"map_cosine": []} if full else {})}

    def measure_map(filter: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        # one map at a time: all of them together may not fit into memory
        constant = isinstance(inputs[0], ValueFreeOutput)
        if not constant and 1 < inputs[1].shape[-2] == output.shape[-2]:
            _measure_map(filter, inputs[0], tokens.mask, maps)

    with ExitStack() as stack:
        for context in (eval_mode(model), plain_filters(model)):
            stack.enter_context(context)
        if not hasattr(model, "token_mask"):
            stack.enter_context(_watch_mask(find_networks(model), tokens))
        within = stack.enter_context(_watch_tokens(model, tokens))
        named = {name: m for name, m in model.named_modules() if name.endswith(".filter")}
        filters = [module for module in named.values() if module in within]
        with forward_hooks(filters, measure_map):
            _run(model, batch)
        with gather_weights(model):
            measures: Measures = {"depth": tokens.depth, **maps}
            measures["coefficients"] = collect_coefficients(model)
            measures["frozen"] = list_frozen_coefficients(model)
            measures["attention"] = [name.removesuffix(".filter") for name in named]
            if full:
                measures["singular_values"] = tokens.measure_singular_values()
                measures["condition_number"] = measure_condition_numbers(model)
    return measures


def measure_sample_tokens(x: Tensor, mask: Tensor | None) -> dict[str, float]:
    """Return the mean over samples of each of `TOKEN_MEASURES`; NaN for tokens that diverged."""
    if not x.isfinite().all():  # there is no spectrum; FiniteLoss reports the divergence
        return dict.fromkeys(TOKEN_MEASURES, math.nan)
    return {name: measure(x, mask).mean().item() for name, measure in TOKEN_MEASURES.items()}


def find_tensor(values: Sequence[Any]) -> Tensor | None:
    """Return the first tensor of floats, in nested lists, tuples and mappings too."""
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
        parts = value.values() if isinstance(value, Mapping) else value
        if isinstance(value, list | tuple | Mapping) and (x := find_tensor([*parts])) is not None:
            return x
    return None


def overrides_predict_step(model: Any) -> bool:
    """Return True if a module says itself how it takes a batch."""
    inherited = getattr(type(model), "predict_step", None) is LightningModule.predict_step
    return hasattr(model, "predict_step") and not inherited


def _run(model: Any, batch: Any) -> None:
    if isinstance(batch, NetworkCall):
        batch.network(*batch.args, **batch.kwargs)
    else:
        model.predict_step(batch, 0)


def _measure_map(filter: Any, A: Any, mask: Tensor | None, maps: dict[str, list[Any]]) -> None:
    H = spectral.matrix(filter.forward, A).float()  # (B, H, N, N)
    padded = mask is not None and mask.shape == (len(H), H.shape[-1])
    response = spectral.dft_response(H, mask if padded else None)[..., : H.shape[-1] // 2 + 1]
    maps["response"].append(response.flatten(0, -2).mean(0).tolist())
    if "map_cosine" in maps:
        A = H if isinstance(filter, Plain) else spectral.matrix(Plain(), A).float()
        cosine = spectral.map_cosine(A, mask if padded else None)
        maps["map_cosine"].append(cosine.mean().item())


@contextmanager
def _watch_tokens(model: Any, tokens: _TokenRecorder) -> Iterator[set[nn.Module]]:
    """Record tokens while the model runs; yields the modules whose filters belong to them."""
    if hasattr(model, "monitored_layers"):
        layers = list(dict.fromkeys(model.monitored_layers()))
        with forward_hooks(layers, lambda module, inputs, output: tokens.add(output)):
            yield {module for layer in layers for module in layer.modules()}
        return
    attention = set(find_attention(model))
    around = [m for m in model.modules() if sum(part in attention for part in m.modules()) == 1]
    handles = []
    watcher = _BlockWatcher(attention, tokens)
    for module in around:
        if module is not model:
            handles.append(module.register_forward_pre_hook(watcher.enter, with_kwargs=True))
            handles.append(module.register_forward_hook(watcher.leave))
    try:
        yield {part for module in attention for part in module.modules()}
    finally:
        for handle in handles:
            handle.remove()


class _BlockWatcher:
    """Hooks that find the tokens of each block among the modules around its one attention."""

    def __init__(self, attention: set[nn.Module], tokens: _TokenRecorder) -> None:
        self.attention, self.tokens = attention, tokens
        self.entered: list[Tensor | None] = []  # the inputs of the modules that are running
        self.found: tuple[Tensor, Tensor] | None = None  # input, output of the outermost so far

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the tokens that enter a module."""
        self.entered.append(find_tensor([*args, *kwargs.values()]))

    def leave(self, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Take the output of a module that keeps the shape; measure it after the outermost."""
        x, y = self.entered.pop(), find_tensor([output])
        if x is not None and y is not None and x.shape == y.shape and x.ndim > 2:
            pair = x, y
            if module in self.attention and getattr(module, "batch_first", True) is False:
                pair = x.transpose(0, 1), y.transpose(0, 1)
            self.found = pair
        if not self.entered and self.found is not None:
            if not self.tokens.depth:
                self.tokens.add(self.found[0])
            self.tokens.add(self.found[1])
            self.found = None


@contextmanager
def _watch_mask(networks: Sequence[nn.Module], tokens: _TokenRecorder) -> Iterator[None]:
    """Find the mask of valid tokens among the arguments of networks, the outermost first."""

    def find_mask(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = inspect.signature(network.forward).bind_partial(*args, **kwargs).arguments
        masks = {True: [given.get(name) for name in VALID_MASKS]}
        masks |= {False: [given.get(name) for name in PADDING_MASKS]}
        for is_valid, values in masks.items():
            for value in values:
                if tokens.mask is None and isinstance(value, Tensor) and value.ndim == 2:
                    tokens.mask = value.bool() if is_valid else ~value.bool()

    handles = [m.register_forward_pre_hook(find_mask, with_kwargs=True) for m in networks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_batch(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0
