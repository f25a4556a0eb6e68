"""The networks: their sizes, their masks, their means, their pairs."""

import math
from functools import partial

import pytest
import torch
from attention_core import AGF, SelfAttention
from attention_sequence.data import Image, ListOps, LongRangeData, Pathfinder, Retrieval, Text
from attention_sequence.models import NetworkSize, PairClassifier, SeriesClassifier, TokenClassifier
from attention_sequence.module import SequenceClassifier
from experiment_kit.errors import UserError
from torch import nn

WIDTHS = {"dim": 8, "ffn_dim": 12, "num_layers": 2, "dropout": 0.0}
SMALL = NetworkSize(num_features=11, num_classes=3, max_length=7, **WIDTHS)
OPTIONS = {"dim": 8, "num_heads": 2, "num_layers": 1, "ffn_dim": 12}


def build_small(kind=TokenClassifier, **options):
    return kind(SMALL, lambda layer: SelfAttention(8, 2), **options).double().eval()


def count_parameters(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def ids_and_mask():
    x = torch.randint(1, 11, (3, 7))
    x[1, 4:], x[2, 1:] = 0, 0
    return x, x != 0


@pytest.mark.parametrize(("data", "network", "softmax", "agf"), [
    (partial(ListOps, "listops-1000"), TokenClassifier, 209_802, 218_134),
    (partial(Text, "imdb"), TokenClassifier, 173_954, 182_286),
    (partial(Text, "imdb", 4000, max_length=4096), TokenClassifier, 370_562, 378_894),
    (partial(Pathfinder, "curv_contour_length_14"), TokenClassifier, 173_954, 182_286),
    (partial(Retrieval, "aan"), PairClassifier, 395_138, 403_470),
    (partial(Image, "cifar10"), TokenClassifier, 174_986, 183_318),
])  # fmt: skip
def test_a_network_has_the_released_number_of_parameters(data, network, softmax, agf) -> None:
    options = {"dim": 64, "num_heads": 2, "num_layers": 2, "ffn_dim": 128, "network": network}
    sizes = [getattr(data(), name) for name in LongRangeData.LINKED_SIZES]

    def count(kernel) -> int:
        return count_parameters(SequenceClassifier(*sizes, kernel=kernel, **options))

    assert count(None) == softmax
    assert count(partial(AGF, K=5, pin_theta0=False)) == agf
    assert count(partial(AGF, K=5, pin_theta0=True)) == agf - 2  # released: stored, not trained


@pytest.mark.parametrize(("pin", "parameters"), [(False, 6_986_259), (True, 6_986_257)])
def test_agf_has_the_released_number_of_parameters(pin: bool, parameters: int) -> None:
    model = SequenceClassifier(12, 9, 29, kernel=partial(AGF, K=4, pin_theta0=pin))
    assert count_parameters(model) == parameters


@pytest.mark.parametrize("pool", ["valid", "all"])
def test_the_network_is_its_equations(pool) -> None:
    """One sequence at a time, without its padding; one head at a time."""
    model = build_small(pool=pool)
    x, mask = ids_and_mask()
    for row, (ids, valid) in enumerate(zip(x, mask, strict=True)):
        h = model.embedding.token.weight[ids[valid]] + model.embedding.position[: valid.sum()]
        for block in model.blocks:
            h = h + _reference_attention(block.attention, block.norm1(h))
            h = h + block.down(nn.functional.gelu(block.up(block.norm2(h))))
        mean = model.norm(h).sum(0) / (valid.sum() if pool == "valid" else 7)
        first, _, second = model.head
        assert torch.allclose(model(x, mask)[row], second(first(mean).clamp(min=0)), atol=1e-12)


def _reference_attention(layer: SelfAttention, h: torch.Tensor) -> torch.Tensor:
    q, k, v = layer.qkv(h).split(8, -1)
    heads = []
    for head in (slice(4), slice(4, 8)):
        A = (q[:, head] @ k[:, head].T / math.sqrt(4)).exp()
        heads.append(A / A.sum(1, keepdim=True) @ v[:, head])
    return layer.proj(torch.cat(heads, -1))


def test_the_embedding_starts_small_and_normal() -> None:
    size = SMALL._replace(num_features=512, max_length=1024, dim=64)
    embedding = TokenClassifier(size, lambda layer: SelfAttention(64, 2)).embedding
    for weight in (embedding.token.weight, embedding.position):
        assert abs(weight.mean().item()) < 5e-4
        assert abs(weight.std().item() - 0.02) < 5e-4


@pytest.mark.parametrize("kind", [TokenClassifier, SeriesClassifier])
def test_padding_never_reaches_the_logits_where_attention_is_masked(kind) -> None:
    model = build_small(kind)
    x, mask = ids_and_mask()
    noisy = torch.where(mask, x, 10)
    if kind is SeriesClassifier:
        x, noisy = (nn.functional.one_hot(ids, 11).double() for ids in (x, noisy))
    logits = model(x, mask)
    assert torch.allclose(logits, model(noisy, mask), atol=1e-12)
    with torch.no_grad():
        assert torch.allclose(logits, model(x, mask), atol=1e-12)
    model.mask_attention = False  # as published
    assert not torch.allclose(model(x, mask)[1], model(noisy, mask)[1], atol=1e-6)


def test_an_all_black_image_as_published_is_finite() -> None:
    x = torch.zeros(2, 7, dtype=torch.long)
    for pool in ("valid", "all"):
        model = build_small(pool=pool)
        assert torch.equal(model.encode_sequence(x, x > 0), torch.zeros(2, 8).double())
        loss = model(x, x > 0).sum()
        assert all(
            gradient is None or gradient.isfinite().all()
            for gradient in torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)
        )


def test_a_pair_is_two_sequences_and_how_they_relate() -> None:
    model = build_small(PairClassifier)
    x = torch.stack([ids_and_mask()[0], ids_and_mask()[0].flip(0)], 1)
    first, second = (model.encode_sequence(x[:, place], x[:, place] != 0) for place in (0, 1))
    expected = model.head(torch.cat([first, second, first * second, first - second], 1))
    assert torch.allclose(model(x, x != 0), expected, atol=1e-12)
    assert model.head[0].in_features == 4 * 8


@pytest.mark.parametrize(("network", "x", "sentence"), [
    (TokenClassifier, torch.ones(2, 8).long(), "7 positions, the sequences 8 tokens"),
    (TokenClassifier, torch.ones(2, 7), r"ids \(batch, tokens\), got \(2, 7\) of torch.float"),
    (None, torch.ones(2, 6, 11), r"series \(batch, 7, features\), got \(2, 6, 11\)"),
    (None, torch.ones(2, 7).long(), "token ids take the backbone lra"),
])  # fmt: skip
def test_data_of_another_network_is_refused(network, x, sentence) -> None:
    model = SequenceClassifier(11, 3, 7, **OPTIONS, network=network)
    with pytest.raises(UserError, match=sentence):
        model(x, torch.ones(x.shape, dtype=torch.bool))
