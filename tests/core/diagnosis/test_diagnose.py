"""Diagnose refuses bad input with one sentence, and judges models that are made to smooth."""

from functools import partial, reduce
from itertools import accumulate, pairwise

import pytest
import torch
from attention_core import SelfAttention, diagnose, spectral
from attention_core.kernels import Primalformer
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

DIM, HEADS, N, B = 12, 3, 7, 2


class Block(nn.Module):
    """Attention with or without a residual sum, and no MLP."""

    def __init__(self, residual: bool, **options) -> None:
        super().__init__()
        self.attn, self.residual = SelfAttention(DIM, HEADS, **options), residual

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.attn(x, mask)
        return x + y if self.residual else y


class Stack(nn.Module):
    def __init__(self, depth: int = 4, residual: bool = True, **options) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(residual, **options) for _ in range(depth))

    def forward(self, x: Tensor, valid_mask: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = block(x, valid_mask)
        return x


def make_tokens() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(B, N, DIM) + 0.3


def pass_values(model: nn.Module, gain: float, sharpness: float = 0.0) -> nn.Module:
    """Make values and outputs the identity times a gain; queries and keys are tokens."""
    for block in model.blocks:
        with torch.no_grad():
            block.attn.qkv.bias.zero_(), block.attn.proj.bias.zero_()
            eye = torch.eye(DIM)
            block.attn.qkv.weight.copy_(torch.cat([sharpness * eye, eye, eye]))
            block.attn.proj.weight.copy_(gain * eye)
    return model


def test_a_stack_that_averages_is_judged_to_over_smooth_by_attention():
    report = diagnose(pass_values(Stack(residual=False), 1.0), make_tokens())
    assert "The model over-smooths" in report.verdict
    assert "over-smoothed from layer 0 on" in report.verdict
    assert "What smooths most is attention" in report.verdict
    assert [layer.eigenvalue_shares["smoothing"] for layer in report.layers] == [1.0] * 4


def test_a_stack_that_adds_averages_smooths_later():
    report = diagnose(pass_values(Stack(depth=6), 1.0), make_tokens())
    for before, after in pairwise(report.curve("hfc_lfc")):
        assert after == pytest.approx(before / 2, rel=1e-4)  # (I + J) x: DC doubles
    first = next(i for i, r in enumerate(report.curve("token_cosine")[1:]) if r >= 0.9)
    assert f"from layer {first} on" in report.verdict
    assert "What smooths most is attention" in report.verdict


def test_a_stack_that_subtracts_averages_does_not_smooth():
    report = diagnose(pass_values(Stack(), -0.5), make_tokens())
    ratios = report.curve("hfc_lfc")
    assert ratios[-1] == pytest.approx(ratios[0] * 16, rel=1e-4)  # (I - J / 2) halves DC
    assert "The model does not over-smooth" in report.verdict
    assert "No step of its layers smooths them" in report.verdict
    assert report.layers[0].eigenvalue_shares["smoothing"] == 0


def test_weights_that_are_not_finite_name_the_first_layer():
    model = Stack()
    model.blocks[2].attn.qkv.weight.data[0] = torch.nan
    with pytest.raises(ValueError, match=r"layer 2 \(blocks.2.attn\) is the first"):
        diagnose(model, make_tokens())
    model.blocks[1].attn.proj.weight.data[0] = torch.inf
    with pytest.raises(ValueError, match=r"layer 1 \(blocks.1.attn\) is the first"):
        diagnose(model, make_tokens())


def test_a_sample_of_one_valid_token_is_named():
    mask = torch.ones(B, N, dtype=torch.bool)
    mask[1, 1:] = False
    for batch, given in (((make_tokens(), mask), None), (make_tokens(), mask)):
        with pytest.raises(ValueError, match="sample 1 of the batch has fewer than two valid"):
            diagnose(Stack(), batch, mask=given)


REFUSED = [
    (lambda: diagnose(Stack(), "text"), TypeError, "a batch is a tensor, a tuple"),
    (lambda: diagnose(Stack(), torch.zeros(0, N, DIM)), ValueError, "no samples"),
    (lambda: diagnose(Stack(), ()), ValueError, "no tensor"),
    (lambda: diagnose(Stack(), torch.randn(2, 1, DIM)), ValueError, "one token alone"),
    (lambda: diagnose(Stack(), make_tokens(), layers=4), ValueError, "layer 4"),
    (lambda: diagnose(Stack(), make_tokens(), mask=[1]), TypeError, "mask must be a tensor"),
    (lambda: diagnose(None, make_tokens()), TypeError, "model"),
    (lambda: diagnose(nn.Sequential(nn.Linear(3, 3)), torch.randn(2, 5, 3)), ValueError,
     "Sequential has no attention that attach knows"),
    (lambda: diagnose(nn.Sequential(Styled(lambda _, x: flex_attention(*(x[:, None],) * 3)[:, 0])),
                      make_tokens()), ValueError, "flex_attention shows no map"),
    (lambda: diagnose(nn.DataParallel(Stack()), make_tokens()), ValueError,
     r"DataParallel wraps the model.*model\.module"),
    (lambda: diagnose(torch.compile(Stack()), make_tokens()), ValueError,
     r"OptimizedModule wraps the model.*model\._orig_mod"),
    (lambda: diagnose(type("Idle", (Stack,), {"forward": lambda _, x: x})(), make_tokens()),
     ValueError, "does not call its attention"),
    (lambda: diagnose(Stack(), make_tokens().index_fill(0, torch.tensor(1), torch.nan),
                      measures="light"), ValueError, r"layer 0 \(blocks.0.attn.* in the batch"),
    (lambda: diagnose(Stack(), make_tokens(), mechanisms=[3]), TypeError, r"mechanisms\[0\]"),
    *((partial(diagnose, Stack(), make_tokens(), mask=torch.ones(shape).bool()), ValueError,
       r"boolean \(batch, tokens\).*: \(2, 7\) in this model")
      for shape in [(B, N + 1), (N,), (B, 1, N)]),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "reason"), REFUSED)
