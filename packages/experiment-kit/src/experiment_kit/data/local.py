"""Old names of `experiment_kit.data.paths`."""  # shim: issue 16, deleted at the end

from experiment_kit.data.paths import find_data_root as data_folder
from experiment_kit.data.paths import find_dataset as locate

__all__ = ["data_folder", "locate"]
