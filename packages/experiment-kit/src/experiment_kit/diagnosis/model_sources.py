"""The models that are diagnosed: of timm, of transformers, a checkpoint, or that of a run."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiment_kit.data.download import fetch_hub_files, find_packaged_weights
from experiment_kit.diagnosis.checkpoint_files import load_weights
from experiment_kit.diagnosis.model_inputs import Kind, draw_token_ids, find_samples
from experiment_kit.errors import UserError, convert_user_errors, import_library
from experiment_kit.launch.obtain import list_timm_files, name_model_files
from experiment_kit.launch.plan import load_app, load_best_epoch, read_run

FORMS = (
    "timm:NAME, hf:FOLDER (or a hub id, a model type, minilm), run:FOLDER, checkpoint:FILE or "
    "class:PACKAGE.MODULE:CLASS"
)
RANDOM = "The weights are random"  # the start of a sentence on weights
_MAX_TOKENS = 128  # longer texts are cut
_DECODER_TOKENS = 16  # random ones, where the encoder reads no text
_SAMPLE_RATE = 16_000  # Hz
_NO_CODE = {"trust_remote_code": False}  # else transformers asks on the terminal
_KINDS: dict[str, Kind] = {
    "input_ids": "text", "pixel_values": "image",
    "input_values": "audio", "input_features": "audio",
}  # fmt: skip


@dataclass(frozen=True)
class ModelSource:
    """A network in evaluation mode, a sentence about its weights, and what it reads.

    `encode` turns samples of `kind` into a batch. Where that is None, the model has no tokenizer,
    and it takes the number of samples.
    """

    network: Any
    weights: str
    kind: Kind | None
    encode: Callable[[Any], Any]

    def make_batch(self, paths: Sequence[str], samples: int) -> tuple[Any, str]:
        """Return a batch of files, or of samples that are made, and a sentence on their origin."""
        if len(paths) == 1 and Path(paths[0]).suffix == ".pt":
            with convert_user_errors(Exception, prefix=f"--input={paths[0]} is no batch: "):
                batch = torch.load(paths[0], map_location="cpu", weights_only=True)
            return batch, f"The batch is that of {paths[0]}."
        if self.kind:
            found, note = find_samples(paths, self.kind, samples)
            return self.encode(found), note
        if paths:
            raise UserError("the model has no tokenizer to read --input with: leave it out")
        return self.encode(samples), "The texts are random tokens: the model has no tokenizer."


def load_source(
    model: str, pretrained: bool | None = False, backbone: str = "", method: str = "",
    options: Mapping[str, Any] = MappingProxyType({}),
) -> ModelSource:  # fmt: skip
    """Load a model by one of the `FORMS`, but a run; UserError for another form.

    `pretrained` weights of timm and the hub are demanded (True), not read (False), or read where
    they are within reach (None).

    A checkpoint is of a backbone of the vision app or of timm, and of a method, or of a class of
    your own, PACKAGE.MODULE:CLASS. `options` has its keyword arguments and the shape of a sample.
    """
    kind, _, name = model.partition(":")
    if kind == "timm" and name:
        return load_timm(name, pretrained)
    if kind == "hf" and name:
        return load_transformers(name, pretrained)
    if kind == "class" and name:
        return load_class(name, None, options)
    if kind == "checkpoint" and ":" in backbone:
        return load_class(backbone, Path(name), options)
    if kind != "checkpoint" or not name:
        raise UserError(f"the model {model!r} has none of the forms {FORMS}")
    if not backbone:
        raise UserError(f"{model} needs the backbone that it is of, as --backbone=deit_small_24")
    app: Any = load_app("vision")
    return describe_images(*app.load_network(name, backbone, method))


def _fetch_weights(name_files: Callable[[], Any], pretrained: bool | None) -> Path | None:
    """Return the folder of pretrained weights; None where they are not wanted or out of reach."""
    if pretrained is False:
        return None
    try:
        files = name_files()
        return files and fetch_hub_files(files)
    except UserError:
        if pretrained:
            raise
        return None


def load_timm(name: str, pretrained: bool | None = False) -> ModelSource:
    """Build a model of timm, with random weights or with those of the hub."""
    timm = import_library("timm")
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), 3, 0.4)
        raise UserError(f"timm has no model {name!r}; the nearest are: {', '.join(near) or 'none'}")
    pretrained = _fetch_weights(lambda: list_timm_files(name), pretrained) is not None
    torch.manual_seed(0)
    with convert_user_errors(Exception, prefix=f"timm cannot load {name}: "):
        network = timm.create_model(name, pretrained=pretrained)
    weights = f"The weights are timm's, {network.pretrained_cfg.get('hf_hub_id')}."
    return describe_images(network, weights if pretrained else f"{RANDOM}.")


def load_class(path: str, checkpoint: Path | None, options: Mapping[str, Any]) -> ModelSource:
    """Build a class of your own, `package.module:Class`, with random weights or those of a file.

    A sample of the shape (C, H, W) is an image with values in [-1, 1]; one of another shape is
    normal noise.

    Raises UserError for a class that cannot be imported or built, and weights of another model.
    """
    module, _, name = path.partition(":")
    torch.manual_seed(0)
    with convert_user_errors(Exception, prefix=f"{path} cannot be built: "):
        sys.path.append(str(Path.cwd()))  # as `python -m` does: modules of the working folder
        network = getattr(import_module(module), name)(**options.get("kwargs", {}))
    weights = f"{RANDOM}."
    if checkpoint:
        load_weights(network, checkpoint)
        weights = f"The weights are those of {checkpoint}, in {path}."
    channels, *size = shape = options.get("shape") or (3, 224, 224)

    def encode(samples: Any) -> Tensor:
        if isinstance(samples, int):
            return torch.randn(samples, *shape, generator=torch.Generator().manual_seed(0))
        return _stack_images(samples, channels, *size)

    return ModelSource(network.eval(), weights, "image" if len(shape) == 3 else None, encode)


def describe_images(network: Any, weights: str) -> ModelSource:
    """Return a model of timm with the transform of its images."""
    data = import_module("timm.data")
    config = data.resolve_data_config(model=network)
    if size := getattr(getattr(network, "patch_embed", None), "img_size", None):
        config["input_size"] = (config["input_size"][0], *size)
    transform = data.create_transform(**config)
    gray = config["input_size"][0] == 1

    def encode(images: Sequence[Any]) -> Tensor:
        return torch.stack([transform(x.convert("L") if gray else x) for x in images])

    return ModelSource(network.eval(), weights, "image", encode)


def load_transformers(name: str, pretrained: bool | None = False) -> ModelSource:
    """Load a model of transformers: a local folder, a hub id, `minilm`, or a random one by type.

    A model type such as `bert` is built from its default configuration, with random weights.
    """
    transformers = import_library("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = find_packaged_weights(name) or (Path(name) if Path(name).is_dir() else None)
    torch.manual_seed(0)
    with convert_user_errors(Exception, prefix=f"transformers cannot load {name}: "):
        if folder is None and name in transformers.CONFIG_MAPPING:
            folder = _fetch_weights(lambda: name_model_files(name), pretrained)
        if folder is None and name in transformers.CONFIG_MAPPING:
            weights = f"{RANDOM}: {name} has its default configuration; a folder has trained ones."
            network = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name))
        else:
            if folder is None and (name.startswith((".", "/", "~")) or name.count("/") > 1):
                raise UserError(f"{name} is no folder")
            folder = folder or fetch_hub_files(name_model_files(name))
            weights = f"The weights are those of {name}."
            network, loading = transformers.AutoModel.from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True, **_NO_CODE
            )
            # encoders are published without a pooler
            if lost := sorted(key for key in loading["missing_keys"] if "pooler" not in key):
                raise UserError(f"its weights are of another model: they lack {lost[0]}")
        network.config.use_cache = False
        kind = _KINDS.get(network.main_input_name)
        if kind is None:
            raise UserError(f"it reads {network.main_input_name}: no text, image or audio")
        if kind == "text":
            tokenizer = folder and _load_tokenizer(transformers, folder)
            encode = partial(_encode_texts, network, tokenizer)
            return ModelSource(network.eval(), weights, "text" if tokenizer else None, encode)
    encode = partial(_encode_images if kind == "image" else _encode_waves, network, folder)
    return ModelSource(network.eval(), weights, kind, encode)


def _load_tokenizer(transformers: Any, folder: Path) -> Any:
    names = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
    if not any(next(folder.glob(name), None) for name in names):
        return None
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **_NO_CODE)
    if tokenizer.pad_token is None:  # GPT-2 has none; padding is masked anyway
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _encode_texts(network: Any, tokenizer: Any, texts: Sequence[str] | int) -> dict[str, Tensor]:
    """Return the tokens of texts, or random ones of a number of texts."""
    config = network.config.get_text_config()
    length = min(_MAX_TOKENS, getattr(config, "max_position_embeddings", None) or _MAX_TOKENS)
    if isinstance(texts, int):
        ids = draw_token_ids(config.vocab_size, texts, length // 2)
        return _add_decoder({"input_ids": ids}, network)
    options = {"padding": True, "truncation": True, "max_length": length, "return_tensors": "pt"}
    encoded = tokenizer(list(texts), **options)
    return _add_decoder({key: encoded[key] for key in ("input_ids", "attention_mask")}, network)


def _add_decoder(batch: dict[str, Tensor], network: Any) -> dict[str, Tensor]:
    """Let the decoder of a model that has one read the text of the encoder, or drawn tokens."""
    config = network.config
    if not config.is_encoder_decoder:
        return batch
    ids = batch.get("input_ids")
    if ids is None:
        count = len(next(iter(batch.values())))
        ids = draw_token_ids(config.vocab_size, count, _DECODER_TOKENS)
    return batch | {"decoder_input_ids": ids}


def _encode_images(network: Any, folder: Path | None, images: Sequence[Any]) -> dict[str, Tensor]:
    if folder and (folder / "preprocessor_config.json").is_file():
        auto = import_module("transformers").AutoImageProcessor
        processor = auto.from_pretrained(folder, **_NO_CODE)
        return {"pixel_values": processor(list(images), return_tensors="pt")["pixel_values"]}
    config, size = network.config, getattr(network.config, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else size
    return {
        "pixel_values": _stack_images(images, getattr(config, "num_channels", 3), height, width)
    }


def _stack_images(images: Sequence[Any], channels: int, height: int, width: int) -> Tensor:
    mode = "L" if channels == 1 else "RGB"
    pixels = [np.array(x.resize((width, height)).convert(mode), np.float32) for x in images]
    x = torch.from_numpy(np.stack(pixels)).reshape(len(images), height, width, -1)
    return x.movedim(-1, 1) / 127.5 - 1


def _encode_waves(network: Any, folder: Path | None, waves: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return features of waves, cut to the shortest one, so that there is no padding."""
    auto = import_module("transformers.models.auto.feature_extraction_auto")
    if folder and (folder / "preprocessor_config.json").is_file():
        extractor = auto.AutoFeatureExtractor.from_pretrained(folder, **_NO_CODE)
    else:
        name = auto.FEATURE_EXTRACTOR_MAPPING_NAMES.get(network.config.model_type, "")
        extractor = auto.feature_extractor_class_from_name(name or "Wav2Vec2FeatureExtractor")()
    shortest = min(map(len, waves))
    cut = [wave[:shortest].numpy() for wave in waves]
    found = extractor(cut, sampling_rate=_SAMPLE_RATE, return_tensors="pt")
    return _add_decoder({network.main_input_name: found[network.main_input_name]}, network)


