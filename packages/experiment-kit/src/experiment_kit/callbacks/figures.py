"""Old names of `experiment_kit.diagnostics.plots`."""  # shim: issue 16, deleted at the end

from experiment_kit.diagnostics.plots import plot_depth_profile as by_depth
from experiment_kit.diagnostics.plots import plot_frequency_response as by_frequency

__all__ = ["by_depth", "by_frequency"]
