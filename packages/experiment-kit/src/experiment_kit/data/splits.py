"""Validation samples that are held out of a training set."""

import numpy as np

from experiment_kit.errors import UserError


def split_stratified(
    labels: np.ndarray, val_fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices for training and for validation, with the fraction taken of each class.

    A class of two samples or more gives at least one. Raises UserError if every class has one.
    """
    generator = np.random.default_rng(seed)
    held_out = []
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        count = min(max(round(val_fraction * len(members)), 1), len(members) - 1)
        held_out.append(members[:count])
    val = np.sort(np.concatenate(held_out))
    if not len(val):
        raise UserError(
            f"no class of the {len(labels)} samples has two: none can be held out for validation"
        )
    return np.setdiff1d(np.arange(len(labels)), val), val