def test_bad_arguments_are_refused(call, error, reason):
    with pytest.raises(error, match=reason):
        call()


def test_masks_count_by_name_position_and_argument_alike():
    model, x, mask = Stack(), make_tokens(), torch.ones(B, N, dtype=torch.bool)
    mask[1, 4:] = False
    named = {"x": x, "valid_mask": mask}
    found = [diagnose(model, (x, mask)), diagnose(model, named), diagnose(model, named, mask=mask)]
    for report in found:
        assert report.layers == found[0].layers
    hidden = Hidden(model, mask)  # keys that no query attends to are padding
    assert diagnose(hidden, x).layers[0].steps == found[0].layers[0].steps
    assert diagnose(model, x).layers != found[0].layers
    model.compile(backend="eager")  # in place
    assert diagnose(model, (x, mask)).layers == found[0].layers
    hidden.forward = lambda batch: model(**batch)
    assert diagnose(hidden, (named,)).layers[0].steps == found[0].layers[0].steps


class Hidden(nn.Module):
    """A model that makes its mask itself."""

    def __init__(self, model: nn.Module, mask: Tensor) -> None:
        super().__init__()
        self.model, self.mask = model, mask

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, self.mask)


@pytest.mark.parametrize("form", [
    lambda filtered, q: filtered(q),
    lambda _, q: nn.functional.scaled_dot_product_attention(q, q, q),
    lambda _, q: (q @ q.mT).masked_fill(torch.ones(N, N).triu(1) > 0, -1e9).softmax(-1) @ q,
])  # fmt: skip
def test_keys_that_sharp_attention_leaves_out_are_no_padding(form):
    model, x = pass_values(Stack(depth=1), 1.0, 1e3), make_tokens()
    x[:, 0] = 99 * x.abs().sum((0, 1))
    model.forward = lambda x: x + form(model.blocks[0].attn, x)
    found = diagnose(model, x, measures="light").layers[0].output.hfc_lfc
    assert found == pytest.approx(spectral.hfc_lfc(model(x)).mean().item(), rel=1e-4)


