"""PEFT, https://huggingface.co/docs/peft: adapters train and save what is attached.

PEFT keeps for each adapter a trained copy of the modules in `modules_to_save` of its config. What
is attached is added to this list, before or after PEFT; `adapter_config.json` describes it.
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
_save_pretrained, _from_peft_type = PeftModel.save_pretrained, PeftConfigMixin.from_peft_type


def describe_in_config(config: Any, model: nn.Module) -> None:
    """Add what is attached to a model to the config of an adapter, or refuse the adapter."""
    groups = describe_mechanisms(model)
    old, own = map(_list_arguments, (getattr(config, "saved_groups", None) or groups, groups))
    for k in old | own:  # another version may have other arguments
        if k in old.keys() ^ own.keys() or any(own[k].get(n, x) != x for n, x in old[k].items()):
            raise ValueError(
                f"{k} has {old.get(k, 'nothing')} in the adapter, {own.get(k, 'nothing')} here: "
                "attach the same first, or load both by attention_core.hosts.transformers.load"
            )
    parts: list[Any] = [part for part in model.modules() if "trained_names" in vars(part)]
    weights = [id(weight) for part in parts for weight in part.parameters()]
    if len({*weights}) < len(weights) or any(getattr(part, "before", ()) for part in parts):
        raise ValueError("PEFT copies what layers share: leave out share_layers and add_scores")
    if any("reparam" in group for group in groups):
        warnings.warn(
            "PEFT freezes reparameterised projections, and does not save them: call save_mechanism",
            stacklevel=4,  # the caller of PEFT
        )
    added = {
        ".".join(name.split(".")[-2:])  # "attn.filter"
        for name, part in model.named_modules()
        if hasattr(part, "trained_names") and part.state_dict()
        if name.rpartition(".")[-1] in PARTS
    }
    kept = {*(config.modules_to_save or ())} - getattr(config, "added", set())
    config.modules_to_save = sorted(kept | added) or None
    config.attention_core, config.added, config.saved_groups = groups, added, None


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
            raise ValueError(f"an adapter of {name} would bypass its filter: choose its out_proj")


@wraps(_inject_adapter)
def inject_adapter(tuner: Any, model: nn.Module, adapter_name: str, *args: Any, **kw: Any) -> None:
    """Make an adapter that trains and saves what is attached, as PEFT makes it."""
    config, is_target = tuner.peft_config[adapter_name], tuner._check_target_module_exists
    if hasattr(config, "modules_to_save"):  # not of trained tokens alone
        check_targets(model, lambda name: config.target_modules and is_target(config, name))
        describe_in_config(config, model)
    _inject_adapter(tuner, model, adapter_name, *args, **kw)
    check_targets(model)


def from_peft_type(kind: Any, /, **kwargs: Any) -> Any:
    """Make the config of a file, with what was attached when it was saved."""
    groups = kwargs.pop(FIELD, None)
    config = _from_peft_type.__func__(kind, **kwargs)
    config.saved_groups = groups
    return config


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
            describe_in_config(configs[name], base)
            set_additional_trainable_modules(base, configs[name], {}, name, name in active)


def _list_arguments(groups: list[Any]) -> dict[str, Any]:
    """Return the arguments of each described part, by its class, slot, place and layer."""
    found: dict[str, Any] = {}
    for group in groups:
        place = group.get("position", group.get("where", "layer")).rpartition(".")[2]
        for slot in {*PARTS} & group.keys():
            name = group[slot]["class_path"].rpartition(".")[2]  # without its module
            args = group[slot].get("init_args", {})
            found |= {f"{name} ({slot}, {place} {i})": args for i in group["layers"]}
    return found


BaseTuner.inject_adapter = inject_adapter
PeftConfigMixin.to_dict, PeftConfigMixin.from_peft_type = to_dict, classmethod(from_peft_type)
PeftModel.save_pretrained = save_pretrained
HOST = HostLibrary(hook_points={}, update_config=update_adapters)
