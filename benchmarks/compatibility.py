"""Attach GFSA to every model of timm and of transformers that can be built, and count.

Models are built without weights, on the meta device; those of transformers with few layers. A
model has attention if `attach` finds some, or if a module is named as attention or calls torch's
attention function; it is accepted in part where a warning names attention that stays as it is.
Classes that are named attention and compute no map between tokens (`NO_MAP`) do not count.

Causal models of transformers are also made small and run, with GFSA at a weight that acts.
"""

import argparse
import inspect
import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import timm
import torch
import transformers
from attention_core import GFSA, attach, trainable_parameters
from attention_core.hosts.hook_points import find_import_path
from attention_core.hosts.selection import find_unknown_attention
from rich.progress import track
from torch import Tensor, nn
from transformers.models.auto import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

NUM_LAYERS = 6  # hybrid models have attention in every sixth layer at least
NO_MAP = {
    "EfficientAdditiveAttention": "one global query",
    "LinearSelfAttention": "one context vector for all tokens",
    "MobileViTV2LinearSelfAttention": "one context vector for all tokens",
    "PatchTSMixerGatedAttention": "a gate of channels",
    "RwkvSelfAttention": "a recurrence",
    "SelectiveKernelAttn": "a gate of channels",
    "SplitAttn": "a gate of channels",
    "SwiftFormerEfficientAdditiveAttention": "one global query",
}
INTRODUCTION = """# Models that `attach` accepts

`python benchmarks/compatibility.py --write docs/compatibility.md` writes this page. Models accepted
in part have other attention too, which stays plain: `attach` names it, as the command does with
`--models=NAME`. Attention without a map does not count: {no_map}.
"""
STAYS_PLAIN = "that no filter supports, which stays as it is: "  # in the warning of attach
SMALL = {
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "decoder_layers"), 2),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "intermediate_size", "ffn_dim"), 64),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts", "num_local_experts"), 4),
    **{"num_experts_per_tok": 2, "rotary_dim": 8, "top_k": 2, "encoder_attention_heads": 4},
    **{"vocab_size": 99, "head_dim": 16, "moe_intermediate_size": 32, "pad_token_id": 0},
}
LAYERS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "n_layer")


class Outcome(NamedTuple):
    """The verdict on one model, and its attention classes that stay plain."""

    model: str
    verdict: str
    classes: tuple[str, ...] = ()


def build_transformer(config_class: type[transformers.PreTrainedConfig]) -> nn.Module:
    """Build the base model of a config with few layers."""
    config = config_class()
    for name in LAYERS:
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, min(NUM_LAYERS, getattr(config, name)))
    return MODEL_MAPPING[config_class](config)


def list_builders(library: str) -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Yield the names of a library's models and functions that build them."""
    if library == "timm":
        for name in timm.list_models():
            yield name, lambda name=name: timm.create_model(name, pretrained=False)
    else:
        for name, config_class in CONFIG_MAPPING.items():
            if config_class in MODEL_MAPPING:
                yield name, lambda config_class=config_class: build_transformer(config_class)


def try_model(name: str, build: Callable[[], nn.Module]) -> Outcome:
    """Build a model on the meta device, attach GFSA, and return what happened."""
    try:
        with torch.device("meta"):
            model = build()
    except Exception as error:  # a config without usable defaults, a missing optional package
        return Outcome(name, "not built", (type(error).__name__,))
    unknown = find_unknown_attention(model).values()
    classes = tuple(sorted({find_import_path(module) for module in unknown}))
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            attach(model, GFSA)
    except ValueError:
        has_map = any(path.rpartition(".")[-1] not in NO_MAP for path in classes)
        return Outcome(name, "refused" if has_map else "no attention", classes)
    except Exception as error:
        return Outcome(name, "failed", (f"{type(error).__name__}: {error}",))
    texts = [str(warning.message) for warning in caught]
    plain = [text.partition(STAYS_PLAIN)[2] for text in texts if STAYS_PLAIN in text]
    if plain and not classes:  # known classes, some modules of which have no square map
        classes = tuple(plain[0].split(", "))
    return Outcome(name, "accepted in part" if plain else "accepted", classes)


def build_small(config_class: type[transformers.PreTrainedConfig]) -> nn.Module:
    """Build a causal model of two layers with random weights."""
    known = inspect.signature(config_class).parameters
    config = config_class(**{name: value for name, value in SMALL.items() if name in known})
    config = config.get_text_config(decoder=True)
    config.is_decoder = True
    with torch.device("meta"):
        meta = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
    assert sum(weight.numel() for weight in meta.parameters()) < 2e7, "its sizes have other names"
    torch.manual_seed(0)
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.1)
    return model.float().eval()


