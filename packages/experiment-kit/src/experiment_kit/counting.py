"""Old names of `experiment_kit.diagnostics`."""  # shim: issue 16, deleted at the end

from experiment_kit.diagnostics.efficiency import count_macs as multiply_adds
from experiment_kit.diagnostics.efficiency import count_parameters as parameters

__all__ = ["multiply_adds", "parameters"]
