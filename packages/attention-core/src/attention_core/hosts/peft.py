"""PEFT, https://huggingface.co/docs/peft: adapters train and save what is attached.

PEFT freezes a model, and keeps for each adapter a trained copy of the modules that its config
lists as `modules_to_save`. What is attached is added to this list, before or after PEFT, and
`adapter_config.json` describes it.
"""

import warnings
from functools import wraps
from typing import Any

from peft import PeftModel
from peft.config import PeftConfigMixin
from peft.tuners.tuners_utils import BaseTuner
from peft.utils import set_additional_trainable_modules
from torch import nn

from attention_core.hosts.hook_points import HostLibrary
from attention_core.hosts.saving import FIELD, describe_mechanisms
from attention_core.reparam import EigenSpectrum

PARTS = ("filter", "kernel", "tokens")
_inject_adapter, _to_dict = BaseTuner.inject_adapter, PeftConfigMixin.to_dict
_save_pretrained = PeftModel.save_pretrained


def list_parts(model: nn.Module) -> list[str]:
    """Return the last two names of the parts of mechanisms that have weights: "attn.filter"."""
    names = {
        ".".join(name.split(".")[-2:])
        for name, part in model.named_modules()
        if hasattr(part, "trained_names") and next(part.parameters(), None) is not None
        if name.rpartition(".")[-1] in PARTS
    }
    return sorted(names)


def describe_in_config(config: Any, model: nn.Module) -> None:
    """Add what is attached to a model to the config of an adapter, or refuse the adapter."""
    parts = list_parts(model)
    if lacking := _list_lacking(config, model):
        raise ValueError(
            f"the adapter has trained {lacking[0]!r}, which the model lacks: attach the mechanism "
            "first, or load both by attention_core.hosts.transformers.load"
        )
    groups = describe_mechanisms(model)
    if any("reparam" in group for group in groups):
        warnings.warn(
            "PEFT freezes reparameterised projections, and does not save them: call save_mechanism",
            stacklevel=4,  # the caller of PEFT
        )
    if parts:
        config.modules_to_save = sorted({*(config.modules_to_save or ()), *parts})
        config.attention_core = groups


def check_spectra(model: nn.Module) -> None:
    """Refuse adapters of the projections that an EigenSpectrum ties: a merge would be wrong."""
    tied = {id(part) for m in model.modules() if isinstance(m, EigenSpectrum) for part in m.tied}
    for name, module in model.named_modules():
        if id(module) in tied and name.endswith((".base_layer", ".original_module")):
            raise ValueError(f"an EigenSpectrum ties {name}: choose other modules for the adapter")


@wraps(_inject_adapter)
def inject_adapter(tuner: Any, model: nn.Module, adapter_name: str, *args: Any, **kw: Any) -> None:
    """Make an adapter that trains and saves what is attached, as PEFT makes it."""
    describe_in_config(tuner.peft_config[adapter_name], model)
    _inject_adapter(tuner, model, adapter_name, *args, **kw)
    check_spectra(model)


@wraps(_to_dict)
def to_dict(config: Any) -> dict[str, Any]:
    """Return what PEFT writes into `adapter_config.json`, and what is attached."""
    groups = getattr(config, FIELD, None)
    return _to_dict(config) | ({FIELD: groups} if groups else {})


@wraps(_save_pretrained)
def save_pretrained(model: Any, *args: Any, **kwargs: Any) -> None:
    """Save adapters as PEFT does; warn where a prompt is tuned, which leaves mechanisms out."""
    if list_parts(model) and any(x.is_prompt_learning for x in model.peft_config.values()):
        warnings.warn(
            "a tuned prompt of PEFT has no weights of what is attached: call save_mechanism",
            stacklevel=2,
        )
    _save_pretrained(model, *args, **kwargs)


def update_adapters(model: nn.Module) -> None:
    """Let the adapters of a model train and save what was attached after they were made."""
    for tuner in [module for module in model.modules() if isinstance(module, BaseTuner)]:
        check_spectra(tuner)
        active = tuner.active_adapters
        for name in sorted(tuner.peft_config, key=lambda name: name not in active):
            config = tuner.peft_config[name]
            kept = {*(config.modules_to_save or ())} - {*_list_lacking(config, tuner.model)}
            config.modules_to_save, config.attention_core = sorted(kept) or None, []
            describe_in_config(config, tuner.model)
            set_additional_trainable_modules(tuner.model, config, {}, name, name in active)


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
