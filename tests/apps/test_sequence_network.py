"""The network of the Long Range Arena: its size, its masks, its means, its pairs, its runs."""

import math
from functools import partial

import pytest
import torch
from attention_core import AGF, GFSA, SelfAttention
from attention_core.kernels import Linformer
from attention_sequence.__main__ import APP
from attention_sequence.models import PairClassifier, Size, TokenClassifier
from attention_sequence.module import SequenceClassifier, bound
from experiment_kit.callbacks import GracefulStop
from experiment_kit.cli import AppCLI, main
from experiment_kit.errors import UserError
from experiment_kit.launch import compose
from torch import nn

from tests.apps import lra
from tests.apps.tiny import only_run

METHODS = compose.names("sequence", "method")
SMALL = Size(features=11, classes=3, length=7, width=8, hidden=12, depth=2, dropout=0.0)


def small(kind=TokenClassifier, **options):
    return kind(SMALL, lambda layer: SelfAttention(8, 2), **options).double().eval()


def ids_and_mask():
    x = torch.randint(1, 11, (3, 7))
    x[1, 4:], x[2, 1:] = 0, 0
    return x, x != 0


@pytest.mark.parametrize(
    ("vocabulary", "classes", "length", "network", "softmax", "agf"),
    [
        pytest.param(32, 10, 2048, TokenClassifier, 209_802, 218_134, id="listops"),
        pytest.param(512, 2, 1024, TokenClassifier, 173_954, 182_286, id="text, pathfinder"),
        pytest.param(512, 2, 4096, TokenClassifier, 370_562, 378_894, id="text_4k"),
        pytest.param(512, 2, 4096, PairClassifier, 395_138, 403_470, id="retrieval"),
        pytest.param(512, 10, 1024, TokenClassifier, 174_986, 183_318, id="image"),
    ],
)
def test_a_network_has_the_released_number_of_parameters(
    vocabulary, classes, length, network, softmax, agf
) -> None:
    options = {"width": 64, "heads": 2, "depth": 2, "hidden": 128, "network": network}

    def count(kernel) -> int:
        model = SequenceClassifier(vocabulary, classes, length, kernel=kernel, **options)
        return sum(weight.numel() for weight in model.parameters())

    assert count(None) == softmax
    assert count(partial(AGF, K=5, pin_theta0=False)) == agf
    assert count(partial(AGF, K=5, pin_theta0=True)) == agf - 2  # released: stored, not trained


@pytest.mark.parametrize("pool", ["real", "all"])
def test_the_network_is_its_equations(pool) -> None:
    """One sequence at a time, cut to what is real; one head at a time."""
    model = small(pool=pool)
    x, mask = ids_and_mask()
    for row, (ids, real) in enumerate(zip(x, mask, strict=True)):
        h = model.embedding.token.weight[ids[real]] + model.embedding.position[: real.sum()]
        for block in model.blocks:
            h = h + _attention(block.attention, block.norm1(h))
            h = h + block.down(nn.functional.gelu(block.up(block.norm2(h))))
        mean = model.norm(h).sum(0) / (real.sum() if pool == "real" else 7)
        first, _, second = model.head
        expected = second(first(mean).clamp(min=0))
        assert torch.allclose(model(x, mask)[row], expected, atol=1e-12)


def _attention(layer: SelfAttention, h: torch.Tensor) -> torch.Tensor:
    q, k, v = layer.qkv(h).split(8, -1)
    heads = []
    for head in (slice(4), slice(4, 8)):
        A = (q[:, head] @ k[:, head].T / math.sqrt(4)).exp()
        heads.append(A / A.sum(1, keepdim=True) @ v[:, head])
    return layer.proj(torch.cat(heads, -1))


def test_the_embedding_starts_small_and_normal() -> None:
    size = SMALL._replace(features=512, length=1024, width=64)
    embedding = TokenClassifier(size, lambda layer: SelfAttention(64, 2)).embedding
    for weight in (embedding.token.weight, embedding.position):
        assert abs(weight.mean().item()) < 5e-4
        assert abs(weight.std().item() - 0.02) < 5e-4


def test_what_is_not_real_never_reaches_the_logits() -> None:
    model = small()
    x, mask = ids_and_mask()
    noisy = torch.where(mask, x, 10)
    assert torch.allclose(model(x, mask), model(noisy, mask), atol=1e-12)
    seeing = small(mask_attention=False)
    assert not torch.allclose(seeing(x, mask)[1], seeing(noisy, mask)[1], atol=1e-6)


