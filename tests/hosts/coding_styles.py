"""Public styles of writing a transformer, none of which diagnose knows by name.

Each keeps the tokens of its stream in `seen`, from the first input to the end of each layer.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attention_core import GFSA, SelfAttention  # isort: skip

DIM, HEADS, DEPTH, N, B = 24, 3, 3, 10, 4


class Softmax(nn.Module):
    """Attention whose softmax is written out."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        q = self.split(self.qkv(x).chunk(3, -1)[0])
        k, v = (self.split(y) for y in self.qkv(x if context is None else context).chunk(3, -1)[1:])
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))

    @staticmethod
    def split(x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v


class Exponentials(Softmax):
    def attend(self, q, k, v):
        weights = (q @ k.mT * q.shape[-1] ** -0.5).exp()
        return (weights / weights.sum(-1, keepdim=True)) @ v


class Fused(Softmax):
    attend = staticmethod(F.scaled_dot_product_attention)


class Grouped(Softmax):
    """Groups of queries on an axis of their own."""

    def attend(self, q, k, v):
        logits = torch.einsum("bgrid,bgjd->bgrij", q.unsqueeze(2), k) * q.shape[-1] ** -0.5
        return torch.einsum("bgrij,bgjd->bgrid", F.softmax(logits, -1), v).flatten(1, 2)


class Loop(Softmax):
    """A map for each head, of all samples."""

    num_heads = 2
    split = staticmethod(lambda x: x.unflatten(-1, (2, -1)).transpose(1, 2))

    def attend(self, q, k, v):
        return torch.stack([*map(super().attend, *(x.unbind(1) for x in (q, k, v)))], 1)


class TokensFirst(Softmax):
    """Queries, keys and values as (B, N, H, d)."""

    @staticmethod
    def split(x):
        return x.unflatten(-1, (HEADS, -1))

    def attend(self, q, k, v):
        logits = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("bhqk,bkhd->bqhd", F.log_softmax(logits, -1).exp(), v).transpose(1, 2)


class Torch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(DIM, HEADS, batch_first=True)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        context = x if context is None else context
        return self.attn(x, context, context, need_weights=False)[0]


def make_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, 40), nn.GELU(), nn.Linear(40, DIM))


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(DIM) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Centered(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(-1, keepdim=True)) + self.weight


class Base(nn.Module):
    """The parts of each layer in lists, with the loop over layers in the forward of the model."""

    def __init__(self, attention=Softmax, norm=lambda: nn.LayerNorm(DIM)) -> None:
        super().__init__()
        self.attn = nn.ModuleList(attention() for _ in range(DEPTH))
        self.mlp = nn.ModuleList(make_mlp() for _ in range(DEPTH))
        norms = (nn.ModuleList(norm() for _ in range(DEPTH)) for _ in range(4))
        self.n1, self.n2, self.n3, self.n4 = norms
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen = [x]
        for i in range(DEPTH):
            x = self.layer(i, x)
            self.seen.append(x.detach().clone())
        return x.mean(1)

    def layer(self, i: int, x: Tensor) -> Tensor:
        x = x + self.attn[i](self.n1[i](x))
        return x + self.mlp[i](self.n2[i](x))


class Orders(Base):
    """The steps of a layer in the order that one of the methods has."""

    def __init__(self, order: str, **options) -> None:
        super().__init__(**options)
        self.order = order

    def layer(self, i, x):
        return getattr(self, self.order)(i, x)

    def post_norm(self, i, x):
        x = self.n1[i](x + self.attn[i](x))
        return self.n2[i](self.mlp[i](x) + x)

    def sandwich(self, i, x):
        x = x + self.n3[i](self.attn[i](self.n1[i](x)))
        return x + self.n4[i](self.mlp[i](self.n2[i](x)))

    def parallel(self, i, x):
        y = self.n1[i](x)
        return x + (self.attn[i](y) + self.mlp[i](y))

    def parallel_in_another_order(self, i, x):  # GPT-NeoX's
        return self.mlp[i](self.n2[i](x)) + self.attn[i](self.n1[i](x)) + x

    def in_place(self, i, x):
        x = x.view(x.shape) if i else x.clone()
        x += self.attn[i](self.n1[i](x))
        x += self.mlp[i](self.n2[i](x))
        return x

    def parallel_in_place(self, i, x):
        y = self.mlp[i](self.n2[i](x))
        y += self.attn[i](self.n1[i](x))
        return y + x

    def first_input_again(self, i, x):
        return 0.2 * self.seen[0] + 0.8 * super().layer(i, x)

    def shared_layers(self, i, x):
        return super().layer(0, x)

    def gradient_checkpointing(self, i, x):
        return checkpoint(super().layer, i, x, use_reentrant=False)

    def two_mlps(self, i, x):
        x = x + self.attn[i](self.n1[i](x))
        x = x + 0.5 * self.mlp[i](self.n2[i](x))
        return x + 0.5 * self.mlp[i](self.n3[i](x))

    def flattened_tokens(self, i, x):
        """Give the MLP tokens without the axis of samples."""
        x = x + self.attn[i](self.n1[i](x))
        y = x.reshape(-1, DIM)
        return (y + self.mlp[i](self.n2[i](y))).view(x.shape)


