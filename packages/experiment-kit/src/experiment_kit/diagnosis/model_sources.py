"""The models that are diagnosed: of timm, of transformers, a checkpoint, or that of a run."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attention_core.diagnosis.batches import ModelInputs
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from experiment_kit.data import download
from experiment_kit.diagnosis import model_inputs
from experiment_kit.diagnosis.checkpoint_files import load_checkpoint_weights
from experiment_kit.errors import UserError, convert_user_errors, import_library, suggest_name
from experiment_kit.launch.plan import build_run, load_app, load_best_epoch
from experiment_kit.training.spectral_monitor import crop_batch

FORMS = (
    "timm:NAME, hf:FOLDER (or a hub id, a model type, minilm), run:FOLDER, start:FOLDER, "
    "checkpoint:FILE or class:PACKAGE.MODULE:CLASS"
)
RANDOM = "The weights are random"  # the start of a sentence on weights
SAMPLES = 8
_MAX_TOKENS = 128  # longer texts are cut
_IMAGE_SHAPE = (3, 224, 224)
_MODES = {1: "L", 3: "RGB"}  # modes of images by their channels
_NO_CODE = {"trust_remote_code": False}  # else transformers asks on the terminal
_KINDS: dict[str, model_inputs.Kind] = {
    "input_ids": "text", "pixel_values": "image",
    "input_values": "recording", "input_features": "recording",
}  # fmt: skip
_DECODER_TOKENS = 16  # random ones, where the encoder reads no text


@dataclass(frozen=True)
class ModelSource:
    """A network in evaluation mode, a sentence about its weights, and what it reads.

    `encode` turns samples of `kind` into a batch; where `kind` is None, it takes their number,
    and `made` says what such samples are.
    """

    network: Any
    weights: str
    kind: model_inputs.Kind | None
    encode: Callable[[Any], Any]
    made: str = "The texts are random tokens: the model has no tokenizer."

    def make_batch(self, paths: Sequence[str], samples: int) -> tuple[Any, str]:
        """Return a batch of files, or of samples that are made, and a sentence on their origin."""
        if len(paths) == 1 and Path(paths[0]).suffix == ".pt":
            with convert_user_errors(Exception, prefix=f"--input={paths[0]} is no batch: "):
                batch = torch.load(paths[0], map_location="cpu", weights_only=True)
            return batch, f"The batch is that of {paths[0]}."
        if self.kind:
            found, note = model_inputs.find_samples(paths, self.kind, samples)
            return self.encode(found), note
        if paths:
            raise UserError("the model has no tokenizer to read --input with: leave it out")
        return self.encode(samples), self.made


def load_source(
    model: str, random: bool = False, backbone: str = "", method: str = "",
    kwargs: Mapping[str, Any] | None = None, shape: Sequence[int] | None = None,
) -> ModelSource:  # fmt: skip
    """Load a model by one of the `FORMS` except those of a run; UserError for another form.

    Weights of timm and the hub are random if `random`, or if they cannot be downloaded. A
    checkpoint needs its backbone and method, or its class with arguments and a sample's shape.
    """
    kind, _, name = model.partition(":")
    if kind not in ("timm", "hf", "class", "checkpoint") or not name:
        raise UserError(f"the model {model!r} has none of the forms {FORMS}")
    if kind == "timm":
        return load_timm(name, random)
    if kind == "hf":
        return load_transformers(name, random)
    if kind == "class" or ":" in backbone:
        path, checkpoint = (name, None) if kind == "class" else (backbone, Path(name))
        return load_class(path, checkpoint, kwargs or {}, shape or _IMAGE_SHAPE)
    if not backbone:
        raise UserError(f"{model} needs the backbone that it is of, as --backbone=deit_small_24")
    app: Any = load_app("vision")
    return describe_images(*app.load_network(name, backbone, method))


def _fetch_weights(find: Callable[[str], Any], name: str, random: bool) -> tuple[Path | None, str]:
    """Return the folder of pretrained weights, or None with a sentence on random ones."""
    if random:
        return None, f"{RANDOM}."
    try:
        return download.fetch_hub_files(find(name)), ""
    except UserError as error:
        return None, f"{RANDOM}: {str(error).rstrip('.')}."


def load_timm(name: str, random: bool = False) -> ModelSource:
    """Build a model of timm, with random weights or with those of the hub."""
    timm = import_library("timm")
    if not timm.is_model(name):
        raise UserError(f"timm has no model {name!r}{suggest_name(name, timm.list_models())}")
    folder, weights = _fetch_weights(download.find_model_files, name, random)
    torch.manual_seed(0)
    with convert_user_errors(Exception, prefix=f"timm cannot load {name}: "):
        network = timm.create_model(name, pretrained=folder is not None)
    hub_id = network.pretrained_cfg.get("hf_hub_id")
    return describe_images(network, weights or f"The weights are timm's, {hub_id}.")


def load_class(
    path: str, checkpoint: Path | None, kwargs: Mapping[str, Any], shape: Sequence[int]
) -> ModelSource:
    """Build a class of your own, `package.module:Class`, with random weights or those of a file."""
    module, _, name = path.partition(":")
    torch.manual_seed(0)
    with convert_user_errors(Exception, prefix=f"{path} cannot be built: "):
        if (folder := str(Path.cwd())) not in sys.path:
            sys.path.append(folder)  # as `python -m` does: modules of the working folder
        network = getattr(import_module(module), name)(**kwargs)
    weights = f"The weights are those of {checkpoint}, in {path}." if checkpoint else f"{RANDOM}."
    if checkpoint:
        load_checkpoint_weights(network, checkpoint)

    def encode(samples: Any) -> Tensor:
        if isinstance(samples, int):
            return torch.randn(samples, *shape, generator=torch.Generator().manual_seed(0))
        return _stack_images(samples, *shape)

    made = "The inputs are random numbers of the given shape."
    is_image = len(shape) == 3 and shape[0] in _MODES
    return ModelSource(network.eval(), weights, "image" if is_image else None, encode, made)


def describe_images(network: Any, weights: str) -> ModelSource:
    """Return a model of timm with the transform of its images."""
    data = import_module("timm.data")
    config = data.resolve_data_config(model=network)
    if size := getattr(getattr(network, "patch_embed", None), "img_size", None):
        config["input_size"] = (config["input_size"][0], *size)
    transform = data.create_transform(**config)
    mode = _MODES.get(config["input_size"][0], "RGB")

    def encode(images: Sequence[Any]) -> Tensor:
        return torch.stack([transform(image.convert(mode)) for image in images])

    return ModelSource(network.eval(), weights, "image", encode)


def load_transformers(name: str, random: bool = False) -> ModelSource:
    """Load a model of transformers: a folder, a hub id, `minilm`, or a type such as `bert`."""
    transformers = import_library("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = download.find_packaged_weights(name) or (Path(name) if Path(name).is_dir() else None)
    torch.manual_seed(0)
    with convert_user_errors(Exception, prefix=f"transformers cannot load {name}: "):
        weights = f"The weights are those of {name}."
        if folder is None and name in transformers.CONFIG_MAPPING:
            folder, why = _fetch_weights(download.name_model_files, name, random)
            weights = f"{why} {name} has its default configuration." if why else weights
        elif folder is None:
            if name.startswith((".", "/", "~")) or name.count("/") > 1:
                raise UserError(f"{name} is no folder")
            folder = download.fetch_hub_files(download.name_model_files(name))
        network = _load_network(transformers, name, folder)
        kind = _KINDS.get(network.main_input_name)
        if kind is None:
            raise UserError(f"it reads {network.main_input_name}: no text, image or audio")
        if kind == "text":
            tokenizer = folder and _load_tokenizer(transformers, folder)
            encode = partial(_encode_texts, network, tokenizer)
            return ModelSource(network, weights, "text" if tokenizer else None, encode)
    encode = partial(_encode_images if kind == "image" else _encode_waves, network, folder)
    return ModelSource(network, weights, kind, encode)


def _load_network(transformers: Any, name: str, folder: Path | None) -> Any:
    if folder is None:
        network = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name))
    else:
        options = {"output_loading_info": True, "ignore_mismatched_sizes": True, **_NO_CODE}
        load = transformers.AutoModel.from_pretrained
        network, loading = load(folder, dtype=torch.float32, **options)
        missing = {*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])}
        # encoders are published without a pooler
        if lost := sorted(key for key in missing if "pooler" not in key):
            raise UserError(f"its weights are of another model: they lack {lost[0]} of this size")
        if scales := [key for key in loading["unexpected_keys"] if key.endswith("SCB")]:
            raise UserError(f"its weights are in 8 bits, with {scales[0]}: save them as float32")
    network.config.use_cache = False
    return network.eval()


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
        batch = {"input_ids": model_inputs.draw_token_ids(config.vocab_size, texts, length // 2)}
    else:
        options = {"truncation": True, "max_length": length, "return_tensors": "pt"}
        encoded = tokenizer(list(texts), padding=True, **options)
        batch = {key: encoded[key] for key in ("input_ids", "attention_mask")}
    if network.config.is_encoder_decoder:  # which reads the text of the encoder
        batch |= {f"decoder_{name}": x for name, x in batch.items()}
    return batch


def _encode_images(network: Any, folder: Path | None, images: Sequence[Any]) -> dict[str, Tensor]:
    if folder and (folder / "preprocessor_config.json").is_file():
        auto = import_module("transformers").AutoImageProcessor
        processor = auto.from_pretrained(folder, **_NO_CODE)
        return {"pixel_values": processor(list(images), return_tensors="pt")["pixel_values"]}
    config, size = network.config, getattr(network.config, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else size
    channels = getattr(config, "num_channels", 3)
    return {"pixel_values": _stack_images(images, channels, height, width)}


def _stack_images(images: Sequence[Any], channels: int, height: int, width: int) -> Tensor:
    sized = (x.resize((width, height)).convert(_MODES.get(channels, "RGB")) for x in images)
    pixels = [np.array(x, np.float32) for x in sized]
    x = torch.from_numpy(np.stack(pixels)).reshape(len(images), height, width, -1)
    return x.movedim(-1, 1) / 127.5 - 1


def _encode_waves(network: Any, folder: Path | None, waves: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return features of waves at 16 kHz, cut to the shortest one, so that there is no padding."""
    auto = import_module("transformers.models.auto.feature_extraction_auto")
    if folder and (folder / "preprocessor_config.json").is_file():
        extractor = auto.AutoFeatureExtractor.from_pretrained(folder, **_NO_CODE)
    else:
        name = auto.FEATURE_EXTRACTOR_MAPPING_NAMES.get(network.config.model_type, "")
        extractor = auto.feature_extractor_class_from_name(name or "Wav2Vec2FeatureExtractor")()
    cut = [wave[: min(map(len, waves))].numpy() for wave in waves]
    name = network.main_input_name
    batch = {name: extractor(cut, sampling_rate=16_000, return_tensors="pt")[name]}
    if network.config.is_encoder_decoder:
        size = network.config.vocab_size
        batch["decoder_input_ids"] = model_inputs.draw_token_ids(size, len(waves), _DECODER_TOKENS)
    return batch