class PredictStep(nn.Module):
    """The model of a run as a function of the parts of its batch."""

    def __init__(self, run: Any, batch: Any) -> None:
        super().__init__()
        self.run = run
        self.join_batch = getattr(type(batch), "_make", list)  # _make: a named tuple

    def forward(self, *parts: Any) -> Any:
        """Predict."""
        return self.run.predict_step(self.join_batch(parts), 0)


def load_run(
    folder: str, files: Sequence[Path], samples: int | None, trust: Sequence[str] | str = ()
) -> tuple[PredictStep, Iterator[tuple[tuple[Any, ...], Tensor | None]], str]:
    """Return the model of a finished run, its batches with their masks, and a sentence on both.

    The batches are of the validation data, or of files, and hold at most `samples` samples.
    """
    path = Path(folder)
    module, data = load_best_epoch(path, read_run(path)["app"], trust)
    if files:
        _, data.splits["named"] = data.read_files(list(files))
        loader = data.eval_loader("named")
    else:
        data.setup("validate")
        loader = data.val_dataloader()
    batches = iter(loader)
    first = next(batches)

    def crop_batch(batch: Any) -> tuple[tuple[Any, ...], Tensor | None]:
        if samples:
            # a batch whose parts do not all have the samples on axis 0 has a method of its own
            cut = getattr(batch, "first", lambda count: [part[:count] for part in batch])
            batch = cut(samples)
        return tuple(batch), module.token_mask(batch)

    what = ", ".join(map(str, files)) if files else "the run's validation data"
    note = f"The weights are those of the best epoch of {folder}; the batch is of {what}."
    network = PredictStep(module.cpu(), first).eval()
    return network, map(crop_batch, chain([first], batches)), note