class Scaled(Base):
    """LayerScale and stochastic depth."""

    def __init__(self) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.rand(2 * DEPTH, DIM))
        self.drop = nn.Dropout(0.5)

    def layer(self, i, x):
        x = x + self.drop(self.gains[2 * i] * self.attn[i](self.n1[i](x)))
        return x + self.drop(self.gains[2 * i + 1] * self.mlp[i](self.n2[i](x)))


class OneFunction(Base):
    """Gains in one function with the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(DIM))

    def layer(self, i, x):
        x = torch.addcmul(x, self.gain, self.attn[i](self.n1[i](x)))
        return torch.lerp(x, self.mlp[i](self.n2[i](x)), 0.3)


class PreNorm(nn.Module):
    """A norm before any function, as a wrapper."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(DIM), function

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self.norm(x))


class Residual(nn.Module):
    """A function with its residual sum, as a wrapper."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.fn = function

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x) + x


class Sequential(Base):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(Residual(PreNorm(Torch())), Residual(PreNorm(make_mlp())))
            for _ in range(DEPTH)
        )

    def layer(self, i, x):
        return self.layers[i](x)


class Bottleneck(Base):
    """An adapter with a residual sum of its own inside of a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters = nn.ModuleList(
            Residual(nn.Sequential(nn.Linear(DIM, 4), nn.ReLU(), nn.Linear(4, DIM)))
            for _ in range(DEPTH)
        )

    def layer(self, i, x):
        x = x + self.adapters[i](self.attn[i](self.n1[i](x)))
        return x + self.mlp[i](self.n2[i](x))


class Ordered(nn.Module):
    def __init__(self, *functions: nn.Module) -> None:
        super().__init__()
        self.functions = nn.ModuleList(map(PreNorm, functions))

    def forward(self, x: Tensor) -> Tensor:
        for function in self.functions:
            x = x + function(x)
        return x


class First(Base):
    """Blocks whose first step is an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Ordered(make_mlp(), Softmax()) for _ in range(DEPTH))

    def layer(self, i, x):
        return self.blocks[i](x)


class Cross(Base):
    """A decoder that reads a memory of its input, with MLPs that add nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.cross = nn.ModuleList(Torch() for _ in range(DEPTH))
        self.memory = nn.Linear(DIM, DIM)
        for mlp in self.mlp:
            nn.init.zeros_(mlp[-1].weight)
            nn.init.zeros_(mlp[-1].bias)

    def forward(self, x):
        self.context = self.memory(x.mean(1, keepdim=True)) + torch.zeros(B, 6, DIM)
        return super().forward(x)

    def layer(self, i, x):
        x = x + self.attn[i](self.n1[i](x))
        x = x + 8 * self.cross[i](self.n3[i](x), self.context)
        return x + self.mlp[i](self.n2[i](x))


class Images(Base):
    """Tokens as images (B, H, W, D), with attention in windows of five."""

    def forward(self, x):
        return super().forward(x.unflatten(1, (2, 5)))

    def layer(self, i, x):
        x = x + self.attn[i](self.n1[i](x).flatten(0, 1)).unflatten(0, (B, 2))
        return x + self.mlp[i](self.n2[i](x))


class Channels(Base):
    """Tokens as (B, D, N)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ModuleList(nn.Conv1d(DIM, DIM, 1) for _ in range(DEPTH))

    def forward(self, x):
        super().forward(x.mT)
        self.seen = [x.mT for x in self.seen]

    def layer(self, i, x):
        x = x + self.attn[i](self.n1[i](x.mT)).mT
        return x + self.conv[i](x)


class Pooled(Base):
    """A class token that is updated alone after the last layer."""

    def forward(self, x):
        super().forward(x)
        token = self.last[:, :1] + self.mlp[0](self.n3[0](self.last[:, :1]))
        return token + self.mlp[1](self.n3[1](token))

    def layer(self, i, x):
        self.last = super().layer(i, x)
        return self.last


class Convolved(Base):
    """A convolution on tokens as images, as a last step of each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(DIM, DIM, 3, padding=1, groups=DIM)

    def layer(self, i, x):
        image = super().layer(i, x).mT.unflatten(2, (2, 5))
        return (image + self.conv(image)).flatten(2).mT


STYLES = {name: partial(Orders, name.replace(" ", "_")) for name in (
    "parallel", "parallel in another order", "in place", "parallel in place", "first input again",
    "shared layers", "gradient checkpointing", "two mlps", "flattened tokens", "sandwich",
)} | {
    "loop": Base, "loop of torch's attention": partial(Base, Torch),
    "exponentials": partial(Base, Exponentials), "one fused call": partial(Base, Fused),
    "einsum of groups": partial(Base, Grouped), "loop over heads": partial(Base, Loop),
    "einsum of tokens first": partial(Base, TokensFirst),
    "written RMS norm": partial(Base, norm=RMSNorm),
    "post-norm": partial(Orders, "post_norm", norm=Centered),
    "LayerScale and drop path": Scaled, "one function with the sum": OneFunction,
    "MLP first": First, "channels first": Channels, "residual wrappers": Sequential,
    "adapters": Bottleneck, "cross-attention": Cross, "windows of images": Images,
    "a class token alone": Pooled, "convolutions of images": Convolved,
    "own SelfAttention": lambda: Base(lambda: SelfAttention(DIM, HEADS)),
    "a filter": lambda: Base(lambda: SelfAttention(DIM, HEADS, filter=lambda h: GFSA(h, wK=0.5))),
}  # fmt: skip
