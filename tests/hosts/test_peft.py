"""PEFT: adapters train what is attached, before or after them, and save and load it."""

import copy
import subprocess
import sys
from functools import partial

import pytest
import torch
import transformers as hf
from attention_core import AGF, EigenSpectrum, attach, detach, penalties, trainable_parameters
from attention_core.diagnosis import diagnose
from attention_core.filters import GFSA, CenteredAttention
from attention_core.hosts.transformers import load
from attention_core.kernels import Linformer, Singularformer
from attention_core.tokens import FeatScale
from torch import nn

from tests.hosts import timm_models, torch_models
from tests.hosts.transformers.models import FAMILIES, make_inputs

peft = pytest.importorskip("peft")
GIVEN = make_inputs("llama")


def make_lora(**options) -> "peft.LoraConfig":
    return peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False, **options)


def save_base(folder) -> str:
    torch.manual_seed(0)
    hf.LlamaForCausalLM(FAMILIES["llama"].config).save_pretrained(folder)
    return str(folder)


def wrap(base: str, order: str, make=GFSA) -> nn.Module:
    model = hf.AutoModelForCausalLM.from_pretrained(base)
    if order == "attach first":
        return peft.get_peft_model(attach(model, make), make_lora())
    if order == "LoRA first":
        model = peft.get_peft_model(model, make_lora())
    else:
        model.add_adapter(make_lora())
    return attach(model, make)


def train(model: nn.Module) -> nn.Module:
    for weight in trainable_parameters(model).values():
        nn.init.normal_(weight, std=0.5)
    return model.eval()


def run(model: nn.Module) -> torch.Tensor:
    return model(**GIVEN).logits


orders = pytest.mark.parametrize("order", ["attach first", "LoRA first"])


@orders
def test_an_adapter_trains_saves_and_loads_what_is_attached(order, tmp_path):
    base = save_base(tmp_path / "base")
    model = wrap(base, order)
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    own = list(trainable_parameters(model))
    assert len(own) == 2
    assert {name for name in trained if "lora" not in name} == {*own}
    train(model).save_pretrained(tmp_path / "lora")
    expected = run(model)
    again = load(hf.AutoModelForCausalLM, str(tmp_path), subfolder="lora")
    assert torch.equal(run(again.eval()), expected)
    stock = hf.AutoModelForCausalLM.from_pretrained(base)
    for other in (stock, attach(copy.deepcopy(stock), partial(GFSA, K=4))):
        with pytest.raises(ValueError, match=r"GFSA \(filter, layer 0\) .*: attach the same first"):
            peft.PeftModel.from_pretrained(copy.deepcopy(other), tmp_path / "lora")
    again = peft.PeftModel.from_pretrained(attach(stock, GFSA), tmp_path / "lora").eval()
    assert torch.equal(run(again), expected)
    merged = model.merge_and_unload()
    torch.testing.assert_close(run(merged), expected)
    merged.save_pretrained(tmp_path / "merged")
    again = load(hf.AutoModelForCausalLM, str(tmp_path / "merged")).eval()
    assert torch.equal(run(again), run(merged))
    assert torch.equal(run(detach(again)), run(detach(merged)))


@pytest.mark.parametrize("order", ["attach first", "LoRA first", "add_adapter"])
@pytest.mark.parametrize("make", [GFSA, CenteredAttention, partial(GFSA, learn=(), wK=0.4)])
def test_every_mechanism_comes_back_with_an_adapter(make, order, tmp_path):
    model = train(wrap(save_base(tmp_path / "base"), order, make))
    model.save_pretrained(tmp_path / "lora")
    again = load(hf.AutoModelForCausalLM, str(tmp_path / "lora")).eval()
    assert torch.equal(run(again), run(model))


