"""The recognizer: independent of padding, mechanisms in its encoder, training, averaged weights."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from attention_core import GFSA, AttnScale
from attention_speech import checkpoint_averaging as averaging
from attention_speech.audio import Utterance
from attention_speech.data import LibriSpeech
from attention_speech.data.base import SpeechBatch
from attention_speech.decoding import BeamSearchConfig, beam_search
from attention_speech.features import SpecAugment
from experiment_kit.errors import UserError
from lightning.pytorch.callbacks import EMAWeightAveraging

from tests.apps.speech import recognizers
from tests.apps.speech.corpora import write_noise
from tests.apps.speech.recognizers import ENCODERS, make_batch, make_config, make_module


@pytest.mark.parametrize("options", [{}, {"filter": GFSA}, {"filter": AttnScale}])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_padding_changes_no_logit(encoder: str, options, tokenizer_file) -> None:
    module = make_module(tokenizer_file, encoder, network=make_config(encoder), **options).eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if ".filter." in name:
                parameter.fill_(0.7)
    batch = make_batch(tokenizer_file)
    lengths = torch.tensor([batch.lengths.max(), 3217, 1])
    waves = torch.randn(3, int(lengths[0])) * (torch.arange(lengths[0]) < lengths[:, None])
    padded = batch._replace(waves=waves, lengths=lengths)
    ctc, attention, states = module(padded)
    assert module.token_mask(padded).sum(1).tolist() == states.tolist()
    for i, (length, count) in enumerate(zip(lengths, batch.token_lengths, strict=True)):
        tokens = batch.tokens[i : i + 1, :count]
        for padding in (0, 1900):
            wave = F.pad(waves[i : i + 1, :length], (0, padding))
            one = SpeechBatch(wave, length[None], tokens, count[None], [""], [""])
            alone_ctc, alone_attention, n = module(one)
            assert n == states[i]
            torch.testing.assert_close(alone_ctc[0, :n], ctc[i, :n], atol=1e-5, rtol=1e-5)
            within = attention[i, : int(count) + 1]
            torch.testing.assert_close(alone_attention[0], within, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_few_utterances_are_learned_by_heart(encoder, tokenizer_file) -> None:
    network = make_config(encoder, dim=24, dropout=0.0, channels=(8,), kernels=(3,), strides=(4,),
                          residuals=(False,), num_encoder_layers=1, num_decoder_layers=1,
                          ffn_dim=24)  # fmt: skip
    module = make_module(tokenizer_file, encoder, network=network, filter=GFSA)
    batch = make_batch(tokenizer_file)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    for _ in range(90):
        optimizer.zero_grad()
        module.compute_loss(batch, module.train()(batch), "train/").backward()
        optimizer.step()
    found = module.eval().predict_step(batch, 0)
    assert found == list(zip(batch.names, recognizers.TEXTS, strict=True))
    states = module.model.encode(*module.features(batch.waves, batch.lengths))
    ids = beam_search(module.model, *states, BeamSearchConfig(beam_size=3))
    assert [module.tokenizer.decode(row) for row in ids] == recognizers.TEXTS


def test_a_run_averages_scores_and_writes(tokenizer_file, tmp_path) -> None:
    module = make_module(tokenizer_file, filter=GFSA, num_averaged_epochs=2)
    module.hparams.clear()  # from the command line they are plain and can be loaded as weights
    keys = set(module.state_dict())
    data = recognizers.Utterances(tokenizer_file)
    trainer = recognizers.make_trainer(tmp_path, callbacks=[EMAWeightAveraging(decay=0.5)])
    trainer.fit(module, datamodule=data)
    logged = {"val/score", "val/accuracy", "val/wer", "val/loss", "val/1_ctc", "train/attention"}
    assert logged <= set(trainer.callback_metrics)
    saved = averaging.list_saved_epochs(tmp_path / "checkpoints" / "averaged")
    assert len(saved) == 2
    names = {name for name, _ in module.named_parameters()}
    mean = averaging.average_weights([one.path for one in saved], names)
    last = copy.deepcopy(module.state_dict())
    trainer.test(module, datamodule=data, ckpt_path=None, verbose=False)
    torch.testing.assert_close({**module.state_dict()}, {**last})
    best = str(tmp_path / "checkpoints" / "best.ckpt")
    validated, one = (torch.load(x, weights_only=True)["state_dict"] for x in (best, saved[0].path))
    torch.testing.assert_close(validated, one, rtol=0, atol=0)
    results = trainer.test(module, datamodule=data, ckpt_path=best, verbose=False)
    torch.testing.assert_close({**module.state_dict()}, mean)
    module.load_state_dict(last)
    module.load_tested_weights(Path(best))  # as for predictions
    torch.testing.assert_close({**module.state_dict()}, mean)
    metrics = {key: value for part in results for key, value in part.items()}
    rates = {"wer", "substitutions", "insertions", "deletions", "cer", "cer_insertions", "rtf"}
    assert {f"test/{p}{n}" for p in ("", "1_", "2_") for n in rates} <= set(metrics)
    trainer.validate(module, datamodule=data, ckpt_path=str(saved[0].path), verbose=False)
    torch.testing.assert_close({**module.state_dict()}, one)
    lines = (tmp_path / "hypotheses.txt").read_text().splitlines()
    header, *rows = (line.split("\t") for line in lines)
    assert header[-2:] == ["reference", "hypothesis"]
    assert [row[:2] for row in rows] == [*(["0", f"utterance-{i}"] for i in range(3)),
                                         *([i, "utterance-0"] for i in "12")]  # fmt: skip
    edits = sum(int(n) for row in rows[:3] for n in row[2:5])
    assert metrics["test/wer"] == pytest.approx(edits / 6)
    assert set(module.state_dict()) == keys  # neither search nor language model


def test_speech_that_is_too_long_is_refused_by_name(tokenizer_file, tmp_path) -> None:
    network = make_config(channels=(2,), kernels=(1,), strides=(1,), residuals=(False,))
    module = make_module(tokenizer_file, network=network)
    with pytest.raises(UserError, match="2501 states is longer than the 2500"):
        module.model.encode(torch.zeros(1, 2501, 12), torch.tensor([2501]))
    data = recognizers.Utterances(tokenizer_file)
    data.utterances = {"test": [Utterance("a", (), 25.0, "", "")]}
    with pytest.raises(UserError, match="a: 25 s of speech, and the network reads less than 25 s"):
        recognizers.make_trainer(tmp_path).fit(module, datamodule=data)
    with pytest.raises(UserError, match=r"a.wav: 100 s of speech"):
        LibriSpeech("librispeech_100h").read_files([write_noise(tmp_path / "a.wav", 100.0, 1000)])


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_step_in_bf16_is_finite(encoder, tokenizer_file) -> None:
    spec_augment = SpecAugment(2, 1, 3, 1, 9)
    module = make_module(tokenizer_file, encoder, filter=GFSA, spec_augment=spec_augment)
    batch = make_batch(tokenizer_file)
    with torch.autocast("cpu", torch.bfloat16):
        loss = module.compute_loss(batch, module(batch), "train/")
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        assert len(module.eval().predict_step(batch, 0)) == 3
    for wrong in (tuple(batch), batch._replace(waves=batch.waves[..., None])):
        with pytest.raises(UserError, match=r"a SpeechBatch of waves \(B, T\)"):
            module.predict_step(wrong, 0)


def test_parameters_are_averaged_and_buffers_are_those_of_the_best(tmp_path) -> None:
    weights = [{"w": torch.randn(3, 2), "moments": torch.randn(2), "n": torch.tensor(i)}
               for i in range(3)]  # fmt: skip
    paths = [tmp_path / f"{i}.ckpt" for i in range(3)]
    for one, path in zip(weights, paths, strict=True):
        torch.save({"state_dict": one}, path)
    found = averaging.average_weights(paths, {"w"})
    mean = torch.stack([one["w"].double() for one in weights]).mean(0)
    torch.testing.assert_close(found["w"], mean.float(), atol=1e-7, rtol=1e-6)
    assert torch.equal(found["moments"], weights[0]["moments"])
    assert found["n"] == 0


@pytest.mark.parametrize("earlier", [-1.0, 9.0])  # a validation of the same epoch
def test_a_resumed_run_deletes_epochs_beyond_its_own(earlier, tokenizer_file, tmp_path) -> None:
    folder = tmp_path / "checkpoints" / "averaged"
    folder.mkdir(parents=True)
    for name in (f"epoch=0-score={earlier}", "epoch=7-score=2.0", "note"):
        torch.save({"state_dict": {}}, folder / f"{name}.ckpt")
    module = make_module(tokenizer_file, num_averaged_epochs=2)
    data = recognizers.Utterances(tokenizer_file)
    recognizers.make_trainer(tmp_path, max_epochs=1).fit(module, datamodule=data)
    (saved,) = averaging.list_saved_epochs(folder)
    assert saved.epoch == 0
    assert 0 <= saved.score <= 1 or saved.score == earlier == 9.0
    assert (folder / "note.ckpt").exists()
