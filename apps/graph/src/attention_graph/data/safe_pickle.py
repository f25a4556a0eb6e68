"""Untrusted pickles: containers, numbers, tensors and arrays are loaded, and nothing else."""

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from experiment_kit.errors import convert_user_errors

_ARRAYS = ("_reconstruct", "scalar")
_ALLOWED = {
    "_codecs": ("encode",),  # protocol 2 takes it for tensors
    "collections": ("OrderedDict",),
    "torch._utils": ("_rebuild_tensor", "_rebuild_tensor_v2"),
    "numpy": ("ndarray", "dtype"),
    "numpy.core.multiarray": _ARRAYS,
    "numpy._core.multiarray": _ARRAYS,
}


class _DataUnpickler(pickle.Unpickler):
    """Refuse all other classes and functions before their import, which could already run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):  # torch's unpickles anything
            return lambda content: torch.load(io.BytesIO(content), weights_only=True)
        if name not in _ALLOWED.get(module, ()):
            raise pickle.UnpicklingError(f"it needs {module}.{name}, and only data is read")
        return super().find_class(module, name)


def load_pickle(path: Path) -> Any:
    """Load a pickle that holds only containers, numbers, tensors and arrays."""
    kinds, text = (pickle.UnpicklingError, EOFError), f"{path} cannot be read as a pickle of data: "
    with convert_user_errors(*kinds, prefix=text), path.open("rb") as file:
        return _DataUnpickler(file).load()
