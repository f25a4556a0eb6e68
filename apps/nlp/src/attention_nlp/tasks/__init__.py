"""Tasks: the head, the loss and the metrics of a model, one file for each kind."""

from attention_nlp.tasks.base import Batch, Task, TextInfo
from attention_nlp.tasks.causal import CausalLanguage
from attention_nlp.tasks.code import Clone, Defect, GenerateLabel
from attention_nlp.tasks.labels import Classification, Regression
from attention_nlp.tasks.masked import MaskedLanguage

__all__ = [
    "Batch",
    "CausalLanguage",
    "Classification",
    "Clone",
    "Defect",
    "GenerateLabel",
    "MaskedLanguage",
    "Regression",
    "Task",
    "TextInfo",
]
