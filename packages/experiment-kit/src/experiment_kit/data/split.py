"""The part of a training set that is held back to choose the epoch."""

import numpy as np

from experiment_kit.errors import UserError


def stratified(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split indices so that each class gives its share, at least one where it has two or more.

    Raises UserError where no class has two.

    >>> kept, held = stratified(np.array(["a"] * 8 + ["b"] * 2), 0.25, seed=0)
    >>> len(kept), len(held)
    (7, 3)
    """
    generator = np.random.default_rng(seed)
    held = []
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        held.append(members[:count])
    chosen = np.sort(np.concatenate(held))
    if not len(chosen):
        raise UserError(f"no class of the {len(labels)} samples has two: none can be held back")
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen
