"""PEFT, https://huggingface.co/docs/peft: adapters train and save what is attached.

PEFT freezes a model, and keeps for each adapter a trained copy of the modules that its config
lists as `modules_to_save`. What is attached is added to this list, before or after PEFT, and
`adapter_config.json` describes it.
"""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from peft import PeftModel
from peft.config import PeftConfigMixin
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils import set_additional_trainable_modules
from torch import nn

from attention_core.hosts.adapter import Filtered
from attention_core.hosts.hook_points import HostLibrary
from attention_core.hosts.saving import FIELD, describe_mechanisms
from attention_core.reparam import EigenSpectrum

PARTS = ("filter", "kernel", "tokens")
_inject_adapter, _to_dict = BaseTuner.inject_adapter, PeftConfigMixin.to_dict
_save_pretrained = PeftModel.save_pretrained


def list_parts(model: nn.Module) -> list[str]:
    """Return the last two names of the parts of mechanisms that have state: "attn.filter"."""
    names = {
        ".".join(name.split(".")[-2:])
        for name, part in model.named_modules()
        if hasattr(part, "trained_names") and part.state_dict()
        if name.rpartition(".")[-1] in PARTS
    }
    return sorted(names)


def describe_in_config(config: Any, model: nn.Module) -> None:
    """Add what is attached to a model to the config of an adapter, or refuse the adapter."""
    if lacking := _list_lacking(config, model):
        raise ValueError(
            f"the adapter has trained {lacking[0]!r}, which the model lacks: attach the mechanism "
            "first, or load both by attention_core.hosts.transformers.load"
        )
    parts: list[Any] = [part for part in model.modules() if "trained_names" in vars(part)]
    weights = [id(weight) for part in parts for weight in part.parameters()]
    if len({*weights}) < len(weights) or any(getattr(part, "before", ()) for part in parts):
        raise ValueError("PEFT copies what layers share: leave out share_layers and add_scores")
    groups = describe_mechanisms(model)
    if any("reparam" in group for group in groups):
        warnings.warn(
            "PEFT freezes reparameterised projections, and does not save them: call save_mechanism",
            stacklevel=4,  # the caller of PEFT
        )
    kept = {*(config.modules_to_save or ()), *list_parts(model)}
    config.modules_to_save, config.attention_core = sorted(kept) or None, groups


def check_targets(model: nn.Module, is_target: Callable[[str], Any] = lambda name: False) -> None:
    """Refuse adapters that a mechanism bypasses, or whose merge would be wrong."""
    tied = {id(part) for m in model.modules() if isinstance(m, EigenSpectrum) for part in m.tied}
    for name, module in model.named_modules():
        if id(module) in tied and name.endswith((".base_layer", ".original_module")):
            raise ValueError(f"an EigenSpectrum ties {name}: choose other modules for the adapter")
        is_layer = isinstance(module, BaseTunerLayer)
        is_adapted = is_layer or name.endswith(".base_layer") or is_target(name)
        if is_adapted and hasattr(module, "tokens_position"):
            raise ValueError(f"tokens follow {name} at once: choose other modules for the adapter")
        is_whole = isinstance(module, Filtered) and isinstance(module, nn.MultiheadAttention)
        if is_adapted and is_whole:
            raise ValueError(
                f"an adapter of {name} as a whole would bypass its filter: choose its out_proj, or "
                "other modules, for the adapter"
            )


@wraps(_inject_adapter)
def inject_adapter(tuner: Any, model: nn.Module, adapter_name: str, *args: Any, **kw: Any) -> None:
    """Make an adapter that trains and saves what is attached, as PEFT makes it."""
    config, is_target = tuner.peft_config[adapter_name], tuner._check_target_module_exists
    if hasattr(config, "modules_to_save"):  # not of trained tokens alone
        check_targets(model, lambda name: config.target_modules and is_target(config, name))
        describe_in_config(config, model)
    _inject_adapter(tuner, model, adapter_name, *args, **kw)
    check_targets(model)


@wraps(_to_dict)
def to_dict(config: Any) -> dict[str, Any]:
    """Return what PEFT writes into `adapter_config.json`, and what is attached."""
    groups = getattr(config, FIELD, None)
    return _to_dict(config) | ({FIELD: groups} if groups else {})


@wraps(_save_pretrained)
def save_pretrained(model: Any, *args: Any, **kwargs: Any) -> None:
    """Save adapters as PEFT does; warn of those that leave mechanisms out."""
    configs = model.peft_config.values()
    lacking = [x for x in configs if x.is_prompt_learning or not hasattr(x, "modules_to_save")]
    if lacking and describe_mechanisms(model):
        kind = lacking[0].peft_type.value
        warnings.warn(f"{kind} leaves out what is attached: call save_mechanism", stacklevel=2)
    _save_pretrained(model, *args, **kwargs)


def update_adapters(model: nn.Module) -> None:
    """Let the adapters of a model train and save what was attached after they were made."""
    modules: list[Any] = list(model.modules())
    tuners = [m for m in modules if isinstance(m, BaseTuner)]
    found = [(m.model, m.peft_config, m.active_adapters) for m in tuners]
    # a model of transformers holds the adapters of its own `add_adapter`
    own = [m for m in modules if getattr(m, "_hf_peft_config_loaded", False)]
    found += [(m, m.peft_config, m.active_adapters()) for m in own]
    for base, configs, active in found:
        check_targets(base)
        names = [name for name in configs if hasattr(configs[name], "modules_to_save")]
        for name in sorted(names, key=lambda name: name not in active):
            config = configs[name]
            kept = {*(config.modules_to_save or ())} - {*_list_lacking(config, base)}
            config.modules_to_save = sorted(kept)
            describe_in_config(config, base)
            set_additional_trainable_modules(base, config, {}, name, name in active)


def _list_lacking(config: Any, model: nn.Module) -> list[str]:
    """Return the parts of mechanisms that an adapter saves, and no module of the model is named."""
    paths = [f".{name}" for name, _ in model.named_modules()]
    parts = [name for name in config.modules_to_save or () if name.rpartition(".")[-1] in PARTS]
    return [part for part in parts if not any(path.endswith(f".{part}") for path in paths)]


# PEFT advises an upgrade where it meets a field of a config that it does not have
warnings.filterwarnings("ignore", r"Unexpected keyword arguments \['attention_core'\]")
BaseTuner.inject_adapter = inject_adapter
PeftConfigMixin.to_dict = to_dict
PeftModel.save_pretrained = save_pretrained
HOST = HostLibrary(hook_points={}, update_config=update_adapters)
