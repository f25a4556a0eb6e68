"""The apps under contract: one case each, the smallest network on data that needs no download."""

import json

import attention_graph
import attention_nlp
import attention_sequence
import attention_speech
import attention_vision

from tests.apps.contract import AppCase

COMMON_MISTAKES = {"--model.layers=9:": "layers '9:' names none of the"}  # our networks; attach

GRAPH = AppCase(
    app=attention_graph.APP,
    tiny=(
        *("--model.dim=16", "--model.ffn_dim=16"),
        *("--model.num_heads=2", "--model.num_layers=2"),
        *("--data.init_args.count=60", "--data.init_args.batch_size=8"),
    ),
    metrics=frozenset({"test/mae", "last/mae", "train/mae", "val/mae"}),
    mistakes=COMMON_MISTAKES | {
        # the kit's own, of one app
        "--model.weight_decay=-1": "model.weight_decay must be",
        "--model.num_heads=3": "dim must be a multiple of num_heads, got 16 and 3",
        "--model.max_hops=50": "model.max_hops must be from 1 to model.hop_rows, 40, got 50",
        "--data.init_args.count=3": "data.count must be at least 10, got 3",
        "--data.init_args.max_nodes=20000": "data.max_nodes must be a whole number from 1 to 16383",
        "--model.dropout=1.5": "model.dropout must be a number",
        "--model.num_layers=0": "model.num_layers must be a whole number",
        "--data.init_args.dataset_name=qm9": "must be one of synthetic, got 'qm9'",
        "--model.kernel=attention_core.AGF": "other kernels have no logits: leave it out",
    },
    scale=frozenset({"max_steps", "check_val_every_n_epoch", "precision", "batch_size"}),
)  # fmt: skip

