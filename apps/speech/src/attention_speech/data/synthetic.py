"""Synthetic speech, which needs no files: digit strings by formants."""

from pathlib import Path
from typing import Any, Literal

from experiment_kit.data.datamodule import check_at_least

from attention_speech.audio import CACHE_DIR, Utterance
from attention_speech.data.base import SpeechData
from attention_speech.data.librispeech import read_folder
from attention_speech.synthesis.corpus import make_corpus


class SyntheticDigits(SpeechData):
    """Strings of two to four digits, as FLAC files in LibriSpeech's layout.

    The splits share no speaker. Results on these data show that the code works, and nothing more.

    Args:
        num_strings: Strings to train on; a tenth as many validate, and test.
    """

    DATASETS = ("synthetic",)
    IS_GENERATED = True

    def __init__(
        self,
        dataset_name: str = "synthetic",
        data_dir: str | None = None,
        *,
        token_type: Literal["unigram", "char"] = "char",
        num_strings: int = 400,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset_name, data_dir, token_type=token_type, **kwargs)
        check_at_least(10, num_strings=num_strings)
        self.num_strings = num_strings

    @classmethod
    def find_data(cls, dataset_name: str, data_dir: str | None = None) -> Path:
        """Return the folder into which the speech is written."""
        return CACHE_DIR

    def read_utterances(self) -> dict[str, list[Utterance]]:
        """Read the corpus; write it first if it is absent."""
        corpus = make_corpus(CACHE_DIR, self.num_strings)
        return {
            split: self.use_manifests(
                {folder: read_folder(f"{corpus.name}-{folder}", corpus / folder)}
            )
            for split, folder in {"train": "train", "val": "dev", "test": "test"}.items()
        }
