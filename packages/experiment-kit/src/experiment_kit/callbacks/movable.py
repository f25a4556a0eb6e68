"""Checkpoints whose folder may be moved, copied, or mounted elsewhere before a run goes on."""

from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint

_PATHS = "best_model_path", "kth_best_model_path", "last_model_path"


class MovableCheckpoint(ModelCheckpoint):
    """Lightning's, which in another folder than before forgets what was best, and overwrites it.

    Source: https://lightning.ai/docs/pytorch/stable/api/lightning.pytorch.callbacks.ModelCheckpoint.html

    >>> moved = MovableCheckpoint("/there")
    >>> state = MovableCheckpoint("/here").state_dict() | {"best_model_path": "/here/best.ckpt"}
    >>> moved.load_state_dict(state)
    >>> moved.best_model_path
    '/there/best.ckpt'
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what was best along, by the names of its files."""
        paths = {name: self._here(state_dict[name]) for name in _PATHS}
        best = {self._here(path): score for path, score in state_dict["best_k_models"].items()}
        moved = {"dirpath": self.dirpath, "best_k_models": best, **paths}
        super().load_state_dict({**state_dict, **moved})

    def _here(self, path: str) -> str:
        return str(Path(self.dirpath or "", Path(path).name)) if path else ""
