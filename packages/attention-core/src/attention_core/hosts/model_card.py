"""The card of a saved mechanism, the README.md that a hub of models shows."""

import inspect
import re
from pathlib import Path
from typing import Any

from torch import Tensor

CARD = """---
library_name: attention-core
tags: [{tags}]
{base}---

# {names} for {model}

{equations}

```python
from attention_core import load_mechanism

load_mechanism(model, "<this folder or repository>")  # a {model}
```

| Layer | Weight | Values |
|---|---|---|
{rows}
"""


def format_card(model: Any, parts: list[Any], tensors: dict[str, Tensor]) -> str:
    """Return the card of the parts of a model: equations, papers, base model, coefficients."""
    base = getattr(getattr(model, "config", None), "name_or_path", "")
    # a hub refuses a card whose base model is no repository, as a folder
    is_on_hub = re.fullmatch(r"([\w.-]+/)?[\w.-]+", base) and not Path(base).exists()
    rows = [
        f"| {layer} | {slot}.{name} | {values} |"
        for key, tensor in tensors.items()
        for numbers in [" ".join(f"{x:.4g}" for x in tensor.detach().flatten().tolist())]
        for values in [numbers if tensor.numel() <= 16 else tuple(tensor.shape)]
        for slot, layer, name in re.findall(r"\d+\.(tokens\.\d+|\w+)\.(\d+)\.(.+)", key)
    ]
    classes = {type(part).__name__: type(part) for part in parts}
    made = dict.fromkeys(f"`{type(part).__name__}({part.extra_repr()})`" for part in parts)
    return CARD.format(
        tags=", ".join(["attention", *(name.lower() for name in classes)]),
        base=f"base_model: {base}\n" if is_on_hub else "",
        names=" and ".join(classes),
        model=type(model).__name__,
        equations="\n\n".join([*map(_describe, classes.values()), *made]),
        rows="\n".join(rows),
    )


def _describe(part_class: type) -> str:
    """Return the first line, the equation and the source in a docstring."""
    text = inspect.getdoc(part_class) or part_class.__name__
    math = re.search(r"\.\. math::((?:.|\n )*)", text)
    equation = " ".join(math[1].split()) if math else ""
    source = re.search(r"https://\S+", text)
    lines = [text.partition("\n")[0], f"$${equation}$$" if equation else "", source and source[0]]
    return "\n\n".join(line for line in lines if line)
