"""Spare the small runs of the apps the drawing of figures, a fifth of their time."""

import pytest
from torch.utils.tensorboard import SummaryWriter


@pytest.fixture(scope="module", autouse=True)
def skip_figures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SummaryWriter, "add_figure", lambda *_, **__: None)
        yield
