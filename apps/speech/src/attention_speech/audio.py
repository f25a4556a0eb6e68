"""Audio files of any format of libsndfile, and their match with transcripts."""

import hashlib
import io
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

import torch
from experiment_kit.data.folders import make_cache
from experiment_kit.errors import UserError
from rich.console import Console
from rich.progress import track
from torch import Tensor

from attention_speech.mp3 import split_mp3

CACHE_DIR = Path("runs/data/speech")
SAMPLE_RATE = 16_000  # Hz, of every wave that `load_audio` returns
_BLOCK = 1 << 16  # frames in memory at a time
_OPEN_SIZE = 0x7F000000  # sizes and lengths above this are marks of a pipe
_MAX_BLOCK = 4096  # frames that a codec of blocks adds at most
_CANCELED = 0.01  # a share of the channels' power: less is left after averaging
# beginnings of formats, each of which may be joined with files of its kind
_BEGINS = [re.compile(begin, re.DOTALL) for begin in (
    rb"RIFF....WAVE", rb"RF64....WAVE", rb"fLaC[\0\x80]\0\0\"", rb"OggS\0\x02", rb"\.snd\0\0\0",
    rb"FORM....AIF[FC]", rb"NIST_1A\n", rb"riff\x2e\x91\xcf\x11", rb"caff\0\x01",
    rb"Creative Voice File\x1a",
)]  # fmt: skip
# a cut is noticed in these formats
_FORMATS = ("WAV", "WAVEX", "RF64", "W64", "FLAC", "MP3", "OGG", "AIFF", "AU", "CAF", "VOC", "NIST",
            "RAW")  # fmt: skip
_VERSION = 7  # the manifest's content; another version goes into another folder
# the format of an4's .raw files, which have no header
_RAW = dict(format="RAW", subtype="PCM_16", endian="BIG", samplerate=SAMPLE_RATE, channels=1)


class UnusableAudio(UserError):
    """Error for a file without usable speech; `reason` is the message without the path."""

    # a worker of a DataLoader re-raises an error from its text alone
    def __init__(self, path: str | Path, reason: str = "") -> None:
        super().__init__(f"{path}: {reason}" if reason else str(path))
        self.reason = reason


class AudioInfo(NamedTuple):
    """Length, sample rate and number of channels of an audio file."""

    seconds: float
    sample_rate: int
    channels: int


def probe_audio(path: str | Path) -> AudioInfo:
    """Return the length, rate and channels of a file, after reading it to its end in blocks."""
    blocks = ((len(wave), *layout) for wave, *layout in _read_blocks(path))
    lengths, rates, channels = zip(*blocks, strict=True)
    return AudioInfo(sum(lengths) / rates[0], rates[0], channels[0])


def read_audio(path: str | Path) -> tuple[Tensor, int]:
    """Return the wave (T,) of a file, float32 in [-1, 1], averaged over channels, and its rate.

    Raises UnusableAudio for a file that is no audio, has no samples, is shorter than it says, is
    several files in one, or has samples that are not finite, far from 1, or cancel by channels.
    """
    waves, rates, _ = zip(*_read_blocks(path), strict=True)
    return torch.cat(waves), rates[0]


def _read_blocks(path: str | Path) -> Iterator[tuple[Tensor, int, int]]:
    """Yield the wave in blocks, with its rate and the number of channels."""
    power = mixed = peak = 0.0
    count = channels = 0
    with _open_audio(path) as files:
        for file in files:
            found, said, channels = 0, _count_frames(file), file.channels
            while len(samples := file.read(min(_BLOCK, said - found), "float32", always_2d=True)):
                found += len(samples)
                block = torch.from_numpy(samples)  # (T, channels)
                wave = block.mean(dim=1)
                if not wave.isfinite().all():
                    raise UnusableAudio(path, "samples that are not finite")
                peak = max(peak, float(block.abs().max()))
                if channels > 1:
                    power += float(block.double().square().mean(dim=1).sum())
                    mixed += float(wave.double().square().sum())
                yield wave, file.samplerate, channels
            count += found
            if count and (found < said < _OPEN_SIZE or _is_cut(file)):
                raise UnusableAudio(path, "damaged or truncated audio")
    if not count:
        raise UnusableAudio(path, "no samples")
    if peak > 100 or (0 < peak < 2**-15 and file.subtype == "PCM_32"):
        raise UnusableAudio(path, "samples above 100, or below a step of 16 bits: scale them to 1")
    if mixed < _CANCELED * power:
        raise UnusableAudio(path, f"{channels} channels that cancel each other when averaged")


