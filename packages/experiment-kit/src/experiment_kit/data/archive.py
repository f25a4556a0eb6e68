"""Old names of `experiment_kit.data.download`."""  # shim: issue 16, deleted at the end

from experiment_kit.data.download import extract_archive as extract

__all__ = ["extract"]
