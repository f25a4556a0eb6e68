"""Data sets as LightningDataModules, one file a source."""

from attention_nlp.data.base import LanguageData
from attention_nlp.data.code import BigCloneBench, Devign
from attention_nlp.data.corpora import Corpus
from attention_nlp.data.docs import Docs
from attention_nlp.data.glue import Glue
from attention_nlp.data.pretraining import Pretraining
from attention_nlp.data.superglue import SuperGlue

__all__ = [
    "BigCloneBench",
    "Corpus",
    "Devign",
    "Docs",
    "Glue",
    "LanguageData",
    "Pretraining",
    "SuperGlue",
]
