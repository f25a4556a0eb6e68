"""Old names of `experiment_kit.training.lightning_patches`."""  # shim: issue 16

from experiment_kit.training.lightning_patches import AtomicCheckpointIO as AtomicCheckpointIO
