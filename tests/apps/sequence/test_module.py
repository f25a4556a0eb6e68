"""The classifier: its slots, its loss, its score, and runs on sequences of tokens."""

from functools import partial

import pytest
import torch
from attention_core import AGF
from attention_core.kernels import Linformer
from attention_sequence.data import ListOps, Retrieval, UEAShapes
from attention_sequence.models import PairClassifier, TokenClassifier
from attention_sequence.module import SequenceClassifier, bind_length, break_ties
from hypothesis import given
from hypothesis import strategies as st

from tests.apps.cases import SEQUENCE

SMALL = {"dim": 8, "num_heads": 2, "num_layers": 1, "ffn_dim": 12}
LENGTH = 48
LENGTHS = {"truncate": 40, "max_length": LENGTH}
BRIEF = ("--trainer.limit_train_batches=5", "--spectral.every_n_steps=0")


def test_a_length_from_the_files_reaches_the_model(tmp_path) -> None:
    """Lightning refuses two values of one name in the hyperparameters of model and data."""
    run = SEQUENCE.fit(tmp_path, *BRIEF, "--data.init_args.max_length=null")
    state = torch.load(run.checkpoint_folder / "best.ckpt", weights_only=True)["state_dict"]
    assert state["model.embedding.position"].shape == (26, 16)


@given(
    st.integers(1, 4000).flatmap(
        lambda n: st.tuples(st.just(n), *[st.integers(0, n), st.floats(0, 1e6)] * 2)
    )
)
def test_the_loss_breaks_ties_of_accuracy_and_nothing_else(case) -> None:
    n, right, loss, other_right, other_loss = case
    mine, other = (
        break_ties(torch.tensor(hits / n).double(), torch.tensor(lost).double(), n)
        for hits, lost in ((right, loss), (other_right, other_loss))
    )
    if right != other_right:
        assert (mine > other) == (right > other_right)
    elif abs(loss - other_loss) > 1e-3 and max(loss, other_loss) < 10:
        assert (mine > other) == (loss < other_loss)


def test_a_kernel_of_one_length_has_that_of_the_data() -> None:
    for kernel in (Linformer, partial(Linformer, rank=3)):
        model = SequenceClassifier(11, 3, 7, **SMALL, network=TokenClassifier, kernel=kernel)
        assert model.model.blocks[0].attention.kernel.E.shape[-1] == 7
    for kernel in (None, partial(AGF, K=2)):
        assert bind_length(kernel, 7) is kernel
    with pytest.raises(ValueError, match="is that of the data, 7: leave out 300"):
        bind_length(partial(Linformer, length=300), 7)


@pytest.mark.parametrize(("build_data", "network", "shape"), [
    (partial(UEAShapes, "Heartbeat", max_length=23), None, (23, 61)),
    (partial(ListOps, "listops-1000", **LENGTHS), TokenClassifier, (LENGTH,)),
    (partial(Retrieval, "aan", **LENGTHS), PairClassifier, (2, LENGTH)),
])  # fmt: skip
def test_example_inputs_are_of_the_data_set(build_data, network, shape) -> None:
    data = build_data()
    sizes = (data.num_features, data.num_classes, data.max_length)
    module = SequenceClassifier(*sizes, **SMALL, kernel=AGF, network=network)
    x, mask = module.example_inputs(data, 3)
    assert x.shape == (3, *shape)
    assert mask.all()
    assert module(x, mask).shape == (3, data.num_classes)


@pytest.mark.parametrize("method", SEQUENCE.names("method"))
def test_every_method_takes_long_sequences(method: str) -> None:
    """From its overlays; AGF with the rows of its table."""
    lengths = (f"--data.init_args.{name}={length}" for name, length in LENGTHS.items())
    model = SEQUENCE.model(*lengths, data="listops", method=method)
    mask = torch.arange(LENGTH) < torch.tensor([[40], [9]])
    loss = model(torch.randint(1, 16, mask.shape) * mask, mask).logsumexp(1).sum()
    loss.backward()
    assert loss.isfinite()
    assert all(w.grad is None or w.grad.isfinite().all() for w in model.parameters())
