"""The networks: independent of padding, equal to speechbrain's, as large as the paper's."""

import copy

import pytest
import torch
from attention_speech.models.recognizer import Recognizer, RecognizerConfig
from speechbrain.lobes.models.transformer.Branchformer import BranchformerEncoderLayer

from tests.apps.speech.recognizers import ENCODERS, make_config

PAPER_BRANCHFORMER = RecognizerConfig(
    "branchformer", 512, 8, 18, 6, 2048, 3072, 31, (64, 32), (3, 3), (2, 2), (False, False)
)


@torch.no_grad()
@pytest.mark.parametrize("encoder", ENCODERS)
def test_states_without_padding_are_those_of_speechbrain(encoder: str) -> None:
    x, lengths = torch.randn(2, 67, 12), torch.tensor([67, 67])
    ours = Recognizer(make_config(encoder), 12, 5).eval()
    theirs = copy.deepcopy(ours)
    if encoder == "branchformer":
        for layer in theirs.transformer.encoder.layers:
            layer.__class__ = BranchformerEncoderLayer
    states = theirs.transformer.encode(theirs.front_end(x), torch.ones(2))
    torch.testing.assert_close(ours.encode(x, lengths)[0], states, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "count", "printed"),
    [(RecognizerConfig(), 71_525_968, "71.5"), (PAPER_BRANCHFORMER, 109_845_680, "109.8")],
    ids=ENCODERS,
)
def test_parameters_are_as_many_as_the_paper_prints(config, count, printed) -> None:
    with torch.device("meta"):
        network = Recognizer(config, 80, 5000)
    assert sum(p.numel() for p in network.parameters()) == count
    assert f"{count / 1e6:.1f}" == printed
