"""Write small speech data sets in the layouts that the readers expect."""

from pathlib import Path

import numpy as np
import soundfile
from attention_speech.audio import SAMPLE_RATE
from attention_speech.data import SpeechData
from sentencepiece import SentencePieceTrainer

SMALL = {"batch_seconds": 6.0, "max_seconds": 5.0, "token_type": "char"}
DIGITS = "ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE ZERO"


def make_tone(seconds: float = 0.2, rate: int = SAMPLE_RATE, hertz: float = 440.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def write_audio(
    path: str | Path, wave: np.ndarray | None = None, rate: int = SAMPLE_RATE, **options
) -> Path:
    """Write a wave, or else a tone."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, make_tone() if wave is None else wave, rate, **options)
    return Path(path)


def write_noise(path: Path, seconds: float = 1.0, rate: int = SAMPLE_RATE) -> Path:
    rng = np.random.default_rng(len(str(path)))
    return write_audio(path, 0.1 * rng.standard_normal((round(seconds * rate), 1)), rate)


def write_bytes(path: str | Path, content: bytes) -> Path:
    Path(path).write_bytes(content)
    return Path(path)


def write_folder(folder: Path, rows: dict[str, tuple[float, str]]) -> Path:
    """Write a split of LibriSpeech: seconds and text by <speaker>-<chapter>-<number>."""
    for name, (seconds, text) in rows.items():
        reader, chapter, _ = name.split("-")
        place = folder / reader / chapter
        write_noise(place / f"{name}.flac", seconds)
        with (place / f"{reader}-{chapter}.trans.txt").open("a") as file:
            file.write(f"{name} {text}\n")
    return folder


def write_librispeech(root: Path = Path("data")) -> Path:
    rows = {f"{who}-7-{i:04d}": (0.6 + 0.2 * i, f"HE SAW {'A' * (i + 1)} B")
            for who in (19, 26) for i in range(5)}  # fmt: skip
    for number, split in enumerate(("train-clean-100", "dev-clean", "test-clean", "test-other")):
        few = dict(list(rows.items())[: 10 if number == 0 else 1 + number])
        write_folder(root / "LibriSpeech" / split, few)
    return root


def read_data(data: SpeechData) -> SpeechData:
    data.setup("fit")
    return data


def train_as_speechbrain(folder: Path) -> Path:
    """Train a tokenizer with the options of speechbrain's recipe for LibriSpeech."""
    path = folder / "tokenizer.ckpt"
    with path.open("wb") as file:
        SentencePieceTrainer.Train(
            sentence_iterator=iter([DIGITS, DIGITS]), model_writer=file, vocab_size=22, bos_id=1,
            eos_id=2, pad_id=-1, unk_id=0, model_type="unigram", minloglevel=2,
        )  # fmt: skip
    return path
