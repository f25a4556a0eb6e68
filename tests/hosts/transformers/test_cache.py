"""Generation with a cache gives the same tokens as without, whatever operations the cache sees."""

import copy
import pickle
from functools import partial

import pytest
import torch
import transformers as hf
from attention_core import attach, detach
from attention_core.filters import GFSA, AttnScale, ReAttention, dropout_on_H, share_dropout
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from tests.hosts.helpers import draw_weights, filtered_modules, randomize
from tests.hosts.transformers.forming_models import TEXTS
from tests.hosts.transformers.models import FAMILIES, GENERATIVE, LLAMA, PAD, SLIDES, VOCAB, build

FILTERS = {"gfsa": partial(GFSA, K=4), "attnscale": AttnScale}  # powers of a map, and its average
all_filters = pytest.mark.parametrize("make", FILTERS.values(), ids=FILTERS)


def make_prompts(left: int = 0) -> dict[str, Tensor]:
    ids = torch.randint(3, VOCAB, (2, 5))
    ids[1, :left] = PAD
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def build_filtered(family: str, make) -> nn.Module:
    return randomize(attach(build(family), make))


OPTIONS = {"do_sample": False, "eos_token_id": None, "output_logits": True}
OPTIONS |= {"return_dict_in_generate": True}


def check_generation(model: nn.Module, kinds: tuple, tolerance: float, **options) -> None:
    """Compare generation with caches to that without, and to that of the stock model."""
    given = make_prompts(left=2)
    whole = model.generate(**given, **OPTIONS, **options, use_cache=False)
    logits = torch.stack(whole.logits)
    for kind in kinds:
        cached = model.generate(**given, **OPTIONS, **options, cache_implementation=kind)
        assert torch.equal(cached.sequences, whole.sequences)
        assert_close(torch.stack(cached.logits), logits, rtol=tolerance, atol=tolerance)
    plain = detach(copy.deepcopy(model)).generate(**given, **OPTIONS, **options)
    # a stock model that runs eagerly in float64 is nan where a window holds padding alone
    assert (torch.stack(plain.logits).nan_to_num() - logits).abs().max() > 1e-3


@pytest.mark.parametrize("family", GENERATIVE)
@pytest.mark.parametrize(("make", "beams"), [(FILTERS["gfsa"], 3), (AttnScale, 1)])
def test_a_cache_changes_no_token(family, make, beams):
    """The average keeps no rows, which beams would reorder."""
    model = build_filtered(family, make)
    check_generation(model, ("dynamic", "static"), 1e-7, max_new_tokens=9, num_beams=beams)


@torch.no_grad()
def run_in_chunks(model: nn.Module, ids: Tensor, cache, sizes: tuple[int, ...]) -> Tensor:
    """Return the logits of a sequence that is processed a few tokens at a time."""
    parts, start = [], cache.get_seq_length()
    for part in ids[:, start:].split(sizes, 1):
        parts.append(model(part, past_key_values=cache, use_cache=True).logits)
    return torch.cat(parts, 1)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@all_filters
def test_chunks_equal_one_pass(family, make):
    model, ids = build_filtered(family, make), torch.randint(3, VOCAB, (2, 11))
    whole = model.train(family == "llama")(ids, use_cache=False).logits
    for cache in (DynamicCache(config=model.config), DynamicCache()):
        assert_close(run_in_chunks(model, ids, cache, (4, 1, 3, 1, 2)), whole)
        cache.crop(-5)
        assert_close(run_in_chunks(model, ids, cache, (2, 3)), whole[:, 6:])
        cache.crop(-8)
        cache.batch_repeat_interleave(2)
        twice = ids.repeat_interleave(2, 0)
        assert_close(run_in_chunks(model, twice, cache, (8,)), whole.repeat_interleave(2, 0)[:, 3:])
        cache.crop(-4)
        cache.batch_select_indices(torch.tensor([3, 0]))
        assert_close(run_in_chunks(model, ids.flip(0), cache, (1, 3)), whole.flip(0)[:, 7:])
        cache.crop(-2)
        cache.reorder_cache(torch.tensor([1, 0]))
        copied = pickle.loads(pickle.dumps(cache))
        assert_close(run_in_chunks(model, ids, copied, (1, 1)), whole[:, 9:])
        cache.reset()
        assert_close(run_in_chunks(model, ids.flip(1), cache, (7, 4)), model(ids.flip(1)).logits)