def _count_frames(file: Any) -> int:
    """Return the frames that the header tells; libsndfile adds those that fill up a block."""
    if file.format == "NIST":
        count = re.search(rb"sample_count -i (\d+)", Path(file.name).read_bytes()[:1024])
        return int(count[1]) if count else file.frames
    if cut := re.search(r"does not match value from 'ds64' chunk of (\d+)", file.extra_info):
        return int(cut[1])
    told = re.search(r"(?m)^fact : \d+\s+frames +: (\d+)", file.extra_info)
    if not told or file.subtype.startswith(("PCM", "FLOAT", "DOUBLE", "ULAW", "ALAW")):
        return file.frames
    said = int(told[1])  # libsndfile itself divides that of stereo IMA ADPCM by the channels
    is_told = 0 < said < file.frames < said + _MAX_BLOCK and said != file.frames // file.channels
    return said if is_told else file.frames


def _is_cut(file: Any) -> bool:
    """Return True where libsndfile noted that there is less than the header says."""
    pattern = r"(?m)^ *(?:data|riff|SSND|Data Size) *: (\d+) \(should be (\d+)"
    sizes = (map(int, found) for found in re.findall(pattern, file.extra_info))
    is_cut = any(there < said < _OPEN_SIZE for said, there in sizes)
    return is_cut or "truncated file" in file.extra_info


def resample_wave(wave: Tensor, sample_rate: int) -> Tensor:
    """Resample a wave (..., T) to 16 kHz with a windowed sinc."""
    if sample_rate == SAMPLE_RATE:
        return wave
    from torchaudio.functional import resample

    return resample(wave, _round_rate(sample_rate), SAMPLE_RATE)


def _round_rate(rate: int) -> int:
    """Return a rate, or the nearest multiple of 25 Hz where the sinc would take gigabytes."""
    is_huge = rate * SAMPLE_RATE > 10_000_000 * math.gcd(rate, SAMPLE_RATE) ** 2
    return round(rate / 25) * 25 if is_huge else rate


def load_audio(path: str | Path) -> Tensor:
    """Return the wave (T,) of a file at 16 kHz; raises UnusableAudio as `read_audio` does."""
    return resample_wave(*read_audio(path))


@contextmanager
def _open_audio(path: str | Path) -> Iterator[Any]:
    """Open the recordings of a file, to be read once from the beginning: all formats allow it."""
    import soundfile

    source = _check_header(path)
    options: dict[str, Any] = _RAW if Path(path).suffix.lower() == ".raw" else {}
    try:
        files = [soundfile.SoundFile(source, **options)]
        if files[0].format not in _FORMATS:
            raise UnusableAudio(path, "no audio file of a known format")
        if files[0].subtype == "MPEG_LAYER_III":  # also within WAV
            if _is_cut(files[0]):
                raise UnusableAudio(path, "damaged or truncated audio")
            parts = split_mp3(Path(path).read_bytes())
            files = [soundfile.SoundFile(io.BytesIO(part)) for part in parts]
    except soundfile.LibsndfileError as error:
        raise UnusableAudio(path, "no audio file of a known format") from error
    except ValueError as error:
        raise UnusableAudio(path, str(error)) from error
    try:
        for file in files:
            file.seekable = lambda: False
        yield files
    except soundfile.LibsndfileError as error:  # the header is valid, the samples are not
        raise UnusableAudio(path, "damaged or truncated audio") from error


