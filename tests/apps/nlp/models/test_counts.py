"""Parameters of the networks of the tables, and those that GFSA adds, beside the printed ones."""

from typing import Any

import pytest
import torch
import transformers
from attention_core import GFSA, attach

ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
ALBERT = {"embedding_size": 128, "hidden_size": 768, "num_attention_heads": 12,
          "intermediate_size": 3072}  # fmt: skip
BASE_T5 = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
# the class, the sizes of the published weights, the count, and what GFSA adds: one w_K a head
NETWORKS = {
    "bert_base": ("BertForSequenceClassification", {}, 109_483_778, 144),
    "albert_base": ("AlbertForSequenceClassification", ALBERT, 11_685_122, 12),
    "roberta_base": ("RobertaForSequenceClassification", ROBERTA, 124_647_170, 144),
    "codebert": ("RobertaModel", ROBERTA, 124_645_632, 144),
    "gpt2": ("GPT2LMHeadModel", {}, 124_439_808, 144),
    "plbart": ("PLBartModel", {"vocab_size": 50005}, 139_220_736, 144),
    "codet5_small": ("T5ForConditionalGeneration", {"vocab_size": 32100}, 60_492_288, 96),
    "codet5_base": ("T5ForConditionalGeneration", {"vocab_size": 32100} | BASE_T5,
                    222_882_048, 288),
}  # fmt: skip
# millions in Table 1; GPT-2 is printed as 117 M, the number of its first description
PRINTED = {"bert_base": 110, "albert_base": 11, "roberta_base": 125}


def count_trained(network: torch.nn.Module) -> int:
    return sum(p.numel() for p in network.parameters() if p.requires_grad)


@pytest.mark.parametrize("backbone", NETWORKS)
def test_parameters_are_as_many_as_published(backbone: str) -> None:
    name, options, count, added = NETWORKS[backbone]
    kind: Any = getattr(transformers, name)
    with torch.device("meta"):
        network = kind(kind.config_class(**options))
        assert count_trained(network) == count
        attach(network, GFSA)
    assert count_trained(network) == count + added
    if backbone in PRINTED:
        assert abs(count / 1e6 - PRINTED[backbone]) < 1