def test_an_all_black_image_as_published_is_finite() -> None:
    x = torch.zeros(2, 7, dtype=torch.long)
    for pool in ("real", "all"):
        model = small(pool=pool)
        assert torch.equal(model.encode(x, x > 0), torch.zeros(2, 8).double())
        loss = model(x, x > 0).sum()
        assert all(
            gradient is None or gradient.isfinite().all()
            for gradient in torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)
        )


def test_a_pair_is_two_sequences_and_how_they_relate() -> None:
    model = small(PairClassifier)
    x = torch.stack([ids_and_mask()[0], ids_and_mask()[0].flip(0)], 1)
    first, second = (model.encode(x[:, place], x[:, place] != 0) for place in (0, 1))
    expected = model.head(torch.cat([first, second, first * second, first - second], 1))
    assert torch.allclose(model(x, x != 0), expected, atol=1e-12)
    assert model.head[0].in_features == 4 * 8


def test_masks_of_pairs_are_those_of_their_layers_tokens() -> None:
    options = {"width": 8, "heads": 2, "depth": 1, "hidden": 12}
    model = SequenceClassifier(11, 3, 7, **options, network=PairClassifier)
    x = torch.stack([ids_and_mask()[0]] * 2, 1)
    shapes = []
    model.layers()[-1].register_forward_hook(lambda *hooked: shapes.append(hooked[2].shape[:2]))
    model.predict_step((x, x != 0), 0)
    assert shapes == [model.token_mask((x, x != 0)).shape]


@pytest.mark.parametrize(
    ("network", "x", "sentence"),
    [
        (TokenClassifier, torch.ones(2, 8).long(), "7 positions, the sequences 8 tokens"),
        (TokenClassifier, torch.ones(2, 2, 7).long(), "pairs take the backbone lra_dual"),
        (TokenClassifier, torch.ones(2, 7), r"ids \(batch, tokens\), got \(2, 7\) of torch.float"),
        (PairClassifier, torch.ones(2, 7).long(), "single sequences lra"),
        (None, torch.ones(2, 7).long(), "token ids take the backbone lra"),
    ],
)
def test_data_of_another_network_is_refused(network, x, sentence) -> None:
    options = {"width": 8, "heads": 2, "depth": 1, "hidden": 12}
    model = SequenceClassifier(11, 3, 7, **options, network=network)
    with pytest.raises(UserError, match=sentence):
        model(x, torch.ones(x.shape, dtype=torch.bool))


def test_a_mean_over_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="pool must be real or all, got 'some'"):
        small(pool="some")


def test_a_kernel_of_one_length_is_told_the_data_s() -> None:
    options = {"width": 8, "heads": 2, "depth": 1, "hidden": 12, "network": TokenClassifier}
    for kernel in (Linformer, partial(Linformer, rank=3)):
        model = SequenceClassifier(11, 3, 7, **options, kernel=kernel)
        assert model.model.blocks[0].attention.kernel.E.shape[-1] == 7
    assert bound(None, 7) is None
    made = partial(AGF, K=2)
    assert bound(made, 7) is made
    with pytest.raises(ValueError, match="is that of the data, 7: leave out 300"):
        bound(partial(Linformer, length=300), 7)


@pytest.fixture(scope="module")
def cli() -> AppCLI:
    return lra.planned()


def built(cli: AppCLI, *extra: str, **chosen: str) -> SequenceClassifier:
    return cli.parser.instantiate(lra.parsed(cli, *extra, **chosen)).fit.model


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_long_sequences(cli, method, tmp_path) -> None:
    """From its overlays; AGF with the rows of its table."""
    folder = lra.listops(tmp_path)
    model = built(cli, method=method)
    long, short = lra.batch(folder)
    x, mask = torch.stack([long[0], short[0]]), torch.stack([long[1], short[1]])
    loss = model(x, mask).logsumexp(1).sum()
    loss.backward()
    assert loss.isfinite()
    assert all(w.grad is None or w.grad.isfinite().all() for w in model.parameters())


