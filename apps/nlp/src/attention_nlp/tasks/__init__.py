"""Tasks: the head, the loss and the metrics of a model, one file for each kind."""

from attention_nlp.tasks.base import Batch as Batch
from attention_nlp.tasks.base import Task as Task
from attention_nlp.tasks.base import TextInfo as TextInfo
from attention_nlp.tasks.causal import CausalLanguage as CausalLanguage
from attention_nlp.tasks.code import Clone as Clone
from attention_nlp.tasks.code import Defect as Defect
from attention_nlp.tasks.code import GenerateLabel as GenerateLabel
from attention_nlp.tasks.labels import Classification as Classification
from attention_nlp.tasks.labels import Regression as Regression
from attention_nlp.tasks.masked import MaskedLanguage as MaskedLanguage