def _check_header(path: str | Path) -> str | io.BytesIO:
    """Return a file, or its content with sizes in its header where a pipe left them open."""
    if not Path(path).is_file():
        raise UnusableAudio(path, "no such file")
    if not Path(path).stat().st_size:
        raise UnusableAudio(path, "an empty file")
    with Path(path).open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        begin = next(filter(None, (begin.match(data) for begin in _BEGINS)), None)
        if begin and Path(path).suffix.lower() == ".raw":
            raise UnusableAudio(path, "a header, which .raw has not: name it by its format")
        if begin and begin.re.search(data, begin.end()):
            raise UnusableAudio(path, "several audio files or streams in one")
        if data[:4] == b"OggS" and _is_cut_ogg(data):
            raise UnusableAudio(path, "damaged or truncated audio")
        if (place := _find_open_size(path, data)) is None:
            return str(path)
        content = bytearray(data)
    content[:4] = content[:4].replace(b"RF64", b"RIFF")
    if content[:4] == b"caff":
        content[place : place + 8] = struct.pack(">q", len(content) - place - 8)
    else:  # libsndfile reads to the end
        content[place : place + 4] = b"\xff\xff\xff\xff"
    return io.BytesIO(content)


def _is_cut_ogg(data: mmap) -> bool:
    """Return True where the last page ends behind the end of the file."""
    table = data.rfind(b"OggS") + 27  # after the header of the page: the sizes of its segments
    count = data[table - 1] if table < len(data) else 255
    return table + count + sum(data[table : table + count]) > len(data)


def _find_open_size(path: str | Path, data: mmap) -> int | None:
    """Return where a pipe left the size of WAV, AU or CAF open, else None; refuse a short one."""
    if data[:4] == b".snd" and (not any(data[8:12]) or data[8] == 0x7F):
        return 8
    if data[:4] not in (b"RIFF", b"RF64", b"caff"):
        return None
    place, layout = (8, ">4sq") if data[:4] == b"caff" else (12, "<4sI")
    while 0 <= place + struct.calcsize(layout) < len(data):
        name, size = struct.unpack_from(layout, data, place)
        end = place + struct.calcsize(layout) + size + (size % 2 if layout[0] == "<" else 0)
        if name == b"data":
            is_open = size == 0 and data[4:8] != struct.pack("<I", len(data) - 8)
            is_open |= data[:4] == b"RF64" and data[28:36] in (bytes(8), b"\xff" * 8)
            if is_open or size == -1:
                return place + 4
            # a recorder went on after it wrote the size: what follows has no name of a chunk or tag
            is_named = re.match(rb"(?s).?(ID3|[ -~]{4})", data[end - size % 2 : end + 4])
            follows = end + 4096 < len(data) < end + struct.unpack_from(layout, data, end)[1]
            if follows and not is_named:
                raise UnusableAudio(path, "more samples than its header counts")
            break
        place = end
    return None


class Transcript(NamedTuple):
    """The words of an utterance, in upper case, and its speaker."""

    text: str
    speaker: str


class Utterance(NamedTuple):
    """Transcribed speech: the files of `path` one after the other, with silence between them."""

    name: str
    path: tuple[str, ...]
    seconds: float
    text: str
    speaker: str


class Manifest(NamedTuple):
    """The usable utterances, sorted by name, and notes on those left out or converted."""

    utterances: list[Utterance]
    notes: list[str]


