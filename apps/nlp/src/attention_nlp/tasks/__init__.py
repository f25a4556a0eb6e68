"""What a model is asked, one file a kind of question."""

from attention_nlp.tasks.base import Batch, Facts, Task, forward
from attention_nlp.tasks.causal import CausalLanguage
from attention_nlp.tasks.code import Clone, Defect
from attention_nlp.tasks.generation import GenerateLabel
from attention_nlp.tasks.labels import Classification, Regression
from attention_nlp.tasks.masked import MaskedLanguage

__all__ = [
    "Batch",
    "CausalLanguage",
    "Classification",
    "Clone",
    "Defect",
    "Facts",
    "GenerateLabel",
    "MaskedLanguage",
    "Regression",
    "Task",
    "forward",
]
