"""Checkpoints that are whole or absent, and that no one unpickles."""

import io
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from experiment_kit.runs import write_atomically


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write beside the target, sync, rename; load weights and plain containers alone.

    Lightning's own transaction writes to the system's temporary folder first: on another
    filesystem its move is a copy, which a crash can cut short.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Serialise in memory, then write atomically."""
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_atomically(Path(path), buffer.getvalue())

    def load_checkpoint(
        self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Load without running what a file says."""
        return torch.load(path, map_location=map_location, weights_only=True)
