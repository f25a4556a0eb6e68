"""The recogniser: its losses, its sizes, its indifference to padding, and a run from end to end."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attention_core import GFSA, AttnScale, ContraNorm, EigenSpectrum
from attention_core.kernels import Performer
from attention_speech.audio import Utterance
from attention_speech.augment import Masks
from attention_speech.average import BestAverage, kept, mean_weights
from attention_speech.data import SpeechData
from attention_speech.data.batches import Batch, Collate
from attention_speech.decoding import Search
from attention_speech.features import Bank
from attention_speech.language import LanguageModel, Transcripts
from attention_speech.losses import alignment, divergence
from attention_speech.models import Recogniser, Size
from attention_speech.models.lm import LanguageSize, load
from attention_speech.module import SpeechRecogniser
from attention_speech.vocabulary import Vocabulary, train
from experiment_kit.callbacks.spectral import observe
from experiment_kit.checkpoints import AtomicCheckpointIO
from experiment_kit.errors import UserError
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from speechbrain.lobes.models.transformer.Branchformer import BranchformerEncoderLayer
from speechbrain.nnet.losses import ctc_loss, kldiv_loss
from torch.utils.data import DataLoader

ENCODERS = "transformer", "branchformer"
SMALL = {"width": 8, "heads": 2, "encoder_layers": 3, "decoder_layers": 2, "hidden": 10, "gate": 12}
BANK, NO_MASKS = Bank(bands=12), Masks(0, 0, 0, 0, 0)
TEXTS = ["ONE TWO", "NINE", "TWO ZERO ONE"]


def size(encoder: Any = "transformer", **changed: Any) -> Size:
    return Size(encoder, **(SMALL | {"kernel": 7, "channels": (3, 4, 2)} | changed))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> str:
    return str(train(TEXTS, 40, "char", tmp_path_factory.mktemp("pieces")))


def speech(tokenizer: str, encoder: str = "transformer", **options: Any) -> SpeechRecogniser:
    settings: dict[str, Any] = {"bank": BANK, "masks": NO_MASKS, "search": Search(beam=3)}
    network = size(encoder, dropout=0.0, channels=(4,), kernels=(3,), strides=(4,),
                   residuals=(False,))  # fmt: skip
    vocabulary = Vocabulary(tokenizer).size
    return SpeechRecogniser(vocabulary, tokenizer, **({"size": network} | settings | options))


def items() -> list[tuple[torch.Tensor, str, str]]:
    """A hum of its own for each letter."""
    found = []
    for number, text in enumerate(TEXTS):
        t = torch.arange(800) / 16000
        waves = [torch.sin(2000 * (1 + ord(letter) % 32) * t) for letter in text]
        found.append((torch.cat(waves), text, f"utterance-{number}"))
    return found


def batch_of(tokenizer: str) -> Batch:
    return Collate(Vocabulary(tokenizer))(items())


class _Said(SpeechData):
    """The three texts in all parts, and nothing to hear."""

    known = ("said",)

    def __init__(self, tokenizer: str) -> None:
        super().__init__("said", kind="char", vocabulary=40)
        self.tokenizer = tokenizer

    def split(self) -> dict[str, list[Utterance]]:
        said = [Utterance(text, ("",), 1.0, text, "me") for text in TEXTS]
        return {part: list(said) for part in ("train", "val", "test")}


class Speech(LightningDataModule):
    """The same three utterances in all parts, and a second test set of one."""

    def __init__(self, tokenizer: str) -> None:
        super().__init__()
        self.collate = Collate(Vocabulary(tokenizer))

    def _loader(self, count: int = 3) -> DataLoader[Any]:
        return DataLoader(items()[:count], batch_size=2, collate_fn=self.collate)

    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader()

    def val_dataloader(self) -> DataLoader[Any]:
        return self._loader()

    def test_dataloader(self) -> list[DataLoader[Any]]:
        return [self._loader(), self._loader(1)]


def trainer(folder: Path, **options: Any) -> Trainer:
    callbacks = options.pop("callbacks", None)
    best = ModelCheckpoint(folder / "checkpoints", "best", "val/score", mode="max",
                           save_weights_only=True, enable_version_counter=False)  # fmt: skip
    settings = {"max_epochs": 3, "logger": False, "enable_progress_bar": False} | options
    return Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        callbacks=[best] if callbacks is None else callbacks,
        num_sanity_val_steps=0,
        plugins=[AtomicCheckpointIO()],
        enable_model_summary=False,
        **settings,
    )


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=3))
def test_alignment_is_the_loss_of_each_utterance_by_torch(sizes: list[tuple[int, int]]) -> None:
    lengths, token_lengths = (torch.tensor(part) for part in zip(*sizes, strict=True))
    logits = torch.randn(len(sizes), 9, 6, dtype=torch.double)
    tokens = torch.randint(1, 6, (len(sizes), 4))
    total = 0.0
    for i, (n, u) in enumerate(sizes):
        log_probs = logits[i, :n].log_softmax(-1)
        one = F.ctc_loss(
            log_probs, tokens[i, :u], torch.tensor(n), torch.tensor(u), reduction="sum"
        )
        total += one.item() if one.isfinite() else 0.0
    found = alignment(logits, lengths, tokens, token_lengths)
    assert found.item() == pytest.approx(total / len(sizes), rel=1e-4, abs=1e-5)
    relative = lengths / 9, token_lengths / 4
    theirs = ctc_loss(logits.log_softmax(-1), tokens, *relative, 0, reduction="batchmean")
    assert found.item() == pytest.approx(theirs.item(), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_divergence_is_that_of_the_smoothed_targets(smoothing: float) -> None:
    targets = torch.tensor([[4, 1, 2, 0], [3, 2, 0, 0]])
    log_probs = torch.randn(2, 4, 5).log_softmax(-1)
    smooth = torch.full((2, 4, 5), smoothing / 4).scatter(2, targets[..., None], 1 - smoothing)
    each = F.kl_div(log_probs, smooth, reduction="none").sum(-1)
    expected = each[targets != 0].sum() / 2
    torch.testing.assert_close(divergence(log_probs, targets, smoothing), expected)
    if smoothing:
        theirs = kldiv_loss(log_probs, targets, label_smoothing=smoothing, reduction="batchmean")
        torch.testing.assert_close(divergence(log_probs, targets, smoothing), theirs)


def test_no_divergence_is_left_where_the_smoothed_targets_are_met() -> None:
    smooth = torch.tensor([[[0.1, 0.1, 0.1, 0.7]]])
    assert divergence(smooth.log(), torch.tensor([[3]]), 0.3).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("filter", [None, GFSA, AttnScale])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_padding_changes_no_logit(encoder: str, filter, tokenizer) -> None:
    options = {} if filter is None else {"filter": filter}
    module = speech(tokenizer, encoder, size=size(encoder), **options).eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if ".filter." in name:
                parameter.fill_(0.7)
    batch = batch_of(tokenizer)
    lengths = torch.tensor([batch.lengths.max(), 3217, 1])
    waves = torch.randn(3, int(lengths[0])) * (torch.arange(lengths[0]) < lengths[:, None])
    ctc, attention, number = module(batch._replace(waves=waves, lengths=lengths))
    for i, (length, tokens) in enumerate(zip(lengths, batch.token_lengths, strict=True)):
        for behind in (0, 1900):
            parts = F.pad(waves[i : i + 1, :length], (0, behind)), length[None]
            one = Batch(*parts, batch.tokens[i : i + 1, :tokens], tokens[None], [""], [""])
            alone, said, own = module(one)
            assert own == number[i]
            torch.testing.assert_close(alone[0, :own], ctc[i, :own], atol=1e-5, rtol=1e-5)
            within = slice(0, int(tokens) + 1)
            torch.testing.assert_close(said[0], attention[i, within], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_what_is_not_padded_is_that_of_speechbrain() -> None:
    x, lengths = torch.randn(2, 67, 12), torch.tensor([67, 67])
    for encoder in ENCODERS:
        ours = Recogniser(size(encoder), 12, 5).eval()
        theirs = copy.deepcopy(ours)
        if encoder == "branchformer":
            for layer in theirs.transformer.encoder.layers:
                layer.__class__ = BranchformerEncoderLayer
        states = theirs.transformer.encode(theirs.front(x), torch.ones(2))
        torch.testing.assert_close(ours.encode(x, lengths)[0], states, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("chosen", "parameters"),
    [
        (Size(), 71_525_968),
        (Size("branchformer", 512, 8, 18, 6, 2048, 3072, 31, (64, 32), (3, 3), (2, 2), (0, 0)),
         109_845_680),
    ],
    ids=ENCODERS,
)  # fmt: skip
def test_the_networks_of_the_paper_have_its_numbers_of_parameters(chosen, parameters) -> None:
    with torch.device("meta"):
        network = Recogniser(chosen, 80, 5000)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert f"{parameters / 1e6:.1f}" in ("71.5", "109.8")  # as printed


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_filter_sits_in_the_encoder_alone_and_begins_as_none(encoder, tokenizer) -> None:
    plain = speech(tokenizer, encoder).eval()
    filtered = speech(tokenizer, encoder, filter=GFSA, layers="1:").eval()
    missing, unexpected = filtered.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected
    assert {name.rpartition(".filter.")[2] for name in missing} == {"w0", "w1", "wK"}
    held = {n for n, m in filtered.named_modules() if isinstance(m, GFSA)}
    assert len(held) == SMALL["encoder_layers"] - 1
    assert all(name.startswith("network.transformer.encoder.layers.") for name in held)
    batch = batch_of(tokenizer)
    for ours, theirs in zip(filtered(batch), plain(batch), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    filtered(batch)[1].square().sum().backward()
    learned = [p for n, p in filtered.named_parameters() if n.endswith("wK")]
    assert all(p.grad is not None and p.grad.abs().min() > 0 for p in learned)


@pytest.mark.parametrize("slot", [{"kernel": Performer}, {"reparam": EigenSpectrum}])
def test_what_has_no_place_is_refused_in_a_sentence(slot, tokenizer) -> None:
    with pytest.raises(ValueError, match="has no place for a"):
        speech(tokenizer, **slot)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_monitor_sees_every_layer_and_the_real_states(encoder, tokenizer) -> None:
    tokens = lambda dim: ContraNorm(dim, 0.1)  # noqa: E731
    module = speech(tokenizer, encoder, filter=GFSA, tokens=tokens)
    batch = batch_of(tokenizer)
    found = observe(module, batch)
    assert len(found["depth"]) == SMALL["encoder_layers"] + 1
    assert len(found["response"]) == SMALL["encoder_layers"]
    states = module(batch)[2]
    assert module.token_mask(batch).sum(1).tolist() == states.tolist()


def test_speech_that_is_too_long_is_refused() -> None:
    network = Recogniser(size(channels=(2,), kernels=(1,), strides=(1,), residuals=(False,)), 12, 5)
    with pytest.raises(UserError, match="2501 states is longer than the 2500"):
        network.encode(torch.zeros(1, 2501, 12), torch.tensor([2501]))


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_few_utterances_are_learned_by_heart(encoder, tokenizer) -> None:
    optimizer = lambda p: torch.optim.AdamW(p, lr=0.01)  # noqa: E731
    network = size(encoder, width=24, dropout=0.0, channels=(8,), kernels=(3,), strides=(4,),
                   residuals=(False,), encoder_layers=1, decoder_layers=1, hidden=24)  # fmt: skip
    module = speech(tokenizer, encoder, size=network, filter=GFSA, optimizer=optimizer, average=1)
    batch = batch_of(tokenizer)
    steps = optimizer(module.parameters())
    for _ in range(90):
        steps.zero_grad()
        loss = module._loss(batch, module.train()(batch), "train")
        loss.backward()
        steps.step()
    found = module.eval().predict_step(batch, 0)
    assert found == list(zip(batch.names, TEXTS, strict=True))


def test_a_run_averages_scores_and_writes(tokenizer, tmp_path) -> None:
    module = speech(tokenizer, filter=GFSA, average=2)
    module.hparams.clear()  # of the command line, they are plain and loaded as weights are
    keys = set(module.state_dict())
    running = trainer(tmp_path)
    running.fit(module, datamodule=Speech(tokenizer))
    logged = {"val/score", "val/accuracy", "val/wer", "val/loss", "val/ctc", "train/attention"}
    assert logged <= set(running.callback_metrics)
    found = kept(tmp_path / "checkpoints" / "averaged")
    assert len(found) == 2
    names = {name for name, _ in module.named_parameters()}
    expected = mean_weights([one.path for one in found], names)
    last = copy.deepcopy(module.state_dict())

    results = running.test(module, datamodule=Speech(tokenizer), ckpt_path=None, verbose=False)
    for name, value in last.items():
        torch.testing.assert_close(module.state_dict()[name], value)
    best = str(tmp_path / "checkpoints" / "best.ckpt")
    results = running.test(module, datamodule=Speech(tokenizer), ckpt_path=best, verbose=False)
    for name, value in expected.items():
        torch.testing.assert_close(module.state_dict()[name], value)
    metrics = {key: value for part in results for key, value in part.items()}
    rates = {"wer", "substitutions", "insertions", "deletions", "cer", "cer_insertions", "rtf"}
    assert {f"test/{p}{n}" for p in ("", "other_") for n in rates} <= set(metrics)
    lines = (tmp_path / "hypotheses.txt").read_text().splitlines()
    assert [line.split("\t")[:2] for line in lines[1:]] == [
        ["0", "utterance-0"], ["0", "utterance-1"], ["0", "utterance-2"], ["1", "utterance-0"],
    ]  # fmt: skip
    edits = sum(int(n) for line in lines[1:4] for n in line.split("\t")[2:5])
    assert metrics["test/wer"] == pytest.approx(edits / 6)
    assert set(module.state_dict()) == keys  # neither search nor language model


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_step_in_bf16_is_finite(encoder, tokenizer) -> None:
    module = speech(tokenizer, encoder, filter=GFSA, masks=Masks(2, 1, 3, 1, 9))
    batch = batch_of(tokenizer)
    with torch.autocast("cpu", torch.bfloat16):
        loss = module._loss(batch, module(batch), "train")
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        assert len(module.eval().predict_step(batch, 0)) == 3


def test_a_language_model_learns_the_transcripts(tokenizer, tmp_path) -> None:
    sizes = LanguageSize(width=16, heads=2, depth=1, hidden=16)
    optimizer = lambda p: torch.optim.AdamW(p, lr=0.02)  # noqa: E731
    vocabulary = Vocabulary(tokenizer)
    model = LanguageModel(vocabulary.size, tokenizer, size=sizes, optimizer=optimizer)
    data = Transcripts(_Said(tokenizer), batch_size=2)
    running = trainer(tmp_path, max_epochs=30, limit_val_batches=0, callbacks=[])
    running.fit(model, datamodule=data)
    (found,) = running.test(model, datamodule=data, verbose=False)
    assert found["test/perplexity"] < 2.5  # of 13 pieces
    loaded = load(tmp_path / "language_model.pt", vocabulary)
    ids = torch.tensor([[1, *vocabulary.encode("ONE")]])
    torch.testing.assert_close(loaded(ids), model.eval().network(ids))


def test_the_mean_is_of_parameters_and_the_rest_of_the_best(tmp_path) -> None:
    weights = [{"w": torch.randn(3, 2), "moments": torch.randn(2), "n": torch.tensor(i)}
               for i in range(3)]  # fmt: skip
    paths = [tmp_path / f"{i}.ckpt" for i in range(3)]
    for one, path in zip(weights, paths, strict=True):
        torch.save({"state_dict": one}, path)
    found = mean_weights(paths, {"w"})
    literal = torch.stack([one["w"].double() for one in weights]).mean(0)
    torch.testing.assert_close(found["w"].double(), literal, atol=1e-7, rtol=1e-6)
    assert torch.equal(found["moments"], weights[0]["moments"])
    assert found["n"] == 0
    assert found["w"].dtype == torch.float32
    paths[1].write_bytes(paths[1].read_bytes()[:90])
    with pytest.raises(UserError, match=r"1\.ckpt is damaged"):
        mean_weights(paths, {"w"})
    torch.save({"state_dict": {"w": torch.zeros(9)}}, paths[1])
    with pytest.raises(UserError, match="another model"):
        mean_weights(paths, {"w"})


def test_a_resumed_run_drops_epochs_that_it_has_not_reached(tokenizer, tmp_path) -> None:
    folder = tmp_path / "checkpoints" / "averaged"
    folder.mkdir(parents=True)
    for name in ("epoch=0-score=-1.0", "epoch=7-score=2.0", "note"):
        torch.save({"state_dict": {}}, folder / f"{name}.ckpt")
    module = speech(tokenizer, average=2)
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=Speech(tokenizer))
    assert [one.epoch for one in kept(folder)] == [0]
    assert kept(folder)[0].score >= 0
    assert (folder / "note.ckpt").exists()


def test_one_epoch_is_not_averaged(tokenizer) -> None:
    assert speech(tokenizer, average=1).configure_callbacks() == []
    with pytest.raises(ValueError, match=r"model\.average"):
        BestAverage(0)
