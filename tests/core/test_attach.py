"""The layers that a slice selects, and the errors of attach and detach."""

import pytest
from attention_core import GFSA, SelfAttention, attach, detach
from attention_core.attach import select_layers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

index = st.none() | st.integers(-9, 9)
steps = st.none() | st.integers(-4, 4).filter(bool)


@given(start=index, stop=index, step=steps, colon=st.booleans(), depth=st.integers(0, 12))
def test_select_is_python_slicing(start, stop, step, colon, depth):
    parts = [start, stop, step] if colon or step is not None else [start, stop]
    text = ":".join("" if part is None else str(part) for part in parts)
    expected = list(range(depth))[start:stop:step]
    if expected:
        assert list(select_layers(text, depth)) == expected
    else:
        with pytest.raises(ValueError, match=f"names none of the {depth} layers"):
            select_layers(text, depth)


@pytest.mark.parametrize("layers", ["", "3", "a:", "1:2:3:4", "[1:2]", "1.5:", 372, None, [1, 2]])
def test_select_refuses_other_types_texts_and_a_step_of_zero(layers):
    error = ValueError if isinstance(layers, str) else TypeError
    with pytest.raises(error, match=r"must be a Python slice as text.*quote it in YAML"):
        select_layers(layers, 12)
    with pytest.raises(ValueError, match="'::0' has a step of 0"):
        select_layers("::0", 12)


def test_attach_lists_the_classes_that_it_knows():
    for model in (nn.Linear(2, 2), SelfAttention(4, 2)):
        with pytest.raises(ValueError, match=r"in \w+: looked for timm\.layers\."):
            attach(model, GFSA)


def test_detach_leaves_other_models_alone():
    model = SelfAttention(4, 2, filter=GFSA)
    names = [name for name, _ in model.named_modules()]
    assert detach(model) is model
    assert [name for name, _ in model.named_modules()] == names
