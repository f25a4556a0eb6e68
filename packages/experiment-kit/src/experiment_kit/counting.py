"""Old names of `experiment_kit.diagnostics`."""  # shim: issue 16, deleted at the end

from experiment_kit.diagnostics.flops import Inputs, multiply_adds, parameters

__all__ = ["Inputs", "multiply_adds", "parameters"]
