"""Models that are diagnosed: of timm, of transformers with and without a tokenizer, or refused."""

import json
from unittest.mock import Mock

import pytest
import torch
from experiment_kit.cli import run_app
from experiment_kit.data.download import WEIGHT_PACKAGES
from experiment_kit.diagnosis import model_sources
from experiment_kit.diagnosis.model_inputs import make_image
from experiment_kit.diagnosis.model_sources import RANDOM, load_run, load_timm, load_transformers
from experiment_kit.errors import UserError
from experiment_kit.launch.plan import Experiment, build_run, load_app, load_best_epoch
from transformers import AutoConfig

from tests.apps.tiny import NARROW
from tests.kit.commands.test_diagnose import SIZES, save_bert


@pytest.fixture
def bert(tmp_path):
    save_bert(tmp_path)
    return tmp_path


def test_images_have_the_size_of_the_model_and_other_inputs_the_given_shape() -> None:
    source = model_sources.load_source("class:torch.nn:Identity", shape=[4, 8, 8])
    batch, note = source.make_batch((), 2)
    assert (batch.shape, note) == (
        (2, 4, 8, 8),
        "The inputs are random numbers of the given shape.",
    )
    source = load_timm("vit_tiny_patch16_224", random=True)
    assert source.encode([make_image(seed, 40) for seed in range(2)]).shape == (2, 3, 224, 224)
    assert (source.kind, source.weights, source.network.training) == ("image", f"{RANDOM}.", False)
    again = load_timm("vit_tiny_patch16_224", random=True).network
    assert torch.equal(source.network.head.weight, again.head.weight)


def test_texts_are_encoded_by_the_tokenizer_of_the_folder(bert) -> None:
    source = load_transformers(str(bert))
    batch = source.encode(["one two three", "two"])
    assert batch["input_ids"].tolist() == [[2, 5, 6, 7, 3], [2, 6, 3, 0, 0]]
    assert batch["attention_mask"].sum(1).tolist() == [5, 3]
    assert source.network(**batch).last_hidden_state.shape == (2, 5, 12)
    assert str(bert) in source.weights
    source.network.config.is_encoder_decoder = True
    assert source.encode(["one two", "two"])["decoder_attention_mask"].sum(1).tolist() == [4, 3]


@pytest.mark.parametrize(("model_type", "options", "shapes"), [
    ("gpt2", {"n_embd": 12, "n_layer": 2, "n_head": 3, "vocab_size": 13}, {"input_ids": (2, 64)}),
    ("t5", {"d_model": 12, "d_kv": 4, "num_layers": 2, "num_heads": 3, "vocab_size": 13},
     {"input_ids": (2, 64), "decoder_input_ids": (2, 64)}),
    ("vit", {**SIZES, "image_size": 32}, {"pixel_values": (2, 3, 32, 32)}),
    ("wav2vec2", {**SIZES, "conv_dim": (8,) * 7, "num_conv_pos_embeddings": 4,
                  "num_conv_pos_embedding_groups": 2}, {"input_values": (2, 3000)}),
])  # fmt: skip
def test_a_model_type_is_built_of_random_weights(model_type, options, shapes, monkeypatch) -> None:
    build = AutoConfig.for_model
    monkeypatch.setattr(AutoConfig, "for_model", lambda name: build(name, **options))
    source = load_transformers(model_type, random=True)
    images = [make_image(seed, 40) for seed in range(2)]
    waves = [torch.randn(4000), torch.randn(3000)]  # are cut to the shortest
    batch = source.encode({"image": images, "recording": waves}.get(source.kind, 2))
    assert {name: tuple(x.shape) for name, x in batch.items()} == shapes
    assert source.network(**batch).last_hidden_state.isfinite().all()
    assert source.weights.startswith(RANDOM)
    assert "default configuration" in source.weights


def test_minilm_is_found_in_its_package() -> None:
    pytest.importorskip(WEIGHT_PACKAGES["minilm"])
    source = load_transformers("minilm")
    batch = source.encode(["The quick brown fox jumps.", "A sentence."])
    assert source.network.config.num_hidden_layers == 6
    assert batch["attention_mask"].sum(1).tolist() == [8, 5]


def test_the_hub_is_asked_for_an_id_alone(monkeypatch) -> None:
    asked = []

    def refuse(files):
        asked.append(files.repo)
        raise UserError("the hub does not give it")

    monkeypatch.setattr(model_sources.download, "fetch_hub_files", refuse)
    for name in ("nobody/nothing", "no_type"):
        with pytest.raises(UserError, match="the hub does not give it"):
            load_transformers(name)
    assert asked == ["nobody/nothing", "no_type"]


@pytest.mark.parametrize(("changed", "sentence"), [
    ({"num_hidden_layers": 4}, r"of another model: they lack encoder\.layer\.3"),
    ({"vocab_size": 9}, r"they lack embeddings\.word_embeddings\.weight of this size"),
    ({"model_type": "newer"}, "model type `newer` but Transformers does not recognize this"),
])  # fmt: skip
def test_weights_of_another_model_are_named(changed, sentence, bert) -> None:
    config = AutoConfig.for_model("bert", **SIZES).to_dict() | changed
    (bert / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=sentence):
        load_transformers(str(bert))
    (bert / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="transformers cannot load"):
        load_transformers(str(bert))


def test_the_start_of_a_run_has_the_weights_before_its_first_step(tmp_path, monkeypatch) -> None:
    names = {"app": "sequence", "data": "japanese_vowels", "backbone": "uea", "method": "gfsa"}
    short = (f"--trainer.{n}=1" for n in ("max_steps", "limit_val_batches", "val_check_interval"))
    args = (*NARROW, *short, "--model.optimizer.init_args.lr=1e-30")
    experiment, app = Experiment(**names, profile="smoke", args=args), load_app("sequence")
    run_app(app, ["fit", *experiment.arguments(str(tmp_path))])
    folder, hook = str(next(tmp_path.rglob("result.json")).parent), Mock()
    monkeypatch.setattr(app.model, "load_tested_weights", hook, raising=False)
    monkeypatch.setattr(app.data, "val_dataloader", lambda data: [data.eval_loader("val")])
    loads = load_best_epoch, build_run
    (best, batches, _), (start, *_) = (load_run(folder, [], 1, load=load) for load in loads)
    pairs = zip(best.parameters(), start.parameters(), strict=True)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-20) for a, b in pairs)
    assert (len(next(batches)[0][0]), hook.call_args.args[-1].name) == (1, "best.ckpt")
