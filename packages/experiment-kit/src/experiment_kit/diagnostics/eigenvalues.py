"""Whether the layers of a trained model smooth or sharpen, by their dominating eigenvalues.

    python -m experiment_kit.eigenvalues <app> -c overlay.yaml ... --key=value [--samples=8]

The arguments are those of `fit`. What is counted goes to `eigenvalues.json` in the folder of the
run, whose best epoch is looked at, on validation data.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from attention_core import Plain, spectral
from torch import Tensor, nn

from experiment_kit.cli import AppCLI
from experiment_kit.diagnostics.monitor import eval_mode, forward_hooks
from experiment_kit.errors import UserError, exit_on_user_error, summarize_parser_error
from experiment_kit.run import Run, describe_environment, write_atomically


class Projections(NamedTuple):
    """The weights around an attention's maps, as their Linears keep them, and what sees the maps.

    Shapes: value (H d, D), output (D, H d) for H heads; `filter` is called with A and values.
    """

    filter: nn.Module
    value: Tensor
    output: Tensor
    heads: int


def projections(model: Any) -> Iterator[Projections]:
    """Yield the projections of each attention: as `model.spectra()` does, or from qkv and proj.

    >>> from attention_core import SelfAttention
    >>> [part.value.shape for part in projections(nn.Sequential(SelfAttention(6, 2)))]
    [torch.Size([6, 6])]
    """
    if hasattr(model, "spectra"):
        yield from model.spectra()
        return
    for part in model.modules():
        if all(hasattr(part, name) for name in ("qkv", "proj", "filter")):
            heads = part.num_heads
            value = part.qkv.weight.chunk(3)[2]
            yield Projections(part.filter, value, part.proj.weight, heads)


def spectrum(value: Tensor, output: Tensor, heads: int) -> Tensor:
    r"""Return the eigenvalues of what each head makes of tokens, with a zero where it has any.

    .. math:: H_g = (W_V^g W_O^g)^\top

    has those of the small product the other way round, and D - d zeros.

    Shapes: value (H d, D), output (D, H d) -> (H, d + 1), or (H, D) where d = D.

    >>> spectrum(torch.eye(2), torch.diag(torch.tensor([3.0, 5.0])), heads=2).real.tolist()
    [[3.0, 0.0], [5.0, 0.0]]
    """
    V = value.double().unflatten(0, (heads, -1))  # (H, d, D)
    W = output.double().unflatten(1, (heads, -1)).movedim(1, 0)  # (H, D, d)
    found = torch.linalg.eigvals(V @ W)
    return found if found.shape[-1] == value.shape[-1] else nn.functional.pad(found, (0, 1))


@torch.no_grad()
def shares(model: Any, batch: Any) -> list[list[float]]:
    """Return the shares of smoothing, sharpening and tied cases of each attention, as it runs.

    A case is a head of a sample. The map is the one that the filter sees, before it does anything.
    """
    parts = {part.filter: part for part in projections(model)}
    found: list[list[float]] = []

    def see(filter: nn.Module, inputs: tuple[Any, ...], _: Any) -> None:
        A = spectral.matrix(Plain(), inputs[0]).double()
        H = spectrum(*parts[filter][1:])
        found.append(spectral.dominating_eigenvalue_shares(H, torch.linalg.eigvals(A)).tolist())

    with eval_mode(model), forward_hooks(list(parts), see):
        model.predict_step(batch, 0)
    return found


def measure(cli: AppCLI, samples: int) -> dict[str, Any]:
    """Look at the best epoch of a run, on a batch of validation data.

    Raises a UserError where it is not trained, and where its model has no attention to look into.
    """
    built = cli.parser.instantiate_classes(cli.config).fit
    built.model.load_state_dict(_weights(cli.run))
    built.data.prepare_data()
    built.data.setup("validate")
    batch = [part[:samples] for part in next(iter(built.data.val_dataloader()))]
    layers = shares(built.model, batch)
    if not layers:
        raise UserError(f"{cli.app.name}: the model has no attention with a filter, qkv and proj")
    mean = torch.tensor(layers).mean(0).tolist()
    names = ("smoothing_share", "sharpening_share", "tied_share")
    origin = getattr(built.model, "origin", None)
    return {
        "metrics": dict(zip(names, mean, strict=True)),
        "layers": [dict(zip(names, layer, strict=True)) for layer in layers],
        "samples": len(batch[0]),
        **({} if origin is None else {"origin": origin}),
        "environment": describe_environment(),
    }


def main(args: Sequence[str] | None = None) -> None:
    """Measure the model of a config, and write `eigenvalues.json` into the folder of its run.

    A mistake is one sentence and exit status 2.
    """
    from experiment_kit.launch.plan import app

    with exit_on_user_error():
        parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False, add_help=False)
        parser.add_argument("app")
        parser.add_argument("--samples", type=int, default=8)
        options, rest = parser.parse_known_args(sys.argv[1:] if args is None else args)
        if options.samples < 1:
            raise UserError("--samples must be at least 1")
        cli = AppCLI(app(options.app), ["fit", *rest], plan=True)
        try:
            report = measure(cli, options.samples)
        except ValueError as error:
            raise UserError(summarize_parser_error(str(error))) from error
        path = cli.run.folder / "eigenvalues.json"
        write_atomically(path, json.dumps(report, indent=2) + "\n")
        print(f"measured {path}: {json.dumps(report['metrics'])}")


def _weights(run: Run) -> dict[str, Tensor]:
    if run.result() is None or (path := run.judged()) is None:
        raise UserError(f"{run.folder} is not trained: run fit")
    return torch.load(path, map_location="cpu", weights_only=True)["state_dict"]


if __name__ == "__main__":
    main()