@pytest.mark.parametrize("make", [lambda model, lora: model, peft.get_peft_model])
def test_a_process_that_only_unpickles_knows_mechanisms(make, tmp_path):
    model, lora = attach(timm_models.build(), GFSA), peft.LoraConfig(target_modules=["fc1"])
    torch.save((make(model, lora), lora), tmp_path / "m.pt")
    code = """import torch; m, lora = torch.load("m.pt", weights_only=False); import peft
(m if hasattr(m, "peft_config") else peft.get_peft_model(m, lora)).save_pretrained("a")"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert "GFSA" in (tmp_path / "a/adapter_config.json").read_text()


def test_what_peft_leaves_out_is_not_lost_in_silence(tmp_path):
    llama = attach(hf.LlamaForCausalLM(copy.deepcopy(FAMILIES["llama"].config)), GFSA)
    configs = [peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"),
               peft.AdaptionPromptConfig(adapter_len=2, adapter_layers=1, task_type="CAUSAL_LM"),
               peft.TrainableTokensConfig(token_indices=[3])]  # fmt: skip
    for config in configs:
        with pytest.warns(UserWarning, match="leaves out .*: call save_mechanism"):
            peft.get_peft_model(copy.deepcopy(llama), config).save_pretrained(tmp_path)
    model = attach(timm_models.build(), reparam=EigenSpectrum)
    with pytest.warns(UserWarning, match="call save_mechanism"):
        peft.get_peft_model(model, peft.LoraConfig(target_modules=["fc1"]))
    shares = (partial(Linformer, share_layers=True), partial(Singularformer, add_scores=True))
    for mechanism, target, message in [
        ({"filter": GFSA}, "self_attn", "adapter of .*self_attn.* would bypass its filter"),
        ({"tokens": FeatScale}, "out_proj", r"tokens follow .*self_attn\.out_proj"),
        *(({"kernel": kernel}, "linear1", "copies what layers share: leave") for kernel in shares),
    ]:
        lora = peft.LoraConfig(target_modules=[target])
        with pytest.raises(ValueError, match=message):
            peft.get_peft_model(attach(torch_models.build_encoder(), **mechanism), lora)
        with pytest.raises(ValueError, match=message):
            attach(peft.get_peft_model(torch_models.build_encoder(), lora), **mechanism)
        assert not lora.modules_to_save
    for name in ("qkv", "proj"):  # whose weights a merge would not reach, or would change
        model = attach(timm_models.build(), reparam=EigenSpectrum)
        with pytest.raises(ValueError, match=f"EigenSpectrum ties .*{name}"):
            peft.get_peft_model(model, peft.LoraConfig(target_modules=[name]))


def test_a_penalty_counts_once_and_modules_of_the_model_keep_their_names():
    model = nn.ModuleDict({"vit": timm_models.build(), "tokens": nn.Linear(2, 2)})
    lora = peft.LoraConfig(target_modules=["fc1"], modules_to_save=["tokens"])
    wrapped = attach(peft.get_peft_model(model, lora), kernel=partial(AGF, gamma=0.1))
    with penalties(wrapped) as terms:
        model["vit"](torch.randn(1, 3, timm_models.SIZE, timm_models.SIZE))
    assert len(terms) == 3
    assert wrapped.peft_config["default"].modules_to_save == ["attn.kernel", "tokens"]


def test_a_diagnosis_keeps_frozen_what_an_adapter_would_train():
    lora = peft.LoraConfig(target_modules=["fc1"], modules_to_save=["head"])
    model = peft.get_peft_model(timm_models.build(), lora).requires_grad_(False)
    diagnose(model, torch.randn(2, 3, timm_models.SIZE, timm_models.SIZE), mechanisms=[GFSA])
    assert not any(weight.requires_grad for weight in model.parameters())


@orders
def test_two_adapters_have_coefficients_of_their_own(order, tmp_path):
    model = wrap(save_base(tmp_path / "base"), order)
    model.add_adapter("other", make_lora())
    train(model)
    expected = {}
    for name in ("default", "other"):
        model.set_adapter(name)
        expected[name] = run(model)
    assert (expected["default"] - expected["other"]).abs().max() > 1e-3
    model.save_pretrained(tmp_path / "lora")
    again = load(hf.AutoModelForCausalLM, str(tmp_path / "lora"))
    again.load_adapter(tmp_path / "lora" / "other", "other")
    for name in expected:
        again.set_adapter(name)
        assert torch.equal(run(again.eval()), expected[name])
    assert len(diagnose(again, GIVEN, measures="light").layers) == 2  # without a cache
