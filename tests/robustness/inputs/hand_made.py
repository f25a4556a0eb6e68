"""Command lines of the apps that a generator of values does not find."""

from collections.abc import Iterator

from tests.apps.cases import GRAPH, NLP, SEQUENCE, SPEECH, VISION
from tests.apps.contract import AppCase
from tests.robustness.inputs.case import Case
from tests.robustness.inputs.command_lines import make_case

LONG = "n" * 300
# arguments and a pattern of the sentence
EVERY_APP = (
    ("--seed_everything=-1", "seed"),
    ("--seed_everything=4294967296", "seed"),
    ("--data=NoSuch", "NoSuch"),
    ("--data.init_args.dataset_name=null", "dataset_name"),
    ("--model.schedule=NoSuch", "NoSuch"),
    ("--model.filter=NoSuch", "NoSuch"),
    ("--model.kernel=NoSuch", "NoSuch"),
    ("--model.kernel=attention_core.GFSA", "kernel"),
    ("--model.tokens=attention_core.GFSA", "tokens"),
    ("--model.reparam=attention_core.GFSA", "reparam"),
    ("--model.filter={class_path: attention_core.GFSA, init_args: {K: 1000000000000}}", "K"),
    ("--model.filter={class_path: attention_core.GFSA, init_args: {K: 0}}", "K"),
    ("--model.filter={class_path: attention_core.GFSA, init_args: {learn: [w7]}}", "learn"),
    ("--model.optimizer=torch.optim.LBFGS", "LBFGS"),
    ("--model.optimizer=torch.optim.SparseAdam", "SparseAdam"),
    ("--model.layers=99:", "layers"),
    ("--data.init_args.data_dir=/nowhere", "nowhere"),
    ("--trainer.max_epoch=3", "max_epoch"),
    (f"--run.folder={LONG}", "nnn"),
    ("--run.folder=/proc/x", "/proc/x"),
    ("--run.folder=", "folder"),
    ("--trainer.max_epochs=0", "max_epochs"),
    ("--trainer.limit_train_batches=0", "limit_train_batches"),
    ("--trainer.limit_test_batches=0", "limit_test_batches"),
    ("--no_such_option=3", "no_such_option"),
    ("stray", "stray"),
    ("--model", "model"),
    ("--ckpt_path=nowhere.ckpt", "nowhere.ckpt"),
    ("--ckpt_path=.", "ckpt_path"),
    ("--config=nowhere.yaml", "nowhere.yaml"),
    ("--print_config=nonsense", "nonsense"),
)
# functions and foreign classes in the place of a class: they must never be called
SLOTS = ("filter", "kernel", "tokens", "reparam", "optimizer", "schedule")
STRANGERS = (
    "{class_path: os.system, init_args: {command: touch PWNED}}",
    "{class_path: subprocess.Popen, init_args: {args: [touch, PWNED]}}",
    "{class_path: builtins.print}",
    "torch.nn.Linear",
    "torch.hub.load",
)
TRAINER = (
    ("--trainer.accumulate_grad_batches=0", "accumulate_grad_batches"),
    ("--trainer.check_val_every_n_epoch=0", "check_val_every_n_epoch"),
    ("--trainer.val_check_interval=0", "val_check_interval"),
    ("--trainer.val_check_interval=1000", "val_check_interval"),
    ("--trainer.devices=-1", "devices"),
    ("--trainer.devices=3.5", "devices"),
    ("--trainer.devices=[0,0]", "devices"),
    ("--trainer.gradient_clip_val=-1", "gradient_clip_val"),
    ("--trainer.max_time=00:00:00:01", "max_time"),
    ("--trainer.precision=64", "precision"),
    ("--trainer.accelerator=tpu", "accelerator"),
    ("--trainer.strategy=nonsense", "strategy"),
    (
        "--trainer.callbacks=[{class_path: lightning.pytorch.callbacks.EarlyStopping, "
        "init_args: {monitor: nonsense}}]",
        "nonsense",
    ),
    ("--trainer.callbacks=[{class_path: NoSuch}]", "NoSuch"),
    ("--trainer.callbacks=[{class_path: torch.nn.Linear}]", "Linear"),
    ("--trainer.logger={class_path: os.system}", "os.system|logger"),
    ("--trainer.plugins=[nonsense]", "plugins"),
    ("--trainer.profiler=nonsense", "profiler"),
)
MODELS = {
    SEQUENCE: (
        ("--model.depth=1000000000", "depth"),
        ("--model.num_layers=1000000000", "num_layers"),
        ("--model.dim=1000000000", "dim"),
        ("--model.attention_dropout=1.1", "attention_dropout"),
        ("--model.attention_dropout=-0.1", "attention_dropout"),
        ("--model.network=torch.nn.Linear", "network"),
        ("--model.network={class_path: os.system, init_args: {command: touch PWNED}}", "network"),
        ("--data.init_args.max_length=1000000000000", "max_length"),
        ("--data.init_args.max_length=0", "max_length"),
        ("--model.optimizer.init_args.lr=0", "lr"),
        ("--model.optimizer.init_args.betas=[1.0,0.9]", "beta"),
        ("--model.optimizer.init_args.betas=[0.9]", "betas"),
        ("--data.init_args.dataset_name=../../etc/passwd", "dataset_name|passwd"),
        ("--data=attention_vision.data.Digits", "Digits|data"),
        ("--data=torch.nn.Linear", "Linear"),
        ("--data=os.system", "os.system"),
    ),
    GRAPH: (
        ("--model.attention_dropout=1.5", "attention_dropout"),
        ("--model.max_hops=50", "max_hops"),
        ("--data.init_args.count=3", "count"),
        ("--data=attention_graph.data.Zinc", "dataset_name"),
        ("--model.kernel=attention_core.AGF", "kernel"),
    ),
    NLP: (
        ("--model.options={num_hidden_layers: 0}", "num_hidden_layers"),
        ("--model.options={nonsense: 3}", "nonsense"),
        ("--model.options={hidden_size: 7}", "hidden_size|heads"),
        ("--model.options=[1]", "options"),
        ("--model.task=NoSuch", "NoSuch"),
        ("--model.task=torch.nn.Linear", "task"),
        ("--model.weights=no-such/folder", "no-such/folder"),
        ("--model.architecture=elmo", "elmo"),
        ("--data.init_args.max_length=600", "max_length"),
        ("--model.position=nonsense", "position"),
    ),
    SPEECH: (
        ("--model.network={heads: 0}", "heads"),
        ("--model.network.num_heads=0", "num_heads"),
        ("--model.network.channels=[4]", "channels"),
        ("--model.network.kernels=[0,0]", "kernels"),
        ("--model.network.strides=[0,2]", "strides"),
        ("--data.init_args.speeds=[0.0]", "speeds"),
        ("--data.init_args.speeds=[]", "speeds"),
        ("--data.init_args.engine=nonsense", "engine"),
        ("--model.language_model=nowhere.ckpt", "nowhere.ckpt"),
        ("--model.language_model=.", "language_model"),
    ),
    VISION: (
        ("--model.global_batch=0", "global_batch"),
        ("--model.loss=torch.nn.Linear", "loss"),
        ("--model.backbone=nonsense", "nonsense"),
        ("--model.backbone=resnet18", "resnet18"),
        ("--model.model_kwargs={depth: 0}", "depth"),
        ("--model.model_kwargs={nonsense: 1}", "nonsense"),
        ("--model.model_kwargs={embed_dim: 25}", "embed_dim|heads"),
        ("--model.model_kwargs={patch_size: 0}", "patch_size"),
        ("--model.checkpoint=nowhere.pth", "nowhere.pth"),
        ("--data.init_args.image_size=7", "image_size|patch"),
        ("--data.init_args.augment.scale=[1.0,0.1]", "scale"),
        ("--data.init_args.augment.interpolation=nonsense", "interpolation"),
        ("--model.mix={alpha: -1}", "mix|alpha"),
    ),
}


def list_cases() -> Iterator[Case]:
    for app, own in MODELS.items():
        for argument, mentions in (*EVERY_APP, *own):
            yield make_case(app, [argument], mentions=mentions)
        for slot in SLOTS:
            for stranger in STRANGERS:
                yield make_case(app, [f"--model.{slot}={stranger}"], mentions=slot)
        yield from list_untrained(app)
    for argument, mentions in TRAINER:
        yield make_case(SEQUENCE, [argument], mentions=mentions)


def list_untrained(app: AppCase) -> Iterator[Case]:
    """Subcommands that need a run, and subcommands that do not exist."""
    for subcommand in ("validate", "test", "predict"):
        yield make_case(app, [], subcommand, mentions="is not trained")
    for subcommand in ("", "nonsense", "fi"):
        yield make_case(app, [], subcommand, mentions="subcommand|fit")
