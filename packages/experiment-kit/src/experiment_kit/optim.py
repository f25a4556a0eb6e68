"""Old names of `experiment_kit.training.optim`."""  # shim: issue 16, deleted at the end

from experiment_kit.training.optim import ConstantSchedule as Constant
from experiment_kit.training.optim import CosineSchedule as Cosine
from experiment_kit.training.optim import EpochCosineSchedule as EpochCosine
from experiment_kit.training.optim import LinearSchedule as Linear
from experiment_kit.training.optim import NoamSchedule as Noam
from experiment_kit.training.optim import OneCycleSchedule as OneCycle
from experiment_kit.training.optim import PolynomialSchedule as Polynomial
from experiment_kit.training.optim import Schedule
from experiment_kit.training.optim import build_lr_scheduler as scheduled
from experiment_kit.training.optim import param_groups_weight_decay as decay_groups

__all__ = [
    "Constant", "Cosine", "EpochCosine", "Linear", "Noam", "OneCycle", "Polynomial", "Schedule",
    "decay_groups", "scheduled",
]  # fmt: skip
