"""What training libraries write holds what is attached: save, load into fresh objects, equal."""

from functools import partial

import lightning
import pytest
import torch
import transformers as hf
from attention_core import attach, detach, load_mechanism, save_mechanism, trainable_parameters
from attention_core.filters import GFSA
from attention_core.hosts.transformers import load
from attention_core.hosts.transformers.trainer import Trainer
from torch import Tensor, nn

from tests.hosts.transformers.models import BERT, GPT2, VOCAB

IDS = torch.randint(3, VOCAB, (8, 6), generator=torch.Generator().manual_seed(0))
DATA = [{"input_ids": ids, "labels": ids} for ids in IDS]


def build(filter=GFSA) -> nn.Module:
    torch.manual_seed(0)
    return attach(hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)), filter).eval()


def coefficients(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach() for weight in trainable_parameters(model).values()])


def fit(model: nn.Module, folder, steps: int, kind=Trainer, **options) -> nn.Module:
    arguments = hf.TrainingArguments(
        str(folder), max_steps=steps, save_steps=2, learning_rate=0.1, report_to=[], use_cpu=True,
        disable_tqdm=True, per_device_train_batch_size=4, lr_scheduler_type="constant",
    )  # fmt: skip
    kind(model, arguments, train_dataset=DATA).train(**options)
    return model.eval()


def add_lora(model: nn.Module, base: str) -> nn.Module:
    peft = pytest.importorskip("peft")
    model.name_or_path = base
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["c_attn"]))


@pytest.mark.parametrize(("kind", "wrap"), [(hf.Trainer, lambda m, base: m), (Trainer, add_lora)])
def test_a_trainer_goes_on_from_its_checkpoint(kind, wrap, tmp_path):
    pytest.importorskip("accelerate")
    detach(build()).save_pretrained(base := str(tmp_path / "base"))
    whole = fit(wrap(build(), base), tmp_path / "whole", 4, kind)
    assert coefficients(whole).abs().max() > 0.1
    fit(wrap(build(), base), tmp_path / "parts", 2, kind)
    again = fit(wrap(build(), base), tmp_path / "parts", 4, kind, resume_from_checkpoint=True)
    assert torch.equal(coefficients(again), coefficients(whole))
    loaded = load(hf.AutoModelForCausalLM, str(tmp_path / "parts" / "checkpoint-4")).eval()
    assert torch.equal(loaded(IDS).logits, whole(IDS).logits)


def test_accelerate_writes_and_reads_what_is_attached(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = build(partial(GFSA, wK=0.4))
    wrapped = accelerator.prepare(model)
    accelerator.save_state(tmp_path / "state")
    accelerator.save_model(wrapped, tmp_path / "model")
    other = accelerate.Accelerator(cpu=True)
    again = other.prepare(build())
    other.load_state(tmp_path / "state")
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    fresh = build()
    accelerate.load_checkpoint_in_model(fresh, tmp_path / "model")
    assert torch.equal(fresh(IDS).logits, model(IDS).logits)


class Module(lightning.LightningModule):
    """A module that attaches when it is made."""

    def __init__(self, filter=GFSA) -> None:
        super().__init__()
        self.model = build(filter).train() if filter else hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2))

    def training_step(self, batch, i):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.1)


def test_lightning_writes_and_reads_what_is_attached(tmp_path):
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options |= {"default_root_dir": tmp_path, "max_steps": 2, "accelerator": "cpu"}
    trainer = lightning.Trainer(**options)
    trainer.fit(module := Module(), torch.utils.data.DataLoader(DATA, 4))
    assert coefficients(module).abs().max() > 0.1
    (file,) = tmp_path.rglob("*.ckpt")
    again = Module.load_from_checkpoint(file)
    assert torch.equal(again.model.eval()(IDS).logits, module.model.eval()(IDS).logits)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*filter.wK"):
        Module.load_from_checkpoint(file, filter=None)


def test_sentence_transformers_writes_and_load_reads(tmp_path, monkeypatch):
    library = pytest.importorskip("sentence_transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    hf.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    hf.BertModel(hf.BertConfig(**BERT)).save_pretrained(tmp_path / "bert")
    model = attach(library.SentenceTransformer(str(tmp_path / "bert"), device="cpu"),
                   partial(GFSA, wK=0.7))  # fmt: skip
    texts = ["a b c", "d e"]
    expected = model.encode(texts)
    model.save(str(tmp_path / "saved"))
    again = load(library.SentenceTransformer, str(tmp_path / "saved"), device="cpu")
    assert (again.encode(texts) == expected).all()
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    folder = str(tmp_path / "saved")
    assert model.trust_remote_code is again.trust_remote_code is True  # in its Trainer
    stock = library.SentenceTransformer(folder, device="cpu", trust_remote_code=True)
    assert (stock.encode(texts) == expected).all()
    save_mechanism(model, tmp_path / "mechanism")
    stock = library.SentenceTransformer(str(tmp_path / "bert"), device="cpu")
    assert (load_mechanism(stock, tmp_path / "mechanism").encode(texts) == expected).all()
    model.add_adapter(pytest.importorskip("peft").LoraConfig(target_modules=["query"]))
    model.save(str(tmp_path / "adapted"))
    with pytest.raises(ValueError, match=r"adapter of Sent.*: attach to its base, then call load"):
        load(library.SentenceTransformer, str(tmp_path / "adapted"), device="cpu")
    stock = attach(library.SentenceTransformer(str(tmp_path / "bert"), device="cpu"), GFSA)
    stock.load_adapter(str(tmp_path / "adapted"))
    assert (stock.encode(texts) == model.encode(texts)).all()
