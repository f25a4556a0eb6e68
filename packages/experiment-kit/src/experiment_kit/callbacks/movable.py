"""Checkpoints whose folder may be moved, copied, or mounted elsewhere before a run goes on."""

from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint

_PATHS = "best_model_path", "kth_best_model_path", "last_model_path"


class MovableCheckpoint(ModelCheckpoint):
    """Keeps what was best where its file came along; Lightning's own forgets, and overwrites it.

    Source: https://lightning.ai/docs/pytorch/stable/api/lightning.pytorch.callbacks.ModelCheckpoint.html

    >>> MovableCheckpoint(monitor="loss").state_key == ModelCheckpoint(monitor="loss").state_key
    True
    """

    @property
    def state_key(self) -> str:
        """That of Lightning's own, whose state this is."""
        return super().state_key.replace(type(self).__qualname__, ModelCheckpoint.__qualname__, 1)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what was best along, by the names of its files."""
        best = state_dict["best_model_path"]
        if best and Path(self._here(best)).exists():  # else it is the state of another run
            paths = {name: self._here(state_dict[name]) for name in _PATHS}
            kept = {self._here(path): score for path, score in state_dict["best_k_models"].items()}
            here = {"dirpath": self.dirpath, "best_k_models": kept, **paths}
            state_dict = {**state_dict, **here}
        super().load_state_dict(state_dict)

    def _here(self, path: str) -> str:
        return str(Path(self.dirpath or "", Path(path).name)) if path else ""
