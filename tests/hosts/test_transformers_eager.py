"""Models that transformers runs eagerly, which infer no mask: None is everything, not the past."""

import copy

import pytest
import torch
import transformers as hf
from attention_core import GFSA, Plain, attach, detach
from attention_core.attach import Filtered
from torch.testing import assert_close

from tests.hosts.language import BART, ENDS, FAMILIES, VOCAB, WIDE, build, inputs, scramble

MODELS = {
    "PegasusXForConditionalGeneration": BART | {"d_model": 24, "block_size": 8},
    "BigBirdPegasusForConditionalGeneration": BART | {"attention_type": "original_full"},
    "SplinterModel": WIDE | ENDS | {"question_token_id": 3},
    "ClapTextModel": WIDE | ENDS,
    "AlignTextModel": WIDE | ENDS,
}


def eager(name):
    kind = getattr(hf, name)
    model = kind(kind.config_class(**MODELS[name])).double().eval()
    assert model.config._attn_implementation == "eager"
    given = {"input_ids": torch.randint(3, VOCAB, (2, 9))}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.randint(3, VOCAB, (2, 7))
    return model, given


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("make", [GFSA, Plain])
def test_an_eager_model_is_itself_where_the_filter_is_the_identity(name, make):
    model, given = eager(name)
    filtered = attach(copy.deepcopy(model), make)
    # some of them take the softmax in single precision
    assert_close(filtered(**given)[0], model(**given)[0], atol=1e-6, rtol=1e-6)
    assert detach(filtered).config._attn_implementation == "eager"


@pytest.mark.parametrize("name", [name for name in MODELS if "Generation" in name])
def test_the_future_is_not_seen_by_an_eager_decoder(name):
    model, given = eager(name)
    scramble(attach(model, GFSA))
    y = model(**given)[0]
    given["decoder_input_ids"][:, 3:] = 3
    assert_close(model(**given)[0][:, :3], y[:, :3])


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "bart", "t5"])
def test_eagerly_or_not_is_the_same_to_a_filter(family):
    model, given = build(family), inputs(family, padded=True)
    other = copy.deepcopy(model)
    other.set_attn_implementation("eager")
    filtered = [scramble(attach(m, GFSA)) for m in (model, other)]
    other.load_state_dict(model.state_dict())
    a, b = (m(**given)[0] for m in filtered)
    assert_close(a, b)
    names = {m.config._attn_implementation for m in other.modules() if isinstance(m, Filtered)}
    assert names == {"filtered_eager"}


def test_attention_that_no_filter_knows_is_named():
    model, _ = eager("PegasusXForConditionalGeneration")
    with pytest.warns(UserWarning, match=r"stays as it is: PegasusXGlobal\w+$") as found:
        attach(model, GFSA)
    assert found[0].filename == __file__


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_is_filtered_whole_is_attached_to_without_a_word(family, recwarn):
    attach(build(family), GFSA)
    assert not recwarn.list
