"""Reasons why bad-looking values of options are accepted; the first pattern that fits counts."""

import re

HUGE = "1" + "0" * 20
RUN = "--run.(data|backbone|method|profile)"
OFF = (
    "min_epochs|min_steps|limit_(val|predict)_batches|overfit_batches|num_sanity_val_steps"
    "|log_every_n_steps|gradient_clip_val|reload_dataloaders_every_n_epochs|every_n_steps"
    "|num_workers|\\w*dropout|weight_decay|eps|warmup|warmup_lr|min_lr|workers|drop_path|ema"
    "|color_jitter|hflip|crop_padding|re_prob|warp|num_(freq|time)_masks|(freq|time)_width"
    "|stats_epochs|ctc_weight|lm_weight|label_smoothing"
)
REASONS = {
    r"seed=": "the seed of the run replaces it",
    r"--seed_everything=0$": "0 is a seed",
    rf"--(\w+\.)*({OFF})=0$": "0 turns it off",
    r"--trainer\.(default_root_dir|model_registry)=": "no run uses it: the run's folder counts",
    r"--trainer\.\w+=null$": "null is Lightning's own default",
    r"--trainer\.fast_dev_run=2$": "a run of so many batches, without a result",
    rf"--trainer\.max_(epochs|steps)={HUGE}$": "no limit is too high: it resumes wherever it ends",
    r"--trainer\.max_steps=-1$": "Lightning's own word for no limit; max_epochs bounds the run",
    rf"--trainer\.limit_\w+={HUGE}$": "at most so many batches",
    rf"--trainer\.overfit_batches={HUGE}$": "at most so many batches",
    rf"--trainer\.(check_val_every_n_epoch|num_sanity_val_steps|log_every_n_steps)={HUGE}$":
        "an interval longer than the run",
    rf"--trainer\.reload_dataloaders_every_n_epochs={HUGE}$": "an interval longer than the run",
    r"--trainer\.num_sanity_val_steps=-1$": "Lightning's own word for all batches",
    rf"--trainer\.gradient_clip_val=(1\.5|{HUGE}|\.inf)$": "a norm that gradients may have",
    r"--model\.(network|kernel|tokens|reparam|schedule)=null$": "null leaves the part out",
    r"--model\.optimizer\.init_args\.\w+=null$": "null is the optimizer's own default",
    rf"--model\.(optimizer\.init_args\.)?(eps|weight_decay|lr)=(1\.5|{HUGE})$": "a number that "
        "the optimizer takes; a loss that is no number ends the run",
    r"--data\.init_args\.data_dir=(null|)$": "DATA_DIR counts then",
    r"--model\.(class_token|checkpoint|mix|global_batch|ema|model_kwargs|weights|language_model"
    r"|options|spec_augment)=(null|)$": "nothing of the kind",
    rf"--model\.schedule\.init_args\.(warmup_lr|min_lr)=(1\.5|{HUGE})$": "a rate; a loss that is "
        "no number ends the run",
    r"--model\.schedule\.init_args\.\w+=null$": "null is the schedule's own default",
    r"--data\.init_args\.(image_size|tokenizer|weights|variant)=(null|)$":
        "that of the data or model",
    r"--data\.init_args\.(train_split|score_train|drop_last)=null$": "the default of the data",
    r"--model\.float32_attention=null$": "attention in the precision of the run",
    r"--model\.dropout_mask=null$": "each application of A drops other entries",
    rf"--trainer\.min_(epochs|steps)={HUGE}$": "holds early stopping back; max_epochs ends the run",
    r"augment\.auto_augment=(null|)$": "no policy",
    rf"augment\.(color_jitter|re_count)=(1\.5|{HUGE})$": "a factor or a count without a limit",
    rf"--model\.beam_search\.(lm_weight|temperature)=(1\.5|{HUGE})$": "a factor without a limit",
    rf"--model\.num_averaged_epochs={HUGE}$": "at most the epochs there are",
    rf"--model\.schedule\.init_args\.d_model={HUGE}$": "a factor of the rate",
    rf"--data\.init_args\.batch_seconds=({HUGE}|\.inf)$": "one batch of all recordings",
    r"--data\.init_args\.max_seconds=1\.5$": "longer recordings are left out",
    r"--model\.late_drop_path=null$": "no other rate late in training",
    r"--data\.init_args\.speeds=\[\]$": "no other speed",
    r"--trainer\.precision=64$": "Lightning's own word for 64-true",
    r"--args=--run\.folder=x$": "a name of a folder",
    r"--data\.init_args\.speeds=\[1\]$": "the recording's own speed",
    r"--model\.(activation_dropout|version)=(null|)$": "that of upstream's first release",
    r"--data\.init_args\.max_length=null$": "the length of the data",
    rf"{RUN}=(abc|0|null)$": "a name of a folder",
    r"--run\.protocol=(abc|0|null|)$": "a name in the result",
    r"--run\.folder=(abc|0|null|\[1\]|\{a: 1\})$": "a name of a folder; no shell reads it",
    r"--checkpoint\.every_n_minutes=(1\.5|\.inf)$": "an interval; infinity is never",
    rf"--checkpoint\.\w+=(null|{HUGE})$": "no such checkpoint, or an interval longer than the run",
    r"--data\.init_args\.(architecture|weights)=": "the model's replaces it",
    r"--model\.beam_search\.min_decode_ratio=0$": "0 is no lower bound",
    r"--model\.schedule\.init_args\.factor=1\.5$": "a factor of the rate",
    rf"--spectral\.\w+={HUGE}$": "at most the samples of a batch, or never",
    r"--ckpt_path=(null|)$": "no checkpoint to start from",
    r"--(folder|out)=(abc|-1|1\d+|\.nan|null|\[.*\]|\{.*\}|\.\./base|/etc/passwd)$":
        "a name of a folder; no shell reads it",
    r"--(recipe|profile|protocol)=(null|)$": "no overlay, or the default of the data set",
    r"--grid=$": "no grid",
    r"--(data|backbone|method)=(null|)$": "the default of the app or the data set",
    r"--(methods|rows|columns)=null$": "all, or the default of the app",
    r"--seeds=\[1\]$": "1 is a seed",
    r"--args=$": "no arguments",
    r"--weights_only=null$": "weights are all that is ever read",
}  # fmt: skip


def find_reason(name: str, app: str = "") -> str:
    """Return the reason why a command line may be accepted, else an empty text."""
    # the smallest runs but those of sequence are on data that is made or shipped
    if app not in ("", "sequence") and "--data.init_args.data_dir=" in name:
        return "this data needs no folder"
    return next((reason for pattern, reason in REASONS.items() if re.search(pattern, name)), "")
