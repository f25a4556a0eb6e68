"""Checkpoints that are whole or absent, and that no one unpickles."""

import io
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from experiment_kit.errors import UserError
from experiment_kit.runs import write_atomically

_SHARDED = "sharded"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write beside the target, sync, rename; load weights and plain containers alone.

    Lightning's own transaction writes to the system's temporary folder first: on another
    filesystem its move is a copy, which a crash can cut short.
    """

    def __init__(self, sharded: bool = False) -> None:
        self.sharded = sharded

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Serialise in memory, then write atomically."""
        buffer = io.BytesIO()
        torch.save({**checkpoint, _SHARDED: self.sharded}, buffer)
        write_atomically(Path(path), buffer.getvalue())

    def load_checkpoint(
        self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Load without running what a file says."""
        return torch.load(path, map_location=map_location, weights_only=True)


def gather(strategy: Any) -> bool:
    """Whether a strategy's config shards the weights; if so, let it save them as one file.

    Its default is a folder of shards, which is not replaced at once, and which no other strategy
    reads.

    >>> gather("ddp")
    False
    """
    init_args: Any = getattr(strategy, "init_args", {})
    if "save_distributed_checkpoint" not in init_args:
        return False
    init_args.save_distributed_checkpoint = False
    return True


def check_sharded(path: str | Path) -> None:
    """Refuse to train sharded weights on from a checkpoint of whole ones.

    Lightning numbers the optimiser's states by the model's parameters where it shards, and by the
    optimiser's groups elsewhere: it would mix them up. The other way round is in order.
    """
    if not torch.load(path, map_location="cpu", weights_only=True, mmap=True).get(_SHARDED):
        raise UserError(
            f"{path} was not trained with sharded weights: go on with the strategy it was trained"
            " with, or start anew in another run.folder"
        )
