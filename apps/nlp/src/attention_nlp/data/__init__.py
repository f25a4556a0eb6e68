"""Data sets as LightningDataModules, one file for each benchmark."""

from attention_nlp.data.base import LanguageData
from attention_nlp.data.codexglue import BigCloneBench, Devign
from attention_nlp.data.corpora import Corpus
from attention_nlp.data.csv_text import CsvText
from attention_nlp.data.docs import PythonDocsCorpus, PythonDocsOrder
from attention_nlp.data.glue import Glue
from attention_nlp.data.pretraining import Pretraining
from attention_nlp.data.superglue import SuperGlue

__all__ = [
    "BigCloneBench",
    "Corpus",
    "CsvText",
    "Devign",
    "Glue",
    "LanguageData",
    "Pretraining",
    "PythonDocsCorpus",
    "PythonDocsOrder",
    "SuperGlue",
]
