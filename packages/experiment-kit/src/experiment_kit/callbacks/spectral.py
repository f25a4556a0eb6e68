"""Old names of `experiment_kit.diagnostics.monitor`."""  # shim: issue 16, deleted at the end

from experiment_kit.diagnostics.monitor import measure_spectra as observe

__all__ = ["observe"]
