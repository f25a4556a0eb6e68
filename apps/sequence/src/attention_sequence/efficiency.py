"""`python -m attention_sequence.efficiency`: what the model of a config costs, without data.

A batch is the recipe's, all of its sequences as long as they get.
"""

from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from experiment_kit.efficiency import Inputs, Parts, main
from experiment_kit.tables import load
from torch import Tensor

from attention_sequence.__main__ import APP
from attention_sequence.data import UEA, Retrieval, SequenceData
from attention_sequence.module import SequenceClassifier
from attention_sequence.series import Series


class Printed(UEA):
    """A data set of the UEA archive, of the sizes that AGF's Table 9 prints; no file is read.

    What the table does not have, such as BasicMotions, is read from its file.

    >>> data = Printed("EthanolConcentration")
    >>> data.num_features, data.num_classes, data.max_length
    (3, 4, 1751)
    """

    @cached_property
    def source(self) -> Series:
        """One series of zeros and the labels."""
        printed = {row.label.lower(): row.values for row in load("agf-table-9").rows}
        sizes = printed.get(self.problem.lower())
        if sizes is None:
            return super().source
        sample = np.zeros((sizes["features"], sizes["length"]))
        return Series([sample], np.arange(sizes["classes"]), Path(self.problem))


def parts(module: SequenceClassifier, data: SequenceData) -> Parts:
    """The network of a classifier, and sequences of the greatest length, none of it padding."""
    shape = (2, data.max_length) if isinstance(data, Retrieval) else (data.max_length,)

    def sample(*shape: int) -> Tensor:
        if isinstance(data, UEA):
            return torch.randn(*shape, data.num_features)
        return torch.randint(1, data.num_features, shape)

    def inputs(batch: int) -> Inputs:
        return sample(batch, *shape), torch.ones(batch, *shape, dtype=torch.bool)

    return module.model, inputs


if __name__ == "__main__":
    main(APP, parts, batch_size=lambda data: data.batch_size, stand_ins={UEA: Printed})
