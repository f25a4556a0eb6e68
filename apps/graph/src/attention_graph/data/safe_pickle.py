"""Untrusted pickles: only containers, numbers, tensors and arrays are loaded."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiment_kit.errors import UserError

_BUILTINS = {
    "list", "dict", "tuple", "set", "frozenset", "int", "float", "complex", "bool", "str", "bytes",
    "bytearray", "slice",
}  # fmt: skip
_ALLOWED = (
    {
        ("collections", "OrderedDict"),
        ("torch._utils", "_rebuild_tensor"),
        ("torch._utils", "_rebuild_tensor_v2"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
    }
    | {("builtins", name) for name in _BUILTINS}
    | {("__builtin__", name) for name in _BUILTINS}
)


class _DataUnpickler(pickle.Unpickler):
    """Refuse all other classes and functions before their import, which could already run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):  # torch's unpickles anything
            return lambda content: torch.load(io.BytesIO(content), weights_only=True)
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it needs {module}.{name}, and only data is read")
        return super().find_class(module, name)


def load_pickle(path: Path) -> Any:
    """Load a pickle that holds only containers, numbers, tensors and arrays.

    Raises UserError for a pickle that needs more, and for a file that is none.
    """
    try:
        with path.open("rb") as file:
            return _DataUnpickler(file).load()
    except MemoryError:
        raise
    except Exception as error:  # whatever a damaged pickle makes the reader raise
        text = " ".join(str(error).split())[:200]
        raise UserError(f"{path} cannot be read as a pickle of data: {text}") from error


def load_row_numbers(path: Path) -> dict[str, np.ndarray]:
    """Load arrays by name that `torch.save` wrote, as in the split_dict.pt of OGB.

    Raises UserError for a file with any other content.
    """
    rebuild: Any = np.empty(0).__reduce__()[0]
    kinds = (type(np.dtype(kind)) for kind in ("int64", "int32"))
    arrays: list[Any] = [np.ndarray, np.dtype, *kinds]
    # numpy 2 moved the function, and files of both versions exist
    arrays += [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    try:
        with torch.serialization.safe_globals(arrays):
            found = torch.load(path, weights_only=True)
        return {str(name): np.asarray(rows, np.int64).ravel() for name, rows in found.items()}
    except Exception as error:  # whatever a damaged archive makes the reader raise
        text = " ".join(str(error).split())[:200]
        raise UserError(f"{path} cannot be read as arrays of row numbers: {text}") from error
