"""Filters in checkpoints of transformers: what is loaded is what was saved, or an error."""

import copy
import json
import sys
from functools import partial

import pytest
import torch
import transformers as hf
from attention_core import attach, detach, trainable_parameters
from attention_core.filters import GFSA, AttnScale, Plain, ReAttention
from attention_core.hosts.saving import load_mechanism, save_mechanism
from attention_core.hosts.transformers import load
from attention_core.hosts.transformers.trainer import Trainer
from attention_core.kernels import Linformer
from attention_core.tokens import ContraNorm, FeatScale, LayerScale
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.testing_utils import CaptureLogger

from tests.hosts.helpers import OwnAttention, filtered_modules, filters, randomize
from tests.hosts.transformers.models import BERT, EAGER, FAMILIES, VIT, build, make_inputs


def reload(kind, path) -> nn.Module:
    """Load a model and copy it: mapped from the file, its weights are not aligned and round."""
    return copy.deepcopy(load(kind, path))


# without two that have no stock model in float64, or round a constant when they are made
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in EAGER])
def test_a_round_trip_changes_nothing(family, tmp_path):
    model = randomize(attach(build(family), partial(GFSA, K=5, learn=("w0", "wK"), w0=0.1)))
    given = make_inputs(family, padded=True)
    model.save_pretrained(tmp_path)
    again = reload(FAMILIES[family].model_class, tmp_path).double()
    assert torch.equal(again(**given)[0], model(**given)[0])
    for ours, theirs in zip(filters(again), filters(model), strict=True):
        assert (ours.K, ours.learn) == (5, ("w0", "wK"))
        assert [name for name, _ in ours.named_parameters()] == ["w0", "wK"]
        assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))
    stock = copy.deepcopy(FAMILIES[family].model_class.from_pretrained(tmp_path)).double()
    assert stock.config._attn_implementation == "sdpa"
    assert torch.equal(stock(**given)[0], detach(model)(**given)[0])


def test_the_model_that_is_saved_is_described(tmp_path, monkeypatch):
    model, given = build("bert"), make_inputs("bert")
    randomize(attach(model.encoder, GFSA))
    hf.BertModel(model.config).save_pretrained(tmp_path / "stock")
    assert "attention_core" not in (tmp_path / "stock" / "config.json").read_text()
    model.save_pretrained(tmp_path)
    assert torch.equal(reload(hf.BertModel, tmp_path).double()(**given)[0], model(**given)[0])
    own = type("Own", (hf.PreTrainedModel,), {})(model.config)  # whose base class alone is theirs
    own.attention = OwnAttention()
    monkeypatch.delitem(sys.modules, host := "attention_core.hosts.transformers")
    attach(own, GFSA, where="OwnAttention")
    assert host in sys.modules  # which changes save_pretrained


def test_layers_may_differ_and_shards_are_read(tmp_path):
    model = attach(attach(build("bert"), GFSA, ":1"), AttnScale, "1:")
    randomize(model).save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    again, given = reload(hf.BertModel, tmp_path).double(), make_inputs("bert")
    assert [type(filter) for filter in filters(again)] == [GFSA, AttnScale]
    assert torch.equal(again(**given)[0], model(**given)[0])


def test_the_stock_from_pretrained_runs_the_code_of_the_folder(tmp_path, monkeypatch, caplog):
    logger = hf.logging.get_logger("transformers.modeling_utils")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    model, given = randomize(attach(build("gpt2"), GFSA)), make_inputs("gpt2")
    model.save_pretrained(tmp_path)
    for kind, ours in {hf.AutoModelForCausalLM: model, hf.AutoModel: model.base_model}.items():
        for trust in (True, False):
            with caplog.at_level("WARNING", logger.name), CaptureLogger(logger) as log:
                loaded = kind.from_pretrained(tmp_path, trust_remote_code=trust).double()
            assert torch.allclose(loaded(**given)[0], ours(**given)[0]) is trust
            assert ("filter.wK" in log.out) is not trust  # a report of what was left out
    again = load(hf.AutoModelForCausalLM, tmp_path, trust_remote_code=True)
    again.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "attention_core_models.py").is_file()
    detach(again).save_pretrained(tmp_path / "plain")
    assert not (tmp_path / "plain" / "attention_core_models.py").exists()
    assert "attention_core" not in (tmp_path / "plain" / "config.json").read_text()


OWN = """from tests.hosts import helpers
from transformers import BertModel
class OwnAttention(helpers.OwnAttention): ...
class Own(BertModel):
    def __init__(self, config):
        super().__init__(config)
        self.own = OwnAttention()
"""


def test_a_model_with_its_own_code_is_loaded_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    (tmp_path / "modeling_own.py").write_text(OWN)
    hf.BertConfig(**BERT, auto_map={"AutoModel": "modeling_own.Own"}).save_pretrained(tmp_path)
    config, x = hf.AutoConfig.from_pretrained(tmp_path), torch.randn(2, 5, 12)
    model = hf.AutoModel.from_config(config, trust_remote_code=True)
    path = "transformers_modules.x.9.modeling_own.OwnAttention"  # as older files name it
    randomize(attach(model, GFSA, where=path))
    save_mechanism(model, tmp_path)
    with pytest.warns(UserWarning, match="the model's own code leaves out what is attached"):
        model.save_pretrained(tmp_path / "ours")
    kinds = (partial(load, hf.AutoModel), hf.AutoModel.from_pretrained)
    again, stock = (kind(tmp_path / "ours", trust_remote_code=True) for kind in kinds)
    for loaded in (again, load_mechanism(stock, tmp_path)):
        assert torch.equal(loaded.own(x), model.own(x))


