"""Where a function of tokens sits in a host model, and how it is put there: by a hook.

The host's parameters keep their names; the new ones are `<module>.tokens.*`.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

Seat = Literal["attention", "window", "branches", "norms"]


class Place(NamedTuple):
    """Where tokens pass a module of a host: the attribute that tells their width, and the call.

    `at` names the submodule that they pass, the module itself where it is empty.
    """

    width: str
    at: str = ""
    before: bool = False


_MAPS = {
    "timm.layers.attention.Attention": Place("proj.out_features"),
    "timm.models.cait.TalkingHeadAttn": Place("proj.out_features"),
}
_WINDOWS = {"timm.models.swin_transformer.WindowAttention": Place("proj.out_features")}
# the map of a stage, its windows merged and shifted back, is what FeatScale averages as published
_STAGES = {
    "timm.models.swin_transformer.SwinTransformerBlock": Place("dim", "drop_path1", before=True)
}
_MLPS = {"timm.layers.mlp.Mlp": Place("fc2.out_features")}
_NORMS = {
    "torch.nn.modules.normalization.LayerNorm": Place("normalized_shape", before=True),
    "timm.layers.norm.LayerNorm": Place("normalized_shape", before=True),
}
# each table is counted by itself, so that a layer's number is the same in all tables of a seat
SEATS: dict[str, tuple[dict[str, Place], ...]] = {
    "attention": (_MAPS | _STAGES,),
    "window": (_WINDOWS,),
    "branches": (_MAPS | _STAGES, _MLPS),
    "norms": (_NORMS,),
}


def host_name(module: nn.Module) -> str:
    """The import path of a module's class, of the host's own where it is an adapter's.

    Source: https://docs.python.org/3/reference/datamodel.html (type.__qualname__)

    >>> host_name(nn.LayerNorm(2))
    'torch.nn.modules.normalization.LayerNorm'
    """
    kind = getattr(type(module), "stock", type(module))
    return f"{kind.__module__}.{kind.__qualname__}"


def places(model: nn.Module, seat: Seat) -> list[list[tuple[nn.Module, Place]]]:
    """The modules of a seat in the order of the model, one list a kind of module.

    Norms inside of an attention, of queries and keys, see no tokens and are left out.

    Raises ValueError for an unknown seat, and where the model has no such place.

    Source: https://arxiv.org/abs/2203.05962 (FeatScale: attention), https://arxiv.org/abs/2103.17239
    (LayerScale: branches), https://arxiv.org/abs/2303.06562 (ContraNorm: norms)

    >>> [len(kind) for kind in places(nn.TransformerEncoderLayer(8, 2), "norms")]
    [2]
    """
    if seat not in SEATS:
        raise ValueError(f"a seat is one of {', '.join(SEATS)}, got {seat!r}")
    maps = [m for m in model.modules() if host_name(m) in _MAPS | _WINDOWS]
    inner = {part for attention in maps for part in attention.modules() if part is not attention}
    found = [
        [(m, kind[host_name(m)]) for m in model.modules() if host_name(m) in kind]
        for kind in SEATS[seat]
    ]
    found = [[(m, place) for m, place in kind if m not in inner] for kind in found]
    if not all(found):
        raise ValueError(f"{type(model).__name__} has no place for tokens at seat {seat!r}")
    return found


def width(module: nn.Module, place: Place) -> int:
    """How many channels the tokens of a place have.

    Source: https://github.com/huggingface/pytorch-image-models

    >>> width(nn.LayerNorm(8), Place("normalized_shape"))
    8
    """
    value = attrgetter(place.width)(module)
    return value if isinstance(value, int) else value[-1]


def sit(tokens: nn.Module, module: nn.Module, place: Place) -> None:
    """Let the tokens of a place pass through `tokens`.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html

    >>> norm = nn.LayerNorm(2)
    >>> sit(nn.Identity(), norm, Place("normalized_shape", before=True))
    >>> norm.tokens
    Identity()
    """
    passed: Any = module.get_submodule(place.at)
    passed.tokens = tokens
    register: Callable[..., Any] = (
        passed.register_forward_pre_hook if place.before else passed.register_forward_hook
    )
    passed.tokens_hook = register(_before if place.before else _after)


def rise(model: nn.Module) -> None:
    """Take every function of tokens out of a model.

    Source: the inverse of `sit`

    >>> norm = nn.LayerNorm(2)
    >>> sit(nn.Identity(), norm, Place("normalized_shape"))
    >>> rise(norm)
    >>> hasattr(norm, "tokens")
    False
    """
    for module in list(model.modules()):
        if handle := getattr(module, "tokens_hook", None):
            handle.remove()
            del module.tokens, module.tokens_hook


def _before(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (_through(module.tokens, inputs[0]), *inputs[1:])


def _after(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return _through(module.tokens, output)


def _through(tokens: Any, x: Tensor) -> Tensor:
    return tokens(x.flatten(1, -2)).reshape(x.shape)  # a map (B, H, W, D) is H W tokens
