"""Old names of `experiment_kit.diagnostics`."""  # shim: issue 16, deleted at the end

from experiment_kit.diagnostics.efficiency import peak_allocated_mib as allocated
from experiment_kit.diagnostics.efficiency import tensor_mib as held

__all__ = ["allocated", "held"]
