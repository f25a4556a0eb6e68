"""Audio files of all formats, files that only look like audio, and manifests of both."""

import io
import itertools
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from attention_speech import audio
from attention_speech.audio import SAMPLE_RATE, Transcript, build_manifest, probe_audio, read_audio
from attention_speech.mp3 import iterate_frames
from experiment_kit.errors import UserError

from tests.apps.speech.corpora import make_tone, write_audio, write_bytes

pytestmark = pytest.mark.usefixtures("workdir")


N = 16123  # samples of the files below, odd
WAVE = 0.3 * np.sin(np.arange(N) / 20) + 0.01 * np.random.default_rng(0).normal(size=N)
DAMAGED, JOINED = "damaged or truncated audio", "several audio files or streams in one"
LONGER = "more samples than its header counts"
CANCEL = "2 channels that cancel each other when averaged"
SCALE = "samples above 100, or below a step of 16 bits: scale them to 1"
UNKNOWN = "no audio file of a known format"


def encode(kind: str, subtype: str, wave: np.ndarray = WAVE, **options) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, wave, SAMPLE_RATE, format=kind, subtype=subtype, **options)
    return buffer.getvalue()


def put(content: bytes, layout: str, **sizes: int) -> bytes:
    """Write sizes behind the names of chunks, `at<n>` at place n."""
    new = bytearray(content)
    for name, size in sizes.items():
        place = int(name[2:]) if name[:2] == "at" else new.find(name.encode()) + len(name)
        struct.pack_into(layout, new, place, size)
    return bytes(new)


def encode_mp3(wave: np.ndarray = WAVE, mode: str = "VARIABLE") -> bytes:
    return encode("MP3", "MPEG_LAYER_III", wave, bitrate_mode=mode, compression_level=0.5)


def strip_table(mp3: bytes) -> bytes:
    return mp3[next(itertools.islice(iterate_frames(mp3), 1, None)).start :]


def wrap_mp3(mp3: bytes) -> bytes:
    form = struct.pack("<8sIHHIIHHHH10x", b"WAVEfmt ", 30, 0x55, 1, 16000, 4000, 1, 0, 12, 1)
    sizes = [struct.pack("<I", size) for size in (50 + len(mp3), len(mp3))]
    return b"RIFF" + sizes[0] + form + b"data" + sizes[1] + mp3