@pytest.mark.parametrize("saved", [hf.BertModel, hf.BertForMaskedLM])
def test_a_body_is_loaded_under_another_head(saved, tmp_path):
    model = randomize(attach(saved(hf.BertConfig(**BERT)).eval(), GFSA))
    model.save_pretrained(tmp_path)
    for kind in (hf.BertModel, hf.BertForSequenceClassification, hf.AutoModelForMaskedLM):
        again, given = reload(kind, tmp_path), make_inputs("bert")
        assert torch.equal(again.base_model(**given)[0], model.base_model(**given)[0])


def test_a_part_is_refused_that_lacks_layers_of_the_whole(tmp_path):
    clip = hf.CLIPModel(hf.CLIPConfig(text_config=BERT, vision_config=VIT))
    wholes = {hf.CLIPVisionModel: (clip, "describes CLIPModel: load that, and take its CLIPV")}
    wholes[hf.T5EncoderModel] = (build("t5"), "is of 4 layers, this model of 2")
    for i, (kind, (model, message)) in enumerate(wholes.items()):
        attach(model, GFSA).save_pretrained(tmp_path / str(i))
        with pytest.raises(ValueError, match=message):
            load(kind, str(tmp_path / str(i)))


def test_a_wrong_description_is_refused(tmp_path):
    model = randomize(attach(build("bert"), partial(GFSA, K=4)))
    model.save_pretrained(tmp_path)
    file, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    tensors, described = load_file(file), json.loads(config.read_text())
    core, no_filter = described["attention_core"], {"class_path": "json.dumps", "init_args": {}}
    args = {"K": 4, "learn": ["wK"]}
    assert core["filter"] == {"class_path": "attention_core.GFSA", "init_args": args}
    lost = {k: v for k, v in tensors.items() if not k.endswith("layer.1.attention.self.filter.wK")}
    for saved, change, message in [
        (lost, core, r"has no weights for .*layer\.1.*wK"),
        (tensors, core | {"layers": [1]}, r"does not describe: .*layer\.0.*filter"),
        (tensors, core | {"filter": no_filter}, r"names json\.dumps, which is no filter"),
        (tensors, core | {"filter": {"class_path": "a.X"}}, "saved with a.X, whose layers or arg"),
        (tensors, core | {"layers": None}, "describes no mechanism of this model: TypeError"),
        (tensors, None, "describes no filter: use BertModel itself"),
    ]:
        save_file(saved, file, {"format": "pt"})
        config.write_text(json.dumps(described | {"attention_core": change}))
        with pytest.raises(ValueError, match=message):
            load(hf.BertModel, tmp_path)
    for name in ("variant", "output_loading_info"):
        with pytest.raises(ValueError, match=f"takes no {name}: leave it out"):
            load(hf.BertModel, tmp_path, **{name: "fp16"})


TOKENS = {
    "residual": (partial(ContraNorm, scale=0.4, identity=True, norm=False), GFSA),
    "norms": (LayerScale, Plain),
    "attention": (partial(FeatScale, gain=2), partial(ReAttention, scale=0.5)),
}


@pytest.mark.parametrize(("position", "made"), TOKENS.items(), ids=TOKENS)
def test_tokens_come_back_to_their_position(position, made, tmp_path):
    model, given = build("bert").float(), make_inputs("bert", padded=True)
    attach(model, tokens=made[0], position=position, layers="1:2")
    randomize(randomize(attach(model, made[1])), "tokens")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # ReAttention's
            nn.init.uniform_(module.running_mean)
    model.save_pretrained(tmp_path)
    again = reload(hf.BertModel, tmp_path)
    assert torch.equal(again(**given)[0], model(**given)[0])
    assert again.config.attention_core == model.config.attention_core


def test_layers_that_share_a_kernel_share_it_again(tmp_path):
    make = partial(Linformer, length=9, rank=3, share_layers=True)
    attach(model := build("bert").float(), kernel=make).save_pretrained(tmp_path)
    again, given = reload(hf.BertModel, tmp_path), make_inputs("bert")
    assert torch.equal(again(**given)[0], model(**given)[0])
    first, second = filtered_modules(again).values()
    assert first.kernel.E is second.kernel.E


class Attaching(hf.BertModel):
    def __init__(self, config, **options):
        super().__init__(config)
        attach(self, GFSA, tokens=FeatScale, **options)


def test_a_class_that_attaches_itself_starts_as_it_is_made(tmp_path):
    stock, given = build("bert").float(), make_inputs("bert")
    stock.save_pretrained(tmp_path)
    model = Attaching.from_pretrained(tmp_path)
    torch.testing.assert_close(model(**given)[0], stock(**given)[0])
    randomize(randomize(model), "tokens").save_pretrained(tmp_path / "own")
    own = copy.deepcopy(Attaching.from_pretrained(tmp_path / "own"))
    assert torch.equal(own(**given)[0], model(**given)[0])
    with pytest.raises(ValueError, match="no file has psi: attach reparam= to what"):
        Attaching.from_pretrained(tmp_path, reparam="eigenspectrum")


def test_a_trainer_decays_no_coefficient():
    model = attach(attach(build("bert"), tokens=FeatScale), partial(GFSA, learn=("w0", "wK")))
    ours, theirs = (object.__new__(kind) for kind in (Trainer, hf.Trainer))
    decayed = set(ours.get_decay_parameter_names(model))
    left_out = set(theirs.get_decay_parameter_names(model)) - decayed
    assert left_out == set(trainable_parameters(model))
    assert "encoder.layer.0.output.dense.weight" in decayed
