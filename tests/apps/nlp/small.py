"""Small networks of every architecture, the properties of their data, and files of rows."""

import json
from pathlib import Path

from attention_core import Plain
from attention_nlp.tasks import TextInfo

TINY = {
    "bert": {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 3},
    "gpt2": {"n_layer": 2, "n_embd": 24, "n_head": 3, "n_positions": 64},
    "t5": {"num_layers": 2, "d_model": 24, "num_heads": 3, "d_kv": 8, "d_ff": 20},
    "bart": {"encoder_layers": 2, "decoder_layers": 2, "d_model": 24, "encoder_ffn_dim": 20,
             "decoder_ffn_dim": 20, "encoder_attention_heads": 3, "decoder_attention_heads": 3},
}  # fmt: skip
TINY |= {"albert": TINY["bert"] | {"embedding_size": 16, "intermediate_size": 20},
         "roberta": TINY["bert"], "plbart": TINY["bart"]}  # fmt: skip
CRAMMED = {"num_layers": 3, "dim": 12, "num_heads": 3, "ffn_dim": 10, "num_positions": 24}
INFO = TextInfo(num_labels=3, vocab_size=53, max_length=16, pad_token_id=1, eos_token_id=2)
CRAMMED_INFO = INFO._replace(pad_token_id=0)
SLOTS = {"filter": Plain, "layers": ":"}


def write_rows(path: Path, rows: list) -> Path:
    """Write one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path