KINDS = ("WAV", "RF64", "W64", "FLAC", "AU", "CAF", "AIFF", "NIST")
PCM = {kind: encode(kind, "PCM_16") for kind in KINDS}
WAV, RF64, W64, FLAC, AU, CAF, AIFF, NIST = PCM.values()
MP3, OGG, IMA = encode_mp3(), encode("OGG", "VORBIS"), encode("WAV", "IMA_ADPCM")
ID3V1, ID3V2 = b"TAG" + bytes(125), b"ID3\3\0\0\0\0\2\1" + bytes(257)
FORMATS = {
    "WAV": "PCM_U8 PCM_16 PCM_24 PCM_32 FLOAT DOUBLE ULAW ALAW MS_ADPCM GSM610 G721_32",
    "WAVEX": "PCM_16 PCM_24", "RF64": "PCM_16 PCM_24 FLOAT", "W64": "PCM_16 FLOAT GSM610",
    "FLAC": "PCM_S8 PCM_16 PCM_24", "OGG": "VORBIS OPUS", "MP3": "MPEG_LAYER_III",
    "AIFF": "PCM_16 PCM_24 FLOAT GSM610 DWVW_16", "AU": "PCM_16 PCM_24 FLOAT ULAW",
    "CAF": "PCM_16 FLOAT ALAC_16", "NIST": "PCM_16 ULAW", "VOC": "PCM_16",
}  # fmt: skip
STRANGE: dict[str, tuple[bytes, int | str]] = {
    f"{kind} {subtype}": (encode(kind, subtype), N)
    for kind, subtypes in FORMATS.items()
    for subtype in subtypes.split()
} | {
    "WAV IMA_ADPCM, whose own length is that of its blocks": (IMA, 16272),
    "WAV IMA_ADPCM that tells its own length": (put(IMA, "<I", at48=N), N),
    "WAV IMA_ADPCM of two channels": (encode("WAV", "IMA_ADPCM", np.ones((5001, 2)) / 9), 5085),
    "WAV that tells no length": (put(encode("WAV", "FLOAT", WAVE[:9]), "<I", at44=0), 9),
    "WAV that tells an old length": (put(encode("WAV", "FLOAT"), "<I", at44=N - 9), N),
    "WAV with samples behind its size": (put(WAV, "<I", data=N), LONGER),
    "WAV with a raw tag": (WAV + ID3V2 + bytes(range(256)) * 32, N),
    "AU G721": (encode("AU", "G721_32"), 16200),
    "mp3 of constant rate": (encode_mp3(mode="CONSTANT"), N),
    "mp3 with tags": (ID3V2 + MP3 + ID3V1, N),
    "mp3 of a stream": (strip_table(MP3), 30 * 576 - 529),
    "mp3 within WAV": (wrap_mp3(strip_table(MP3)), 30 * 576 - 529),
    "mp3 within WAV, cut": (wrap_mp3(strip_table(MP3))[:-999], DAMAGED),
    "mp3, joined, with tags": ((ID3V2 + MP3 + ID3V1) * 3, 3 * N),
    "mp3, joined streams": (strip_table(MP3) * 2, 60 * 576 - 529),
    "mp3 of two channels, joined": (encode_mp3(np.stack([WAVE, WAVE / 2], 1)) * 2, 2 * N),
    "mp3, mono and stereo": (MP3 + encode_mp3(np.stack([WAVE, WAVE / 2], 1)),
                             "several sample rates or numbers of channels in one file"),
    "mp3, the first half": (MP3[: len(MP3) // 2], DAMAGED),
    **{f"WAV of a pipe, {size:#x}": (put(WAV, "<I", RIFF=size, data=size), N)
       for size in (0, 0x7FFFF000, 0x80000000, 0xFFFFFFFF)},
    "WAV of a pipe, GSM": (put(encode("WAV", "GSM610"), "<I", RIFF=0, data=0), N),
    "AU of a pipe, 0": (put(AU, ">I", at8=0), N),
    "AU of a pipe": (put(AU, ">I", at8=0xFFFFFFFF), N),
    "RF64 of a pipe": (put(RF64, "<Q", at20=0, at28=0), N),
    "CAF of a pipe": (put(CAF, ">q", data=-1), N),
    "AIFF of a pipe": (put(AIFF, ">I", FORM=0, SSND=0, at22=0), N),
    "FLAC of a pipe": (FLAC[:21] + bytes([FLAC[21] & 0xF0]) + bytes(4) + FLAC[26:], N),
    "WAV named .RAW": (WAV, "a header, which .raw has not: name it by its format"),
    "WAV with a tail": (WAV + ID3V1, N),
    "WAV with a wrong size of the whole": (put(WAV, "<I", RIFF=len(WAV)), N),
    "FLAC with tags": (ID3V2 + FLAC + ID3V1, N),
    "one sample": (encode("WAV", "PCM_16", WAVE[:1]), 1),
    "silence in stereo": (encode("WAV", "PCM_16", np.zeros((9, 2))), 9),
    "six channels": (encode("WAV", "PCM_16", np.random.default_rng(0).normal(size=(9, 6)) / 9), 9),
    "opposite channels": (encode("WAV", "PCM_16", np.stack([WAVE, -WAVE], 1)), CANCEL),
    "nearly opposite ones": (encode("FLAC", "PCM_16", np.stack([WAVE, -0.95 * WAVE], 1)), CANCEL),
    **{f"{kind}, joined": (one * 2, JOINED) for kind, one in (PCM | {"Ogg": OGG}).items()},
    **{f"{kind}, cut": (one[:-999], DAMAGED) for kind, one in (PCM | {"Ogg": OGG}).items()},
    "VOC, cut": (encode("VOC", "PCM_16")[:-999], DAMAGED),
    **{f"{kind}, whose cut shows nowhere": (encode(kind, "PCM_16"), UNKNOWN)
       for kind in ("PAF", "IRCAM", "AVR", "SVX", "PVF")},
    "FLAC, damaged in its middle": (FLAC[:4000] + bytes(64) + FLAC[4064:], DAMAGED),
    "not finite": (encode("WAV", "FLOAT", np.array([0, np.nan])), "samples that are not finite"),
    **{f"16 bits as {kind}": (encode("WAV", kind, scale * WAVE), SCALE)
       for kind, scale in (("FLOAT", 9000), ("PCM_32", 2**-16))},
    "no samples": (encode("WAV", "PCM_16", WAVE[:0]), "no samples"),
    "no bytes": (b"", "an empty file"),
    "m4a": (b"\0\0\0\x20ftypM4A " + bytes(400), UNKNOWN),
}  # fmt: skip


@pytest.mark.parametrize("case", STRANGE)
def test_files_of_all_kinds_are_read_whole_or_named(case) -> None:
    content, expected = STRANGE[case]
    path = write_bytes("a.RAW" if ".RAW" in case else "a.audio", content)
    if isinstance(expected, int):
        wave, rate = read_audio(path)
        assert len(wave) == round(probe_audio(path).seconds * rate) == expected
        if expected == N:
            assert np.corrcoef(wave, WAVE)[0, 1] > 0.95
        return
    for reader in (probe_audio, read_audio):
        with pytest.raises(audio.UnusableAudio, match=f"^{path}: {expected}$") as caught:
            reader(path)
        assert caught.value.reason == expected
        assert isinstance(caught.value, UserError)


def test_the_end_of_an_mp3_that_was_cut_within_a_frame_is_read() -> None:
    assert 0.3 < probe_audio(write_bytes("a.mp3", MP3[len(MP3) // 2 :])).seconds < N / SAMPLE_RATE


def test_stereo_is_averaged_and_eight_kilohertz_are_resampled() -> None:
    left, right = make_tone(), make_tone(hertz=700.0)
    path = write_audio("a.wav", np.stack([left, right], 1), subtype="FLOAT")
    assert probe_audio(path) == (0.2, SAMPLE_RATE, 2)
    wave, rate = read_audio(path)
    assert rate == SAMPLE_RATE
    assert wave.dtype == torch.float32
    np.testing.assert_allclose(wave.numpy(), (left + right) / 2, atol=1e-6)
    slow = audio.load_audio(write_audio("b.wav", make_tone(rate=8000), rate=8000))
    assert slow.shape == (3200,)
    np.testing.assert_allclose(slow[200:-200].numpy(), make_tone()[200:-200], atol=0.01)
    assert audio.resample_wave(torch.zeros(441), 44100).shape == (160,)
    assert audio.resample_wave(torch.zeros(22250), 22254).shape == (16000,)  # not 15998
    assert "as if of 22250 Hz" in str(audio.group_conversions({"a": audio.AudioInfo(1, 22254, 1)}))


def write_mixed_corpus() -> tuple[dict[str, Path], dict[str, Transcript]]:
    files = {
        "a-1": write_audio("a-1.flac"),
        "a-2": write_audio("a-2.flac", make_tone(rate=8000), rate=8000),
        "a-3": write_audio("a-3.wav", np.zeros((1600, 2))),
        "b-1": write_bytes("b-1.flac", b"text"),
        "b-4": write_audio("b-4.flac"),
        "c-1": write_audio("c-1.flac"),
    }
    texts = {name: Transcript("ONE TWO", name[0]) for name in files if name != "c-1"}
    texts["b-4"] = Transcript(" ", "b")
    return files, texts | {f"d-{i}": Transcript("LOST", "d") for i in range(5)}


def test_unusable_utterances_are_counted_named_and_left_out() -> None:
    files, texts = write_mixed_corpus()
    with pytest.raises(UserError, match=r"no utterance that can be used; .*no audio file .* \(b-1"):
        build_manifest("tiny", {"b-1": files["b-1"]}, texts)
    found = build_manifest("tiny", files, texts)
    assert [one.name for one in found.utterances] == ["a-1", "a-2", "a-3"]
    assert found.utterances[0] == ("a-1", (str(Path("a-1.flac").absolute()),), 0.2, "ONE TWO", "a")
    assert sorted(found.notes) == [
        "1 utterance with 2 channels, averaged (a-3)",
        "1 utterance with 8000 Hz, resampled to 16000 Hz (a-2)",
        "1 utterance with an empty transcript (b-4): left out",
        "1 utterance with audio but no transcript (c-1): left out",
        "1 utterance with no audio file of a known format (b-1): left out",
        "5 utterances with a transcript but no audio (d-0, d-1, d-2, ...): left out",
    ]


def test_files_are_read_once_until_one_changes(monkeypatch) -> None:
    files, texts = write_mixed_corpus()
    found, probed = build_manifest("tiny", files, texts), []

    def count_probe(path):
        probed.append(path.name)
        return probe_audio(path)

    monkeypatch.setattr("attention_speech.audio.probe_audio", count_probe)
    assert build_manifest("tiny", files, texts) == found
    assert not probed
    assert len([path for path in audio.CACHE_DIR.iterdir() if path.is_dir()]) == 1
    write_audio("b-1.flac")
    changed = build_manifest("tiny", files, texts)
    assert [one.name for one in changed.utterances] == ["a-1", "a-2", "a-3", "b-1"]
    assert len(probed) == 5
    files["a-1"].unlink()  # a deleted file is noticed too
    assert "no such file" in " ".join(build_manifest("tiny", files, texts).notes)
