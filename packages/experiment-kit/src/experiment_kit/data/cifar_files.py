"""CIFAR's binary files: records of one or two labels and 3 x 32 x 32 bytes.

https://www.cs.toronto.edu/~kriz/cifar.html
"""

from pathlib import Path

import numpy as np

from experiment_kit.errors import UserError


def read_cifar_file(path: Path, labels: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Read color planes (N, 3, 1024) and classes (N,), the last of the labels of a record.

    Raises UserError for a file that is absent, empty, truncated, or has a label out of range.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    data, record = np.fromfile(path, np.uint8), labels + 3 * 1024
    if not len(data) or len(data) % record:
        raise UserError(f"{path} has {len(data)} bytes, not one or more records of {record} bytes")
    rows = data.reshape(-1, record)
    classes = rows[:, labels - 1].astype(np.int64)
    if classes.max() >= num_classes:
        row = int(classes.argmax())
        raise UserError(
            f"{path}: record {row} has label {classes[row]}, not 0 to {num_classes - 1}"
        )
    return rows[:, labels:].reshape(-1, 3, 1024), classes