def test_what_lies_between_layers_of_one_size_counts():
    model = Stack(depth=2)
    model.forward = lambda x: model.blocks[1](model.blocks[0](x).tanh())
    report = diagnose(model, make_tokens())
    ends = report.layers[0].steps["input"], report.layers[1].output
    first, last = (torch.tensor(x.samples["hfc_lfc"]).log() for x in ends)
    assert f"HFC/LFC times {(last - first).mean().exp():.2f} [" in report.verdict
    first, second = model.blocks
    for model.forward in (
        lambda x: (y := nn.functional.pad(first(x), (0, 2))) + y.tanh(),
        lambda x: second((y := first(x.transpose(0, 1)).transpose(0, 1)) + y.tanh()),
    ):
        assert "is no verdict: the tokens of blocks.0" in diagnose(model, make_tokens()).verdict
    model.forward = lambda x, text: second(torch.cat([first(x).cos(), text], 1))
    batch = make_tokens(), make_tokens()[:, :3]
    assert "Stream 1 (from blocks.1.attn on) " in diagnose(model, batch).verdict
    model.forward = lambda x, text: second(torch.cat(  # behind joint attention
        [x + (y := first.attn(torch.cat([x, text], 1)))[:, :N], text + y[:, N:]], 1))  # fmt: skip
    assert [x.name for x in diagnose(model, batch).layers] == ["blocks.0.attn", "blocks.1.attn"]
    # on tokens that the pass before chose
    model.forward = lambda x: second(nn.functional.embedding(first(x).argmax(-1), torch.eye(DIM)))
    assert "Stream 1 (from blocks.1.attn on) " in diagnose(model, make_tokens()).verdict


def test_a_kernel_without_a_map_has_tokens_alone():
    model = Stack(depth=1, kernel=lambda dim, heads: Primalformer(dim, heads))
    layer = diagnose(model, make_tokens()).layers[0]
    assert (list(layer.steps), layer.bounds) == (["input", "attention", "residual"], {})


class Styled(nn.Module):
    """A block that is a function of its parts and the tokens."""

    def __init__(self, step) -> None:
        super().__init__()
        self.step, self.mlp, self.norm = step, nn.Linear(DIM, DIM), nn.LayerNorm(DIM)
        self.attn, self.add = SelfAttention(DIM, HEADS), Add()
        make = partial(nn.MultiheadAttention, DIM, HEADS, batch_first=True)
        self.torch, self.biased = make(), make(add_bias_kv=True)
        self.weight, self.shift = map(nn.init.normal_, self.norm.parameters())

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self, x)


SCRIPTED = torch.jit.script(nn.functional.silu)
Add = type("Add", (nn.Module,), {"forward": lambda _, x, y: x + y})
STYLES = {
    "an averaged map": lambda b, x: x + torch.vmap(torch.norm)(x).amax() * b.torch(x, x, x)[0],
    "keys that are no tokens": lambda b, x: x + b.biased(x, x, x)[0],
    "a norm that divides last": lambda b, x: (
        b.weight * ((y := x + b.attn(x)) - y.mean(-1, True)) / y.std(-1, True, True) + b.shift),
    "a sum in a module": lambda b, x: b.norm(b.add(x, b.attn(x))),
    "a sum in a branch": lambda b, x: x + b.mlp(x - b.attn(x)).relu(),
    "neighbours": lambda b, x: b.norm(x + b.mlp(x).relu()) + b.norm(x + b.attn(x)),
    "a constant behind a norm": lambda b, x: b.norm((y := x + b.shift) + b.attn(y)),
    "a bias of queries": lambda b, x: x + (b.mlp(x) + x @ x.mT).softmax(-1) @ x,
    "axes in turn": lambda b, x: (
        ((y := x.reshape(B * 3, -1, DIM)) + b.attn(y)).view(B, 3, -1, DIM).transpose(1, 2)
        .reshape(x.shape)),
    "a scripted function": lambda b, x: (y := x + b.attn(x)) + SCRIPTED(b.mlp(y)),
    "a norm over channels first": lambda b, x: nn.functional.batch_norm(
        ((y := x[:, :9]) + b.attn(y)).mT, b.shift.detach(), b.weight.detach().square()).mT,
    "nodes": lambda b, x: (y := x.flatten(0, -2)) + b.attn(y.view(B, -1, DIM)).flatten(0, 1),
}  # fmt: skip


