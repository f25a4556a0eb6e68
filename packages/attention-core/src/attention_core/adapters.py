"""Which modules of a model are self-attention that we know, and the class that filters each.

A host adapter (`hosts/<library>.py`) is a subclass of the library's attention class and of
`Filtered`.
"""

import warnings
from importlib import import_module
from typing import Any, ClassVar

from torch import nn

from attention_core.hook_points import host_name, is_cross

# by name, so that no library is imported for the sake of a table
HOSTS = {
    "timm.layers.attention.Attention": "attention_core.hosts.timm.FilteredAttention",
    "timm.models.cait.TalkingHeadAttn": "attention_core.hosts.timm.FilteredTalkingHeads",
    "timm.models.swin_transformer.WindowAttention": "attention_core.hosts.timm.FilteredWindows",
    "speechbrain.nnet.attention.MultiheadAttention": (
        "attention_core.hosts.speechbrain.FilteredMultiheadAttention"
    ),
    "speechbrain.nnet.attention.RelPosMHAXL": (
        "attention_core.hosts.speechbrain.FilteredRelPosMHAXL"
    ),
}
# a library whose attention classes are too many to name: its `adapter(stock)` makes their adapters
LIBRARIES = {"transformers.models.": "attention_core.hosts.transformers"}
# whose models are given padded tokens, of which their norms know nothing
PADDED = (*LIBRARIES, "speechbrain.")
_PROJECTIONS = 3  # of queries, keys and values


class Filtered:
    """A host's attention with a filter: the adapter's half that knows no host.

    `stock` is the class to go back to; `heads` names the attribute that counts them; `slots`
    are the parts that it is given; `spectral` says whether a reparameterisation has a place.

    Source: https://docs.python.org/3/reference/datamodel.html (assignment to __class__)

    >>> Filtered.heads
    'num_heads'
    """

    stock: ClassVar[type[nn.Module]]
    heads: ClassVar[str] = "num_heads"
    slots: ClassVar[tuple[str, ...]] = ("filter",)
    spectral: ClassVar[bool] = True
    filter: nn.Module
    kernel: nn.Module | None

    @classmethod
    def count_heads(cls, module: nn.Module) -> int:
        """How many heads a module of the stock class has.

        Source: https://github.com/huggingface/pytorch-image-models

        >>> Filtered.count_heads(nn.MultiheadAttention(8, 2))
        2
        """
        return getattr(module, cls.heads)

    def attached(self) -> None:
        """Change what the host looks up outside of the module, once its filter is there.

        Source: https://huggingface.co/docs/transformers/attention_interface

        >>> Filtered().attached()
        """

    def detached(self) -> None:
        """Undo what `attached` did, before the filter is taken away.

        Source: https://huggingface.co/docs/transformers/attention_interface

        >>> Filtered().detached()
        """

    @staticmethod
    def noted(model: nn.Module) -> None:
        """Note in the model what has been attached or detached: some say it when saved.

        Source: https://huggingface.co/docs/transformers/main_classes/configuration

        >>> Filtered.noted(nn.Linear(2, 2))
        """


def adapter(module: nn.Module) -> type[Filtered] | None:
    """The class that filters a module, None where it is no attention that we know.

    Source: https://docs.python.org/3/library/importlib.html

    >>> adapter(nn.Linear(2, 2)) is None
    True
    """
    name = host_name(module)
    if name in HOSTS:
        home, _, kind = HOSTS[name].rpartition(".")
        return getattr(import_module(home), kind)
    for prefix, home in LIBRARIES.items():
        if name.startswith(prefix):
            return import_module(home).adapter(getattr(type(module), "stock", type(module)))
    return None


def tell_of_others(model: nn.Module) -> None:
    """Warn of attention in a model that no filter can be given, by the names of its classes.

    These are classes of a library in `LIBRARIES` that are called attention, have their own
    projections and no adapter: block-sparse ones, for example.

    Source: https://huggingface.co/docs/transformers/attention_interface

    >>> tell_of_others(nn.Linear(2, 2))
    """
    others = {
        type(module).__name__
        for module in model.modules()
        if "Attention" in type(module).__name__
        and host_name(module).startswith(tuple(LIBRARIES))
        and _projects(module)
        and all(adapter(part) is None for part in module.modules())
    }
    if others:
        warnings.warn(
            f"{type(model).__name__} has attention that no filter knows, which stays as it is: "
            f"{', '.join(sorted(others))}",
            stacklevel=4,  # where attach is called
        )


def _projects(module: nn.Module) -> bool:
    """Whether a module has queries, keys and values of its own, in one projection or in three."""
    own = [part for part in module.children() if isinstance(part, nn.Linear)]
    fused = any(part.out_features >= _PROJECTIONS * part.in_features for part in own)
    return fused or len(own) >= _PROJECTIONS


def attentions(model: nn.Module) -> list[Any]:
    """The self-attention modules of a model, in its order: an encoder's before its decoder's.

    A module that several layers share is one. Cross-attention is left out: its map is not
    square, and has no powers.

    Raises ValueError where there is none (naming what was looked for).

    Source: https://arxiv.org/abs/2312.04234, section 3

    >>> attentions(nn.Linear(2, 2))
    Traceback (most recent call last):
    ValueError: no attention to filter in Linear: looked for timm.layers.attention.Attention, ...
    """
    named = [(name, m) for name, m in model.named_modules() if adapter(m) is not None]
    found = [module for name, module in named if not is_cross(name, module)]
    if found:
        return found
    kind = type(model).__name__
    if adapter(model) is not None:
        raise ValueError(f"{kind} is cross-attention, which stays Plain: its map has no powers")
    known = ", ".join([*HOSTS, *(f"{prefix}*" for prefix in LIBRARIES)])
    plain = "; cross-attention and decoders of speechbrain stay Plain" if named else ""
    raise ValueError(f"no attention to filter in {kind}: looked for {known}{plain}")
