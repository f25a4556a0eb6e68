"""Speech recognition with every attention mechanism."""

from experiment_kit.app import AppSpec

from attention_speech.audio import load_audio
from attention_speech.data import DOWNLOADS, SpeechData
from attention_speech.module import SpeechRecognizer
from attention_speech.synthesis.formants import synthesize_digits

__version__ = "0.1.0"

APP = AppSpec(
    name="speech",
    model=SpeechRecognizer,
    data=SpeechData,
    monitor="val/score",
    links={"vocab_size": "vocab_size", "tokenizer_file": "tokenizer_file"},
    hashed_files=("model.language_model", "data.init_args.tokenizer"),
    downloads=DOWNLOADS,
    make_inputs=synthesize_digits,
    read_input=load_audio,
)
