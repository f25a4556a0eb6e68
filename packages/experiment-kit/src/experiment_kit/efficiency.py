"""Old names of `experiment_kit.diagnostics.efficiency`."""  # shim: issue 16, deleted at the end

from experiment_kit.diagnostics.efficiency import (
    WARM_UP,
    Inputs,
    Parts,
    main,
    multiply_adds,
    parameters,
    speed,
)

__all__ = ["WARM_UP", "Inputs", "Parts", "main", "multiply_adds", "parameters", "speed"]