@pytest.mark.parametrize("style", [*STYLES, "no blocks"])
def test_the_tokens_after_blocks_of_other_styles_are_those_that_they_return(style):
    step = STYLES.get(style, STYLES["a sum in a module"])
    model, x = nn.Sequential(*map(Styled, [step] * 3)), torch.randn(B, DIM, DIM)
    tokens = accumulate(model, lambda x, block: block(x).detach(), initial=x)
    if style == "no blocks":  # that are modules
        model.forward = lambda x: reduce(lambda x, block: step(block, x), model, x)
    report = diagnose(model, x, mechanisms=[])  # as many tokens as channels
    wanted = [spectral.hfc_lfc(x.view(B, -1, DIM)).mean().item() for x in tokens]
    assert report.curve("hfc_lfc")[1:] == pytest.approx(wanted[1:], rel=1e-4)
    assert (report.layers[2].stack, report.notes) == ("model", [])


def make_idle_blocks(gain: float) -> nn.Module:
    """Blocks that multiply the first channel by 1 + gain, and do nothing else."""
    model = nn.Sequential(*map(Styled, [lambda b, x: (y := x + b.attn(x)) + b.mlp(y)] * 2))
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        for block in model:
            block.mlp.weight[0, 0] = gain
    return model


@pytest.mark.parametrize("is_half", [False, True])
def test_a_channel_that_crosses_the_threshold_of_outliers_does_not_smooth(is_half):
    x = make_tokens()
    x[..., 0] = (103 * x.square().sum((0, 1)).median() / (B * N)).sqrt()
    with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
        report = diagnose(make_idle_blocks(-0.08), x)
    first, last = report.layers[0].steps["input"], report.layers[1].output
    assert (first.outlier_channels, last.outlier_channels) == ([0], [])
    assert "HFC/LFC times 1.00)" in report.verdict


@pytest.mark.parametrize("step", [
    lambda b, x: x + 0.1 * (b.attn(x) + b.mlp(x)), lambda b, x: x + b.attn(x) + b.mlp(x)
])  # fmt: skip
def test_changes_of_branches_that_are_added_together_sum_to_that_of_the_tokens(step):
    for layer in diagnose(nn.Sequential(*map(Styled, [step] * 2)), make_tokens()).layers:
        assert list(layer.changes) == ["attention", "MLP"]
        assert list(layer.steps) == ["input", "attention", "mlp"]
        before, after = (torch.tensor(layer.steps[k].samples["hfc_lfc"]) for k in ("input", "mlp"))
        change = (after / before).log().mean().item()
        assert sum(layer.changes.values()) == pytest.approx(change, abs=1e-6)


def test_tokens_that_are_alike_at_the_input_over_smooth_where_they_rise():
    x = make_tokens() + 4
    assert "does not over-smooth" in diagnose(make_idle_blocks(0.0), x[:1]).verdict
    for batch in (x, x[:1] + 9):
        assert "over-smooths" in diagnose(pass_values(Stack(), 1.0), batch).verdict
    report = diagnose(pass_values(Stack(), 1.0), x[:, :1].expand(-1, N, -1))  # rounding errors
    assert "HFC/LFC times 1.00)" in report.verdict