def test_a_length_reaches_a_kernel_that_a_config_names(cli) -> None:
    model = built(cli, method="linformer")
    assert {m.E.shape[-1] for m in model.modules() if isinstance(m, Linformer)} == {lra.LENGTH}
    said = "--model.kernel.init_args.length=300"
    with pytest.raises(ValueError, match="leave out 300"):
        built(cli, said, method="linformer")


def test_recipes_differ_in_masks_and_means_alone(cli) -> None:
    def told(recipe: str):
        found = lra.parsed(cli, recipe=recipe).fit
        network = found.model.pop("network").init_args
        return found, network.pool, found.data.init_args.pop("zero_is_padding")

    right, published = told("lra"), told("lra_published")
    assert right[1:] == ("real", False)
    assert published[1:] == ("all", True)
    assert [right[0][key].as_dict() for key in ("model", "data", "trainer")] == [
        published[0][key].as_dict() for key in ("model", "data", "trainer")
    ]


def stopping(step: int):
    original = GracefulStop.on_train_batch_end

    def stop(self, trainer, *rest) -> None:
        self.asked = trainer.global_step == step
        original(self, trainer, *rest)

    return stop


def fit(folder, *extra: str) -> None:
    steps = ("--trainer.max_steps=14", "--trainer.val_check_interval=4")
    schedule = "--model.schedule.init_args.warmup=4"
    files = f"--data.init_args.data_dir={folder.parents[1]}", f"--run.folder={folder}"
    main(APP, ["fit", *lra.arguments(*steps, schedule, *files, *extra, method="gfsa")])


def test_steps_bound_a_run_and_an_interruption_changes_nothing(tmp_path, monkeypatch) -> None:
    """Six batches an epoch: it ends in the third, and stops in the second between validations."""
    lra.listops(tmp_path)
    whole, broken = tmp_path / "runs/whole", tmp_path / "runs/broken"
    fit(whole)
    with monkeypatch.context() as patched:
        patched.setattr(GracefulStop, "on_train_batch_end", stopping(9))
        with pytest.raises(SystemExit) as left:
            fit(broken)
    assert left.value.code == 75
    assert only_run(broken).result() is None
    fit(broken)
    results = [only_run(folder).result() for folder in (whole, broken)]
    assert results[0]["hash"] == results[1]["hash"]
    weights = [
        torch.load(only_run(folder).checkpoint_folder / name, weights_only=True)["state_dict"]
        for folder in (whole, broken)
        for name in ("step=14.ckpt", "best.ckpt")
    ]
    for one, other in ((0, 2), (1, 3)):
        assert all(torch.equal(weights[one][key], weights[other][key]) for key in weights[one])
    assert results[0]["metrics"]["test/loss"] == results[1]["metrics"]["test/loss"]


def test_a_mistake_in_the_middle_of_a_run_is_a_sentence(tmp_path, capsys) -> None:
    lra.listops(tmp_path)
    with pytest.raises(SystemExit) as left:
        fit(tmp_path / "runs/x", "--model.network=null")
    assert left.value.code == 2
    assert "error: Classifier takes series" in capsys.readouterr().err


def test_smoke_is_for_tokens_too(tmp_path) -> None:
    lra.listops(tmp_path)
    files = f"--data.init_args.data_dir={tmp_path}", f"--run.folder={tmp_path}/runs"
    main(APP, ["fit", *lra.arguments(*files, profile="smoke")])
    assert only_run(tmp_path / "runs").result()["metrics"]["test/loss"] < 5


def test_momentum_goes_against_the_rate() -> None:
    from experiment_kit.optim import OneCycle

    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=1e-4, betas=(0.9, 0.999))
    scheduler = OneCycle(warmup=4)(optimizer, 12, 6)["scheduler"]
    seen = []
    for _ in range(12):
        seen.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"][0]))
        optimizer.step()
        scheduler.step() if len(seen) < 12 else None
    assert seen[0] == pytest.approx((4e-6, 0.95))
    assert seen[3] == pytest.approx((1e-4, 0.85))
    assert seen[11] == pytest.approx((4e-10, 0.95))


def test_filters_sit_on_tokens_too() -> None:
    options = {"width": 8, "heads": 2, "depth": 2, "hidden": 12, "network": TokenClassifier}
    model = SequenceClassifier(11, 3, 7, **options, filter=GFSA, layers="1:")
    kinds = [type(block.attention.filter).__name__ for block in model.model.blocks]
    assert kinds == ["Plain", "GFSA"]