def compare_logits(model: nn.Module, ids: Tensor) -> dict[str, str]:
    """Return what differs from one pass over the tokens: left padding, a cache in chunks."""
    whole = model(ids, use_cache=False).logits
    mask = torch.ones(2, 13, dtype=torch.long)
    mask[:, :3] = 0
    given = {"attention_mask": mask}
    if "position_ids" in inspect.signature(model.forward).parameters:
        given["position_ids"] = (mask.cumsum(1) - 1).clamp(0)

    def pad() -> Tensor:
        padded = torch.cat([torch.zeros_like(ids[:, :3]), ids], 1)
        return model(padded, use_cache=False, **given).logits[:, 3:]

    def run_in_chunks() -> Tensor:
        past = transformers.DynamicCache(config=model.config)
        parts = ids.split((6, 1, 1, 2), 1)
        run = partial(model, past_key_values=past, use_cache=True)
        return torch.cat([run(part).logits for part in parts], 1)

    found = {}
    for name, run in (("left padding", pad), ("cache", run_in_chunks)):
        try:
            if not torch.allclose(run(), whole, atol=1e-3):
                found[name] = "other logits"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
    return found


@torch.no_grad()
def run_causal(name: str, config_class: type[transformers.PreTrainedConfig]) -> Outcome:
    """Run a small causal model with GFSA: does it start as itself, act, pad and cache as before?"""
    ids = torch.arange(3, 23).view(2, 10)
    try:
        model = build_small(config_class)
        stock = model(ids, use_cache=False).logits
        assert stock.isfinite().all()
        allowed = compare_logits(model, ids)
    except Exception as error:
        return Outcome(name, "not run", (f"{type(error).__name__}: {error}"[:100],))
    try:
        attach(model, GFSA)
        if not torch.allclose(model(ids, use_cache=False).logits, stock, atol=1e-4):
            return Outcome(name, "failed", ("start",))
        for weight in trainable_parameters(model).values():
            nn.init.constant_(weight, 0.4)
        if torch.allclose(model(ids, use_cache=False).logits, stock, atol=1e-4):
            return Outcome(name, "failed", ("acts",))
        found = compare_logits(model, ids)
    except Exception as error:
        is_refused = "no attention that attach knows" in str(error)
        text = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
        return Outcome(name, "not run" if is_refused else "failed", (text,))
    failed = [f"{check}: {text}" for check, text in found.items() if check not in allowed]
    return Outcome(name, "failed" if failed else "right", tuple(failed))


def format_runs(outcomes: list[Outcome]) -> str:
    """Return the counts of the causal models that were run, and those that failed."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    lines = [
        "## Causal models of transformers, run\n",
        f"{counts['right']} of {counts['right'] + counts['failed']} start as themselves, act, and "
        "give the same logits with left padding and in chunks with a cache, wherever their stock "
        f"model does; {counts['not run']} could not be made small or have no map.\n",
    ]
    failed = [outcome for outcome in outcomes if outcome.verdict == "failed"]
    lines += [f"- {outcome.model}: {', '.join(outcome.classes)}" for outcome in failed]
    return "\n".join(lines)


def format_report(library: str, outcomes: list[Outcome], verdicts: tuple[str, ...]) -> str:
    """Return the counts of a library and the models of these verdicts as Markdown."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    accepted = counts["accepted"] + counts["accepted in part"]
    total = accepted + counts["refused"] + counts["failed"]
    lines = [
        f"## {library} {globals()[library].__version__}\n",
        f"{accepted} of {total} models with attention are accepted ({accepted / total:.1%}), "
        f"{counts['accepted in part']} of them in part; {counts['no attention']} models have no "
        f"attention, {counts['not built']} could not be built from their defaults.\n",
    ]
    for verdict in verdicts:
        models: dict[str, list[str]] = {}
        for outcome in outcomes:
            if outcome.verdict == verdict:
                models.setdefault(", ".join(outcome.classes), []).append(outcome.model)
        if models:
            lines.append(f"{verdict.capitalize()}:\n")
            for classes, names in models.items():
                short = re.sub(r"[a-z][\w.]*\.", "", classes)  # without the classes' modules
                lines.append(f"- {format_models(names)}: {short}")
            lines.append("")
    return "\n".join(lines)


def format_models(names: list[str]) -> str:
    """Name a few models, and count others of the same attention.

    >>> format_models(["levit_128", "levit_128s", "levit_192", "levit_256"])
    'levit_128 and 3 more'
    """
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 3 else ", ".join(names)


def main() -> None:
    """Count one library or both, print the tables, and write them if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    libraries = ["timm", "transformers", "causal"]
    parser.add_argument("--library", nargs="*", default=libraries, choices=libraries)
    parser.add_argument("--models", default="", help="names that contain this text alone")
    parser.add_argument("--write", type=Path, help="a Markdown file")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    reports = []
    verdicts = ("refused", "failed", *(["accepted in part"] if options.models else []))
    for library in [name for name in options.library if name != "causal"]:
        chosen = [(n, build) for n, build in list_builders(library) if options.models in n]
        outcomes = [try_model(*pair) for pair in track(chosen, description=library)]
        reports.append(format_report(library, outcomes, verdicts))
    if "causal" in options.library:
        named = [(n, c) for n, c in CONFIG_MAPPING.items() if c in MODEL_FOR_CAUSAL_LM_MAPPING]
        chosen = [(n, c) for n, c in named if options.models in n]
        runs = [run_causal(*pair) for pair in track(chosen, description="causal")]
        reports.append(format_runs(runs))
    no_map = ", ".join(NO_MAP)
    text = "\n".join([INTRODUCTION.format(no_map=no_map), *reports]).rstrip() + "\n"
    print(text)
    if options.write:
        options.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