@pytest.mark.parametrize("family", SLIDES)
def test_a_sliding_window_keeps_the_rows_of_its_keys(family):
    model, ids = build_filtered(family, GFSA), torch.randint(3, VOCAB, (2, 14))
    whole = model(ids, use_cache=False).logits
    cache = DynamicCache(config=model.config)
    assert_close(run_in_chunks(model, ids[:, :9], cache, (6, 1, 2)), whole[:, :9])
    kept = {layer.rows[0].keys.shape[-2] for layer in cache.layers}
    assert kept == ({3} if family == "mistral" else {3, 9})  # the window without the next token
    for layer in cache.layers:
        assert layer.rows[0].keys.shape[-2] == layer.keys.shape[-2]
    if family == "mistral":  # assisted generation takes back what it guessed
        for layer in cache.layers:
            layer.activate_past_recording()
        run_in_chunks(model, ids, cache, (3, 2))
        cache.crop(-4)
        assert_close(run_in_chunks(model, ids, cache, (2, 2)), whole[:, 10:])
    cache.reset()
    assert_close(run_in_chunks(model, ids, cache, (14,)), whole)


def test_layers_without_a_filter_keep_no_rows():
    model = randomize(attach(build("gpt2"), GFSA, "1:"))
    ids, cache = torch.randint(3, VOCAB, (2, 7)), DynamicCache(config=model.config)
    assert_close(run_in_chunks(model, ids, cache, (3, 4)), model(ids).logits)
    assert [hasattr(layer, "rows") for layer in cache.layers] == [False, True]
    assert [row.keys.shape for row in cache.layers[1].rows] == [(2, 3, 7, 7)]


def test_other_caches_are_refused():
    model, given = build_filtered("gpt2", GFSA), make_prompts()
    stock, empty, filled = build("gpt2"), DynamicCache(), DynamicCache()
    run_in_chunks(model, given["input_ids"], filled, (4, 1))
    for cache in (empty, filled):
        stock(given["input_ids"][:, :1], past_key_values=cache)
        with pytest.raises(ValueError, match="was filled without this filter"):
            model(given["input_ids"][:, :1], past_key_values=cache)


def test_no_map_is_formed_from_a_cache():
    model, given = build_filtered("gpt2", GFSA), make_prompts()
    cache = DynamicCache()
    out = model(given["input_ids"], past_key_values=cache, output_attentions=True)
    assert out.attentions[0].shape == (2, 3, 5, 5)
    with pytest.raises(ValueError, match=r"ask for attentions with use_cache=False"):
        model(given["input_ids"][:, :1], past_key_values=cache, output_attentions=True)
    for make in (ReAttention, lambda num_heads: dropout_on_H(GFSA(num_heads))):
        mixed = attach(build("gpt2"), make).train(make is not ReAttention)
        with pytest.raises(ValueError, match="forms the map cannot use a cache"), torch.no_grad():
            mixed(given["input_ids"], use_cache=True)
        mixed(given["input_ids"], use_cache=False)


def test_training_keeps_no_rows_and_cannot_continue():
    model, ids = build_filtered("gpt2", GFSA).train(), torch.randint(3, VOCAB, (2, 5))
    cache = model(ids, use_cache=True).past_key_values
    assert {type(layer).__name__ for layer in cache.layers} == {"DynamicLayer"}
    with pytest.raises(ValueError, match="cannot continue from a cache in training"):
        model(ids[:, :1], past_key_values=cache)
    model = build("gemma2", attention_dropout=0.5).train()
    randomize(attach(model, lambda num_heads: share_dropout(GFSA(num_heads))))
    outputs = []
    for use_cache in (True, False):  # without gradients rows are kept, and share a mask
        with torch.random.fork_rng(), torch.no_grad():
            outputs.append(model(ids, use_cache=use_cache).logits)
    assert_close(*outputs)


