"""Functions of tokens at their positions in models of transformers: they see no padding."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from attention_core import ContraNorm, FeatScale, LayerScale, attach
from torch import nn
from torch.testing import assert_close

from tests.hosts.helpers import randomize
from tests.hosts.transformers.models import build, list_checkpointed_gradients, make_inputs

FAMILIES = ["bert", "roberta", "albert", "distilbert", "bart", "plbart", "t5"]
CONTRAST = partial(ContraNorm, scale=0.4, identity=True, norm=False)
HALVE = partial(LayerScale, init=0.5)


@pytest.mark.parametrize(
    ("family", "position"),
    [*((name, "attention") for name in FAMILIES), *((name, "residual") for name in FAMILIES[:-1])],
)
@pytest.mark.parametrize("tokens", [CONTRAST, partial(FeatScale, gain=1)])
def test_tokens_do_not_see_padding(family, position, tokens):
    whole = build(family)
    stock = whole.get_encoder() if whole.config.is_encoder_decoder else whole
    model = attach(copy.deepcopy(stock), tokens=tokens, position=position).double()
    given = make_inputs(family, padded=True)
    given = {k: v for k, v in given.items() if not k.startswith("decoder")}
    randomize(model, "tokens")
    y, truncated = model(**given)[0], model(given["input_ids"][1:, :-4])[0]
    assert_close(y[1:, :-4], truncated)
    assert (truncated - stock(given["input_ids"][1:, :-4])[0]).abs().max() > 1e-3


def test_contranorm_is_at_position_seven_of_bert():
    model, seen = attach(build("bert"), tokens=CONTRAST, position="residual", layers="1:"), []
    output = model.encoder.layer[1].attention.output
    output.LayerNorm.tokens.register_forward_hook(lambda m, x, y: seen.append((x[0], y)))
    output.dropout.register_forward_hook(lambda m, x, y: seen.append(y))
    output.register_forward_pre_hook(lambda m, x: seen.append(x[1]))
    model(**make_inputs("bert"))
    residual, attended, (x, y) = seen
    assert_close(x, residual + attended)
    unit = nn.functional.normalize(x, dim=-1)
    assert_close(y, 1.4 * x - 0.4 * (unit @ unit.mT).softmax(-1) @ x)


def test_checkpointed_tokens_see_their_own_mask_again():
    model = attach(build("bert"), tokens=CONTRAST).train()
    given = make_inputs("bert", padded=True)

    def run():
        y = model(**given)[0]
        model(given["input_ids"])  # without a mask, before the first is recomputed
        return y

    assert_close(*list_checkpointed_gradients(model, run))


def test_threads_that_share_a_model_see_their_own_mask():
    model = randomize(attach(build("bert"), tokens=partial(FeatScale, gain=1)), "tokens")
    given, own = make_inputs("bert", padded=True), threading.get_ident()
    expected = model(**given)[0]

    def run_another(*_):
        if threading.get_ident() == own:  # without a mask
            ThreadPoolExecutor().submit(model, given["input_ids"]).result()

    model.encoder.layer[0].attention.self.register_forward_hook(run_another)
    assert torch.equal(model(**given)[0], expected)


def test_tokens_with_a_mask_export_any_batch():
    model, given = attach(build("bert"), tokens=CONTRAST), make_inputs("bert", padded=True)
    sizes = {name: {0: torch.export.Dim("batch")} for name in given}
    program = torch.export.export(model, (), given, dynamic_shapes=sizes).module()
    given = {name: torch.cat([x, x.flip(0)]) for name, x in given.items()}
    assert_close(program(**given)[0], model(**given)[0])


def test_a_packed_mask_is_refused():
    model, given = attach(build("bert"), tokens=FeatScale), make_inputs("bert")["input_ids"]
    texts = torch.arange(given.shape[1]) // 4
    packed = (texts == texts[:, None]).expand(len(given), 1, -1, -1)
    with pytest.raises(ValueError, match="keeps tokens apart that FeatScale would mix"):
        model(given, attention_mask=packed)
    attach(build("bert"), tokens=HALVE)(given, attention_mask=packed)


@pytest.mark.parametrize(
    ("family", "position"), [("gpt2", "attention"), ("gpt2", "norms"), ("bert", "norms")]
)
def test_tokens_that_do_not_mix_may_be_causal_or_before_norms(family, position):
    model, given = build(family), make_inputs(family, padded=True)
    y = attach(model, tokens=HALVE, position=position)(**given)[0]
    assert_close(model(given["input_ids"][1:, :-4])[0], y[1:, :-4])