class PredictStep(nn.Module):
    """The model of a run as a function of the parts of its batch."""

    def __init__(self, run: Any, batch: Any) -> None:
        super().__init__()
        self.run = run
        self.join_batch = getattr(type(batch), "_make", list)  # _make: a named tuple

    def forward(self, *parts: Any) -> Any:
        """Predict."""
        return self.run.predict_step(self.join_batch(parts), 0)


def load_model(
    model: str, paths: Sequence[str] = (), samples: int = SAMPLES,
    trust: Sequence[str] | str = (), **options: Any,
) -> tuple[Any, Iterator[tuple[Any, Tensor | None]], list[str]]:  # fmt: skip
    """Return the network of a model, batches with their masks, and sentences on both.

    A run has all batches of its data, each cut to `samples` unless these are 0; others have one.
    """
    kind, _, name = model.partition(":")
    if kind in ("run", "start") and name:
        load = load_best_epoch if kind == "run" else build_run
        network, batches, note = load_run(name, paths, samples, trust, load)
        notes = [note]
    else:
        source = load_source(model, **options)
        batch, note = source.make_batch(paths, samples or SAMPLES)
        network, batches, notes = source.network, iter([(batch, None)]), [source.weights, note]
    first = next(batches)
    hint = " (--shape, or a batch of torch.save as --input, gives others)" * (kind == "class")
    failure = convert_user_errors(Exception, prefix=f"{model} does not run on its inputs{hint}: ")
    with torch.no_grad(), failure:
        ModelInputs(network, first[0]).run(network)
    return network, chain([first], batches), notes


def load_run(
    folder: str,
    paths: Sequence[str],
    samples: int,
    trust: Sequence[str] | str = (),
    load: Callable[..., tuple[Any, Any]] = load_best_epoch,
) -> tuple[PredictStep, Iterator[tuple[tuple[Any, ...], Tensor | None]], str]:
    """Return the model of a finished run, its batches with their masks, and a sentence on both."""
    module, data = load(Path(folder), trust)
    if paths:
        _, data.splits["named"] = data.read_files(model_inputs.find_input_files(paths, "", samples))
        batches = iter(data.eval_loader("named"))
    else:
        data.setup("validate")
        batches = iter(tree_leaves(data.val_dataloader())[0])
    first = next(batches)
    what = ", ".join(paths) or "its validation data"
    size = f"up to {samples}" if samples else "all"
    weights = "tested weights" if load is load_best_epoch else "weights of the first step"
    note = f"The model has the {weights} of {folder}; the batch is {size} of {what}."
    network = PredictStep(module.cpu(), first).eval()
    cropped = (crop_batch(x, samples) if samples else x for x in chain([first], batches))
    return network, ((tuple(x), module.token_mask(x)) for x in cropped), note
