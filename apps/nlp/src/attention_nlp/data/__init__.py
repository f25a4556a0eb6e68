"""Data sets as LightningDataModules, one file for each benchmark."""

from attention_nlp.data.base import LanguageData as LanguageData
from attention_nlp.data.codexglue import BigCloneBench as BigCloneBench
from attention_nlp.data.codexglue import Devign as Devign
from attention_nlp.data.corpora import Corpus as Corpus
from attention_nlp.data.csv_text import CsvText as CsvText
from attention_nlp.data.docs import PythonDocsCorpus as PythonDocsCorpus
from attention_nlp.data.docs import PythonDocsOrder as PythonDocsOrder
from attention_nlp.data.glue import Glue as Glue
from attention_nlp.data.pretraining import Pretraining as Pretraining
from attention_nlp.data.superglue import SuperGlue as SuperGlue