def build_manifest(
    name: str, audio: Mapping[str, Path], transcripts: Mapping[str, Transcript]
) -> Manifest:
    """Match audio files with transcripts; both are keyed by utterance name.

    Left out, counted and named in the notes: audio without transcript and the reverse, empty
    transcripts, and files that `probe_audio` refuses. Notes also count files of another sample
    rate and with several channels. Files are read by as many threads as torch has, and read again
    only when their size or date changes: the manifest is cached in `runs/data/speech`.
    """

    def write_utterances(new: Path) -> None:
        (new / "utterances.json").write_text(json.dumps(_probe_files(name, audio, transcripts)))

    folder = CACHE_DIR / f"{name}-{_hash_inputs(audio, transcripts)}"
    path = make_cache(folder, write_utterances) / "utterances.json"
    content = json.loads(path.read_text())
    notes = [
        f"{describe_utterances(kind, names)}{suffix}"
        for group, suffix in (("left out", ": left out"), ("converted", ""))
        for kind, names in content[group].items()
        if names
    ]
    if not content["utterances"]:
        raise UserError("; ".join([f"{name} has no utterance that can be used", *notes]))
    rows = content["utterances"]  # a quoted text of a csv file may have line breaks
    return Manifest([Utterance(key, (file,), seconds, " ".join(text.split()), speaker)
                     for key, file, seconds, text, speaker in rows], notes)  # fmt: skip


def _hash_inputs(audio: Mapping[str, Path], transcripts: Mapping[str, Transcript]) -> str:
    """Hash names, paths, sizes and dates of the files, and all transcripts, to 16 hex digits."""
    digest = hashlib.sha256(str(_VERSION).encode())
    for key, path in sorted(audio.items()):
        stat = path.stat() if path.exists() else None  # a symbolic link may be broken
        row = (key, str(path.absolute()), stat and (stat.st_size, stat.st_mtime_ns))
        digest.update(f"{row}\n".encode())
    for pair in sorted(transcripts.items()):
        digest.update(f"{pair}\n".encode())
    return digest.hexdigest()[:16]


def _probe_files(
    name: str, audio: Mapping[str, Path], transcripts: Mapping[str, Transcript]
) -> dict[str, Any]:
    """Return rows of utterances, and the names of those left out and converted by reason."""
    both = {key: audio[key] for key in sorted(audio.keys() & transcripts.keys())}
    rows: list[tuple[str, str, float, str, str]] = []
    left_out, infos = dict[str, list[str]](), dict[str, AudioInfo]()
    console = Console(stderr=True)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # libsndfile frees Python's lock
        results = pool.map(_probe_or_reason, both.values())
        silent = not console.is_terminal
        bar = track(results, f"{name}: audio", len(both), console=console, disable=silent)
        for key, info in zip(both, bar, strict=True):
            text, speaker = transcripts[key]
            if isinstance(info, str) or not text.strip():
                reason = info if isinstance(info, str) else "an empty transcript"
                left_out.setdefault(reason, []).append(key)
                continue
            rows.append((key, str(both[key].absolute()), info.seconds, text, speaker))
            infos[key] = info
    left_out["audio but no transcript"] = sorted(audio.keys() - transcripts.keys())
    left_out["a transcript but no audio"] = sorted(transcripts.keys() - audio.keys())
    return {"utterances": rows, "left out": left_out, "converted": group_conversions(infos)}


def group_conversions(infos: Mapping[str, AudioInfo]) -> dict[str, list[str]]:
    """Return the names of files that are resampled or averaged, by what is done."""
    converted: dict[str, list[str]] = {}
    for name, info in infos.items():
        if (rate := info.sample_rate) != SAMPLE_RATE:
            near = f" as if of {_round_rate(rate)} Hz" * (rate != _round_rate(rate))
            kind = f"{rate} Hz, resampled to {SAMPLE_RATE} Hz{near}"
            converted.setdefault(kind, []).append(name)
        if info.channels > 1:
            converted.setdefault(f"{info.channels} channels, averaged", []).append(name)
    return converted


def _probe_or_reason(path: Path) -> AudioInfo | str:
    try:
        return probe_audio(path)
    except UnusableAudio as error:
        return error.reason


def describe_utterances(kind: str, names: Sequence[str]) -> str:
    """Return the number of utterances of a kind, and the first names."""
    first = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
    return f"{len(names)} utterance{'s' * (len(names) != 1)} with {kind} ({first})"
