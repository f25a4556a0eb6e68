"""Old names of `experiment_kit.diagnostics`."""  # shim: issue 16, deleted at the end

from experiment_kit.diagnostics.memory import allocated, held

__all__ = ["allocated", "held"]
