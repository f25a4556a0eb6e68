"""Tiny models of torch and torchvision that are built of `torch.nn.MultiheadAttention`."""

from functools import partial

import torch
from torch import Tensor, nn
from torchaudio.models import Conformer
from torchvision.models import VisionTransformer

from tests.hosts.helpers import draw_weights

WIDTH, HEADS, N = 24, 4, 7


def build_encoder(**options: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 20, dropout=0.1, **options)
    return enlarge(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))


def build_vit() -> nn.Module:
    return enlarge(VisionTransformer(12, 4, 2, HEADS, WIDTH, 20, num_classes=5))


def enlarge(model: nn.Module) -> nn.Module:
    """Draw weights that are large enough for a fault to show, in float64."""
    torch.manual_seed(0)
    draw_weights(model, 0.4)
    return model.double().eval()


class PoolingHead(nn.Module):
    """A head whose one query is learned, as in SigLIP."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.probe = nn.Parameter(torch.randn(1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(self.probe.expand(len(x), -1, -1), x, x)[0]


BUILDS = {
    "encoder": partial(build_encoder, batch_first=True),
    "encoder-first": partial(build_encoder, norm_first=True),
    "torchvision-vit": build_vit,
    "transformer": lambda: enlarge(nn.Transformer(WIDTH, HEADS, 2, 2, 20, batch_first=True)),
    "conformer": lambda: enlarge(Conformer(WIDTH, HEADS, 20, 2, 3)),
    "pooling": lambda: enlarge(nn.Sequential(build_encoder(batch_first=True), PoolingHead())),
}


def make_inputs(name: str) -> dict[str, Tensor]:
    torch.manual_seed(1)
    if name == "torchvision-vit":
        return {"x": torch.randn(2, 3, 12, 12).double()}
    if name in ("transformer", "conformer", "pooling"):
        x, key = torch.randn(2, N, WIDTH).double(), "src" if name == "transformer" else "input"
        more = {"tgt": x[:, :4].flip(0)} if key == "src" else {}
        return {key: x} | more | ({"lengths": torch.tensor([N, N])} if name == "conformer" else {})
    shape = (2, N, WIDTH) if name == "encoder" else (N, 2, WIDTH)
    padding = torch.arange(N).expand(2, N) >= torch.tensor([[N], [5]])
    return {"src": torch.randn(*shape).double(), "src_key_padding_mask": padding}
