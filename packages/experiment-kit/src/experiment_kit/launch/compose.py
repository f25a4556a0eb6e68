"""Old names of `launch.overlays`."""  # shim: issue 16, deleted at the end

from experiment_kit.launch.overlays import list_overlays as names
from experiment_kit.launch.overlays import overlay_arguments as arguments

__all__ = ["arguments", "names"]