NLP = AppCase(
    app=attention_nlp.APP,
    tiny=(
        "--model.options="
        + json.dumps({"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 3}),
        *("--data.init_args.batch_size=4", "--data.init_args.val_fraction=0.02"),
    ),
    metrics=frozenset({"test/accuracy", "last/accuracy", "test/matthews"}),
    mistakes={
        "--model.weights=no-such/folder": "neither a local folder .* nor reachable on the hub",
        "--model.architecture=elmo": "model.architecture must be one of bert",
        "--model.options={{hidden_dropout_prob: 2}}": "dropout probability has to be between",
        "--model.task=torch.nn.Linear": "model.task: .*Task",
        "--model.task=attention_nlp.tasks.base.Task": "Task is abstract",
        "--data.init_args.vocab_size=0": "data.vocab_size must be at least 16, got 0",
        "--data.init_args.max_length=600": "max_length 600 is longer than the 512 positions of",
        "--data.init_args.dataset_name=wnli": "data.dataset_name must be one of docs, got 'wnli'",
    },
    scale=frozenset({"precision", "batch_size", "callbacks"}),
)  # fmt: skip

SEQUENCE = AppCase(
    app=attention_sequence.APP,
    beside={
        "lra": {"data": "listops_drawn"},
        "lra_published": {"data": "listops_drawn"},
        "lra_dual": {"data": "retrieval"},
    },
    tiny=("--model.dim=16", "--model.ffn_dim=16", "--model.num_heads=2"),
    metrics=frozenset({"test/accuracy", "test/loss", "val/score"}),
    mistakes={
        "--data.init_args.batch_size=0": "data.batch_size must be at least 1, got 0",
        "--data.init_args.val_fraction=1.5": r"data.val_fraction must be in \(0, 1\), got 1.5",
        "--data.init_args.protocol=null": "data.protocol, val_fraction, batch_size, num_workers",
        "--model.num_heads=7": "dim must be a multiple of num_heads, got 16 and 7",
        "--data.init_args.dataset_name=Nothing": "no Nothing/Nothing_TRAIN.ts in this package",
        "--data.init_args.data_dir=/nowhere": "data.data_dir or DATA_DIR: /nowhere is not a fold",
    },
    host_arguments=frozenset({"dim", "num_heads", "length"}),
    scale=frozenset({"check_val_every_n_epoch", "val_check_interval", "schedule", "max_steps",
                     "batch_size"}),
)  # fmt: skip

SPEECH = AppCase(
    app=attention_speech.APP,
    tiny=(
        *("--model.network.dim=16", "--model.network.num_heads=2", "--model.network.ffn_dim=16"),
        *("--model.network.num_encoder_layers=2", "--model.network.num_decoder_layers=1"),
        *("--model.network.csgu_dim=16", "--model.network.channels=[4,4]"),
        *("--model.fbank.n_mels=20", "--model.num_averaged_epochs=1"),
        *("--model.beam_search.max_decode_ratio=0.2", "--data.init_args.num_strings=20"),
        "--data.init_args.max_batch_size=3",
    ),
    metrics=frozenset({"test/wer", "test/cer", "test/rtf", "test/deletions", "val/score"}),
    mistakes={
        "--trainer.precision=64-true": "trainer.precision: speechbrain's decoder takes 32-true",
        "--model.network.num_heads=3": "dim must be even and a multiple of num_heads, got 16 and",
        "--model.ctc_weight=1.0": "model.ctc_weight must be a number from 0 to below 1, got 1.0",
        "--data.init_args.max_seconds=99": "data.batch_seconds must be at least",
        "--model.network.dropout=1": "model.network.dropout must be a number from 0 to below 1",
        "--model.fbank.stats_epochs=-1": "model.fbank.stats_epochs must be",
        "--model.fbank.window_ms=32": "model.fbank.window_ms must be",
        "--model.fbank.n_mels=300": "model.fbank.n_mels must be",
        "--model.spec_augment.warp=-1": "model.spec_augment.warp must be .* of at least 0, got -1",
        "--model.beam_search.temperature=.nan": "model.beam_search.temperature must be",
        "--model.beam_search.ctc_weight=1.0": "model.beam_search",
        "--model.beam_search.max_decode_ratio=0.0": "beam_search.min_decode_ratio and max",
        "--data.init_args.num_strings=3": "data.num_strings must be at least 10",
        "--data.init_args.num_tokens=3": "data.num_tokens must be at least 5, got 3",
        "--model.kernel=attention_core.AGF": "has no place for a kernel",
        "--model.reparam=attention_core.EigenSpectrum": "has no place for a reparam",
    },
    scale=frozenset({"batch_seconds", "max_batch_size", "beam_size"}),
)

VISION = AppCase(
    app=attention_vision.APP,
    tiny=(
        "--model.model_kwargs="
        + json.dumps({"depth": 2, "embed_dim": 24, "num_heads": 3, "patch_size": 8}),
        *("--data.init_args.image_size=32", "--data.init_args.batch_size=4"),
        "--data.init_args.val_fraction=0.02",
        "--model.global_batch=null",
    ),
    tiny_of={"late_class_token": ("--model.class_token.after=1",)},
    unfit={"distillation": "needs a model with a distillation token: no VisionTransformer"},
    metrics=frozenset({"test/accuracy", "test/loss", "last/accuracy"}),
    mistakes=COMMON_MISTAKES | {
        "--model.checkpoint={file}": "is not a readable checkpoint",
        "--model.global_batch=0": "model.global_batch must be a whole number",
        "--model.loss=torch.nn.Linear": "model.loss: .*ImageLoss",
        "--model.mix={{smoothing: 1.5}}": "model.mix.smoothing must be a number",
        "--model.model_kwargs={{patch_size: 0}}": "model.model_kwargs of deit_tiny",
    },
    host_arguments=frozenset({"dim", "num_heads", "eps", "num_classes"}),
    scale=frozenset({"global_batch", "batch_size", "num_workers", "score_train"}),
)  # fmt: skip

CASES = [GRAPH, NLP, SEQUENCE, SPEECH, VISION]
