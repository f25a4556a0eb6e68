"""The callback of transformers' Trainer logs the measures of a diagnosis by step."""

import pytest
import torch
import transformers as hf
from attention_core import diagnose
from attention_core.diagnosis.trainer_callback import SmoothingCallback

from tests.hosts.transformers.models import BERT, T5, VOCAB


def test_the_callback_logs_what_diagnose_measures(tmp_path) -> None:
    torch.manual_seed(0)
    model = hf.BertForSequenceClassification(hf.BertConfig(**BERT))
    ids = torch.randint(3, VOCAB, (6, 5))
    mask = torch.ones_like(ids)
    mask[3, 3:] = 0
    data = [{"input_ids": i, "attention_mask": m, "labels": 0}
            for i, m in zip(ids, mask, strict=True)]  # fmt: skip
    arguments = hf.TrainingArguments(
        str(tmp_path), max_steps=2, eval_strategy="steps", eval_steps=1, report_to=[],
        per_device_eval_batch_size=6, use_cpu=True, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = hf.Trainer(model, arguments, train_dataset=data, eval_dataset=data)
    callback = SmoothingCallback(trainer, samples=4)
    trainer.add_callback(callback)
    trainer.train()
    assert [*callback.reports] == [1, 2]
    batch = {"input_ids": ids[:4], "attention_mask": mask[:4]}
    cosines = diagnose(model, batch, measures="light").curve("token_cosine")
    names = [f"smoothing/token_cosine/{name}" for name in ("embedding", "layer_0", "layer_1")]
    (logged,) = [entry for entry in trainer.state.log_history
                 if entry["step"] == 2 and names[0] in entry]  # fmt: skip
    assert [logged[name] for name in names] == pytest.approx(cosines)
    t5 = hf.T5ForConditionalGeneration(hf.T5Config(**T5))  # whose decoder reads the labels
    loader = torch.utils.data.DataLoader([{"input_ids": i, "labels": i} for i in ids], 6)
    drawn = torch.get_rng_state()
    callback.on_evaluate(arguments, trainer.state, None, t5, loader)
    assert torch.equal(torch.get_rng_state(), drawn)  # training goes on as without
    assert {layer.stack for layer in callback.reports[2].layers} == {"encoder", "decoder"}
