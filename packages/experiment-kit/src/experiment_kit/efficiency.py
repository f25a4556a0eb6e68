"""Old names of `experiment_kit.diagnostics.efficiency`."""  # shim: issue 16, deleted at the end

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from experiment_kit.cli import AppCLI
from experiment_kit.diagnostics.efficiency import PRECISIONS, Inputs, measure_efficiency
from experiment_kit.diagnostics.efficiency import count_macs as multiply_adds
from experiment_kit.diagnostics.efficiency import count_parameters as parameters
from experiment_kit.errors import exit_on_user_error
from experiment_kit.run import write_atomically

Parts = tuple[Any, Callable[[int], Inputs]]
__all__ = ["Inputs", "Parts", "main", "multiply_adds", "parameters"]


def main(
    app: Any, parts: Any, args: Any = None, batch_size: Any = None, stand_ins: Any = None
) -> None:
    """Use `python -m experiment_kit efficiency`."""
    with exit_on_user_error():
        parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False, add_help=False)
        parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
        parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0])
        parser.add_argument("--batch_size", type=int)
        parser.add_argument("--repeats", type=int, default=10)
        options, rest = parser.parse_known_args(sys.argv[1:] if args is None else args)
        cli = AppCLI(replace(app, shape_only_data=stand_ins or {}), ["fit", *rest])
        model, data = cli.build_model_and_data(shape_only=True)
        size = options.batch_size or (batch_size(data) if batch_size else None)
        network, inputs = parts(model, data)
        report = measure_efficiency(
            network, inputs, options.device, size, options.precision, options.repeats
        )
        path = cli.run.folder / "efficiency.json"
        write_atomically(path, json.dumps(report, indent=2) + "\n")
        print(f"measured {path}: {json.dumps(report['metrics'])}")
