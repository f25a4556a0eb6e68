"""Old names of `experiment_kit.papers`."""  # shim: issue 16, deleted at the end

from experiment_kit.papers.values import load_table as load

__all__ = ["load"]
