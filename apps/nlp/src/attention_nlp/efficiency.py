"""`python -m attention_nlp.efficiency`: what the model of a config costs, without texts."""

import torch
from experiment_kit.efficiency import Parts, main

from attention_nlp.__main__ import APP
from attention_nlp.data import LanguageData
from attention_nlp.models.logits import LogitsModel
from attention_nlp.module import LanguageModule


def example_inputs(module: LanguageModule, data: LanguageData) -> Parts:
    """Return the network of a module, and a function that makes its inputs of greatest length."""
    functions = getattr(module.model, "num_functions", 1)
    shape = (data.max_length,) if functions == 1 else (functions, data.max_length)
    return LogitsModel(module.model), lambda b: (torch.randint(data.vocab_size, (b, *shape)),)


if __name__ == "__main__":
    main(APP, example_inputs)