@torch.no_grad()
def test_a_step_with_a_static_cache_compiles_in_one_graph():
    torch.compiler.reset()
    model, ids = build_filtered("llama", GFSA), torch.randint(3, VOCAB, (2, 8))
    whole, cache = model(ids, use_cache=False).logits, StaticCache(model.config, max_cache_len=12)
    model(ids[:, :5], past_key_values=cache)
    step = torch.compile(model, backend="eager", fullgraph=True)
    for i in range(5, 8):
        y = step(ids[:, i : i + 1], past_key_values=cache, position_ids=torch.full((2, 1), i))
        assert_close(y.logits[:, 0], whole[:, i])


def test_a_layer_that_attends_twice_keeps_the_rows_of_both():
    config = hf.DiffLlamaConfig(**LLAMA | {"num_key_value_heads": 6})
    model = randomize(attach(hf.DiffLlamaForCausalLM(config).double().eval(), GFSA))
    nn.init.normal_(model.lm_head.weight)
    ids, cache = torch.randint(3, VOCAB, (2, 9)), DynamicCache(config=model.config)
    assert_close(run_in_chunks(model, ids, cache, (4, 1, 2, 2)), model(ids, use_cache=False).logits)
    assert len(cache.layers[0].rows) == 2


def test_a_shared_layer_keeps_rows_at_each_of_its_places():
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4}
    mamba = {"n_mamba_heads": 8, "mamba_headdim": 8, "mamba_d_state": 4, "adapter_rank": 4}
    mamba |= {"layers_block_type": ["mamba", "hybrid"] * 2, "num_mem_blocks": 1}
    config = hf.Zamba2Config(vocab_size=VOCAB, num_hidden_layers=4, **sizes, **mamba)
    model = hf.Zamba2ForCausalLM(config).eval()
    draw_weights(model, 0.3, 0)
    randomize(attach(model, GFSA))
    check_generation(model, ("dynamic",), 1e-4, max_new_tokens=4, num_beams=3)  # with their states


@pytest.mark.parametrize("kind", ["Gemma3n", "Gemma4"])
def test_layers_that_read_the_keys_of_others_stay_plain(kind):
    options = LLAMA | {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "laurel_rank": 4}
    options |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "head_dim": 8}
    options |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB}
    options |= {"activation_sparsity_pattern": [0.0] * 4, "global_head_dim": 8, "sliding_window": 4}
    model = getattr(hf, f"{kind}ForCausalLM")(getattr(hf, f"{kind}TextConfig")(**options)).eval()
    attach(draw_weights(model, 0.3), GFSA)
    assert len(filtered_modules(model)) == 2
    check_generation(randomize(model), ("dynamic",), 1e-4, max_new_tokens=4)


@pytest.mark.parametrize("name", ["GPTNeo", "GPTJ", "CodeGen", "Bloom", "Mpt", "Falcon"])
@all_filters
def test_models_that_form_their_map_continue_from_a_cache(name, make):
    case = next(case for case in TEXTS if case.model_class.__name__ == f"{name}Model")
    model = getattr(hf, f"{name}ForCausalLM")(case.config).eval()  # BLOOM in float64 is nan
    draw_weights(model, 0.3, 0)
    check_generation(randomize(attach(model, make)), ("dynamic",), 1e-4, max_new_tokens=6)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_decoder_continues_from_its_own_half_of_a_cache(family):
    model, ids = build_filtered(family, GFSA), torch.randint(3, VOCAB, (2, 6))
    target = torch.randint(3, VOCAB, (2, 7))
    whole = model(ids, decoder_input_ids=target, use_cache=False).logits
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    parts = target.split((4, 1, 2), 1)
    logits = [model(ids, decoder_input_ids=p, past_key_values=cache).logits for p in parts]
    assert_close(torch.cat(logits, 1), whole)
    assert len(cache.self_attention_cache.layers) == FAMILIES[family].num_layers - 2
