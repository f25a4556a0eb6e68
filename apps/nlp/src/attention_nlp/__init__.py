"""Language: GLUE, causal language modelling, code and pre-training."""

from experiment_kit.app import AppSpec

from attention_nlp.data import LanguageData
from attention_nlp.data.docs import make_paragraphs
from attention_nlp.data.downloads import DOWNLOADS
from attention_nlp.data.files import read_samples
from attention_nlp.module import LanguageModule

__version__ = "0.1.0"

APP = AppSpec(
    name="nlp",
    model=LanguageModule,
    data=LanguageData,
    monitor="val/score",
    links={name: name for name in LanguageData.LINKED_SIZES},
    links_from_model={
        f"model.{name}": f"data.init_args.{name}" for name in ("architecture", "weights")
    },
    hashed_files=("model.weights", "data.init_args.tokenizer"),
    start_option="model.weights",
    score_last=True,
    downloads=DOWNLOADS,
    make_inputs=make_paragraphs,
    read_input=read_samples,
)
