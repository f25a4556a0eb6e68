"""Where a function of tokens sits in a host model, and how it is put there: by a hook.

The host's parameters keep their names; the new ones are `<module>.tokens.*`.
"""

import inspect
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from attention_core.operators import support
from attention_core.seat_tables import POSITIONS, WITH_NORMS_INSIDE, Place, Position

__all__ = [
    "Place",
    "Position",
    "host_name",
    "is_cross",
    "located",
    "places",
    "rise",
    "sit",
    "width",
]

IGNORED = "key_padding_mask"  # torch's name for the mask that is True where a token is padding


def host_name(module: nn.Module) -> str:
    """The import path of a module's class, of the host's own where it is an adapter's.

    Source: https://docs.python.org/3/reference/datamodel.html (type.__qualname__)

    >>> host_name(nn.LayerNorm(2))
    'torch.nn.modules.normalization.LayerNorm'
    """
    kind = getattr(type(module), "stock", type(module))
    return f"{kind.__module__}.{kind.__qualname__}"


def is_cross(name: str, module: nn.Module) -> bool:
    """Whether a module, by its class or by its name in the model, is of a cross-attention.

    So counts all attention of speechbrain's decoders, which stays plain as in the paper.

    Source: https://github.com/huggingface/transformers (BERT's class, GPT-2's flag, BART's names),
    https://github.com/speechbrain/speechbrain (its decoder layers' names)

    >>> is_cross("layer.0.crossattention.output", nn.Linear(2, 2))
    True
    """
    parts, last = name.split("."), name.split(".")[-2:]
    if host_name(module).startswith("speechbrain."):
        return "decoder" in parts or parts[-1] in ("self_attn", "multihead_attn")
    return (
        "Cross" in host_name(module).rpartition(".")[2]
        or bool(getattr(module, "is_cross_attention", False))
        or any("cross" in part or part in ("encoder_attn", "EncDecAttention") for part in last)
    )


def places(model: nn.Module, position: Position) -> list[list[tuple[nn.Module, Place]]]:
    """The modules of a position in the order of the model, one list a kind of module.

    Norms inside of an attention, of queries and keys, see no tokens and are left out.

    Raises ValueError for an unknown position, and where the model has no such place.

    Source: https://arxiv.org/abs/2203.05962 (FeatScale: attention), https://arxiv.org/abs/2103.17239
    (LayerScale: branches), https://arxiv.org/abs/2303.06562 (ContraNorm: norms)

    >>> [len(kind) for kind in places(nn.TransformerEncoderLayer(8, 2), "norms")]
    [2]
    """
    if position not in POSITIONS:
        raise ValueError(f"position must be one of {', '.join(POSITIONS)}, got {position!r}")
    found = located(model, position)
    if not all(found):
        raise ValueError(f"{type(model).__name__} has no place for tokens at position {position!r}")
    return found


def located(model: nn.Module, position: Position) -> list[list[tuple[nn.Module, Place]]]:
    """What `places` gives, empty lists where the model has no such place.

    Source: the tables of `seat_tables`

    >>> located(nn.Linear(2, 2), "residual")
    [[]]
    """
    named = [(m, host_name(m)) for n, m in model.named_modules() if not is_cross(n, m)]
    maps = [m for m, name in named if name in WITH_NORMS_INSIDE]
    inner = {part for attention in maps for part in attention.modules() if part is not attention}
    return [
        [(m, kind[name]) for m, name in named if name in kind and m not in inner]
        for kind in POSITIONS[position]
    ]


def width(module: nn.Module, place: Place) -> int:
    """How many channels the tokens of a place have.

    Source: https://github.com/huggingface/pytorch-image-models

    >>> width(nn.LayerNorm(8), Place("normalized_shape"))
    8
    """
    value = attrgetter(place.width)(module)
    return value if isinstance(value, int) else value[-1]


def sit(tokens: nn.Module, module: nn.Module, place: Place, position: Position) -> None:
    """Let the tokens of a place pass through `tokens`, which is told which of them are real.

    It is called with the mask, (B, N), where the host's attention has been given one.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html

    >>> norm = nn.LayerNorm(2)
    >>> sit(nn.Identity(), norm, Place("normalized_shape", before=True), "norms")
    >>> norm.tokens
    Identity()
    """
    passed: Any = module.get_submodule(place.at)
    passed.tokens, passed.tokens_real, passed.tokens_position = tokens, None, position
    register: Callable[..., Any] = (
        passed.register_forward_pre_hook if place.before else passed.register_forward_hook
    )
    passed.tokens_hooks = [register(_before if place.before else _after)]
    if place.attention is not None:
        attention = module.get_submodule(place.attention)
        stock = getattr(type(attention), "stock", type(attention))
        names = list(inspect.signature(stock.forward).parameters)[1:]
        name = next(name for name in ("attention_mask", "mask", IGNORED) if name in names)
        # not of the model: a recomputed (checkpointed) layer sees its own mask again
        note = partial(_note, passed, name, names.index(name))
        passed.tokens_hooks.append(attention.register_forward_pre_hook(note, with_kwargs=True))


def rise(model: nn.Module) -> None:
    """Take every function of tokens out of a model.

    Source: the inverse of `sit`

    >>> norm = nn.LayerNorm(2)
    >>> sit(nn.Identity(), norm, Place("normalized_shape"), "norms")
    >>> rise(norm)
    >>> hasattr(norm, "tokens")
    False
    """
    for module in list(model.modules()):
        for handle in (hooks := getattr(module, "tokens_hooks", [])):
            handle.remove()
        if hooks:
            del module.tokens, module.tokens_real, module.tokens_position, module.tokens_hooks


def _note(
    passed: Any, name: str, i: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    mask = args[i] if i < len(args) else kwargs.get(name)
    if name == IGNORED and mask is not None:
        mask = ~mask.bool()
    # of (B, 1, N, N) the last query of a causal map sees all that is real, and any of another
    passed.tokens_real = (
        None if mask is None else mask.bool() if mask.ndim == 2 else support(mask)[:, 0, -1]
    )


def _before(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (_through(module, inputs[0]), *inputs[1:])


def _after(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return _through(module, output)


def _through(module: Any, x: Tensor) -> Tensor:
    if module.tokens_real is None:
        return module.tokens(x.flatten(1, -2)).reshape(x.shape)  # a map (B, H, W, D) is H W tokens
    real, module.tokens_real = module.tokens_real[:, -x.shape[1] :], None
    return module.tokens(x, real)
