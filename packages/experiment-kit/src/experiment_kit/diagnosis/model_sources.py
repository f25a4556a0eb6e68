"""The models that are diagnosed: of timm, of transformers, a checkpoint, or that of a run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiment_kit.data.hub import fetch_hub_files, find_packaged_weights
from experiment_kit.diagnosis.model_inputs import Kind, draw_token_ids
from experiment_kit.errors import UserError, shorten_text
from experiment_kit.launch.finished_runs import load_best_epoch, read_run
from experiment_kit.launch.obtain import list_timm_files, name_model_files
from experiment_kit.launch.plan import load_app

RANDOM = "The weights are random: this says what the architecture does before it is trained."
_MAX_TOKENS = 128  # of a text
_DECODER_TOKENS = 16  # of a decoder that reads no text
_SAMPLE_RATE = 16_000  # Hz
_KINDS: dict[str, Kind] = {
    "input_ids": "text", "pixel_values": "image",
    "input_values": "audio", "input_features": "audio",
}  # fmt: skip


@dataclass(frozen=True)
class ModelSource:
    """A network in evaluation mode, a sentence about its weights, and what it reads.

    `encode` turns samples of `kind` into a batch, `draw` makes a batch of a size. A model has one
    of the two.
    """

    network: Any
    weights: str
    kind: Kind = "image"
    encode: Callable[[Sequence[Any]], Any] | None = None
    draw: Callable[[int], Any] | None = None


def load_timm(name: str, pretrained: bool = False) -> ModelSource:
    """Build a model of timm, with random weights or with those of the hub.

    Raises UserError for an unknown name, with the nearest ones, and for weights out of reach.
    """
    timm = _import_library("timm")
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), 3, 0.4)
        raise UserError(f"timm has no model {name!r}; the nearest are: {', '.join(near) or 'none'}")
    if pretrained and (hub_files := list_timm_files(name)):
        fetch_hub_files(hub_files)
    torch.manual_seed(0)
    try:
        network = timm.create_model(name, pretrained=pretrained)
    except Exception as error:  # the hub's client raises errors of many kinds without a network
        reason = shorten_text(str(error), 120)
        wanted = "the pretrained weights" if pretrained else "the model"
        raise UserError(f"timm cannot build {wanted} of {name}: {reason}") from error
    weights = f"The weights are timm's, {network.pretrained_cfg.get('hf_hub_id')}."
    return describe_images(network, weights if pretrained else RANDOM)


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


def load_file(path: str, backbone: str, method: str) -> ModelSource:
    """Load a file of weights into a backbone of the vision app or of timm.

    Raises UserError for a file of another backbone, with the first difference.
    """
    if not backbone:
        raise UserError(f"checkpoint:{path} needs the backbone that it is of: "
                        "--backbone=deit_small_24, or a name of timm")  # fmt: skip
    app: Any = load_app("vision")
    network, weights = app.load_network(path, backbone, method)
    return describe_images(network, weights)


def load_transformers(name: str, pretrained: bool = False) -> ModelSource:
    """Load a model of transformers: a local folder, a hub id, `minilm`, or a random one by type.

    A model type such as `bert` is built from its default configuration, with random weights.

    Raises UserError for a folder without a configuration, weights of another model, a repository
    that the hub does not give, and a model that reads neither texts, images nor audio.
    """
    transformers = _import_library("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = find_packaged_weights(name) or (Path(name) if Path(name).is_dir() else None)
    if folder is None and name in transformers.CONFIG_MAPPING and not pretrained:
        config, weights = transformers.AutoConfig.for_model(name), _describe_random(name)
    else:
        folder = folder or _fetch_model(name)
        config, weights = _read_config(transformers, folder), f"The weights are those of {name}."
    torch.manual_seed(0)
    with _explain_transformers(name):
        network = (
            _load_weights(transformers, folder, name)
            if folder
            else transformers.AutoModel.from_config(config)
        )
    network.config.use_cache = False
    main_input = network.main_input_name
    if main_input not in _KINDS:
        raise UserError(f"hf:{name} reads {main_input}, which is neither text, image nor audio")
    kind = _KINDS[main_input]
    encode, draw = _make_encoder(kind, network, folder)
    return ModelSource(network.eval(), weights, kind, encode, draw)


def _import_library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(f"the package {name} is missing: pip install {name}") from error


def _describe_random(name: str) -> str:
    return (f"{RANDOM} {name} is a type of transformers, built from its default configuration; name"
            " a folder, or a hub id with --pretrained, for trained weights.")  # fmt: skip


def _fetch_model(name: str) -> Path:
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).exists()
    if is_path or not name:
        raise UserError(f"hf:{name} is no folder")
    return fetch_hub_files(name_model_files(name))


def _read_config(transformers: Any, folder: Path) -> Any:
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json, so it is no model of transformers")
    with _explain_transformers(str(folder)):
        return transformers.AutoConfig.from_pretrained(folder)


def _load_weights(transformers: Any, folder: Path, name: str) -> Any:
    network, loading = transformers.AutoModel.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    # encoders are published without a pooler
    lost = sorted(key for key in loading["missing_keys"] if "pooler" not in key)
    if lost:
        raise UserError(f"the weights of hf:{name} are of another model: they lack {lost[0]} "
                        f"({len(lost)} such)")  # fmt: skip
    return network


@contextmanager
def _explain_transformers(name: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of a damaged file, a library that is missing, a bad config
        reason = shorten_text(str(error), 150)
        raise UserError(f"transformers cannot load {name}: {reason}") from error


def _make_encoder(
    kind: Kind, network: Any, folder: Path | None
) -> tuple[Callable[[Sequence[Any]], Any] | None, Callable[[int], Any] | None]:
    """Return a function of samples, or one of their number for a model without a tokenizer."""
    transformers = import_module("transformers")
    if kind == "text":
        tokenizer = folder and _load_tokenizer(transformers, folder)
        length = min(_MAX_TOKENS, _count_positions(network.config))
        if tokenizer is None:
            size = network.config.get_text_config().vocab_size
            return None, lambda count: _add_decoder(
                {"input_ids": draw_token_ids(size, count, length // 2)}, network
            )
        return lambda texts: _encode_texts(tokenizer, texts, length, network), None
    if kind == "image":
        return lambda images: _encode_images(images, network.config, folder), None
    return lambda waves: _encode_waves(waves, network, folder), None


def _load_tokenizer(transformers: Any, folder: Path) -> Any:
    names = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
    if not any(next(folder.glob(name), None) for name in names):
        return None
    with _explain_transformers(f"the tokenizer of {folder}"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token is None:  # GPT-2 has none; padding is masked anyway
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _count_positions(config: Any) -> int:
    config = config.get_text_config()
    reserved = 2 if config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
    return (getattr(config, "max_position_embeddings", None) or _MAX_TOKENS) - reserved


def _encode_texts(
    tokenizer: Any, texts: Sequence[str], length: int, network: Any
) -> dict[str, Tensor]:
    options = {"padding": True, "truncation": True, "max_length": length, "return_tensors": "pt"}
    encoded = tokenizer(list(texts), **options)
    mask = encoded["attention_mask"]
    if empty := [text for text, row in zip(texts, mask, strict=True) if not row.any()]:
        raise UserError(f"the tokenizer makes no token of {empty[0]!r:.60}: leave this text out")
    return _add_decoder({"input_ids": encoded["input_ids"], "attention_mask": mask}, network)


def _add_decoder(batch: dict[str, Tensor], network: Any) -> dict[str, Tensor]:
    """Let the decoder of a model that has one read the text of the encoder, or drawn tokens."""
    config = network.config
    if not config.is_encoder_decoder:
        return batch
    first = next(iter(batch.values()))
    ids = batch.get("input_ids")
    if ids is None:
        ids = draw_token_ids(config.vocab_size, len(first), _DECODER_TOKENS)
    return batch | {"decoder_input_ids": ids}


def _encode_images(images: Sequence[Any], config: Any, folder: Path | None) -> Mapping[str, Tensor]:
    if folder and (folder / "preprocessor_config.json").is_file():
        processor = import_module("transformers").AutoImageProcessor.from_pretrained(folder)
        return {"pixel_values": processor(list(images), return_tensors="pt")["pixel_values"]}
    size = getattr(config, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else size
    mode = "L" if getattr(config, "num_channels", 3) == 1 else "RGB"
    pixels = [np.array(x.resize((width, height)).convert(mode), np.float32) for x in images]
    x = torch.from_numpy(np.stack(pixels)).reshape(len(images), height, width, -1)
    return {"pixel_values": x.movedim(-1, 1) / 127.5 - 1}


def _encode_waves(
    waves: Sequence[Tensor], network: Any, folder: Path | None
) -> Mapping[str, Tensor]:
    """Return features of waves, cut to the shortest one, so that there is no padding."""
    auto = import_module("transformers.models.auto.feature_extraction_auto")
    if folder and (folder / "preprocessor_config.json").is_file():
        extractor = auto.AutoFeatureExtractor.from_pretrained(folder)
    else:
        name = auto.FEATURE_EXTRACTOR_MAPPING_NAMES.get(network.config.model_type, "")
        kind = auto.feature_extractor_class_from_name(name or "Wav2Vec2FeatureExtractor")
        extractor = kind()
    shortest = min(map(len, waves))
    cut = [wave[:shortest].numpy() for wave in waves]
    name = network.main_input_name
    found = extractor(cut, sampling_rate=_SAMPLE_RATE, return_tensors="pt")
    return _add_decoder({name: found[name]}, network)


class PredictStep(nn.Module):
    """The model of a run as a function of the parts of its batch."""

    def __init__(self, run: Any, batch: Any) -> None:
        super().__init__()
        self.run = run
        self.join_batch = getattr(type(batch), "_make", list)  # of a named tuple

    def forward(self, *parts: Any) -> Any:
        """Predict."""
        return self.run.predict_step(self.join_batch(parts), 0)


def load_run(
    folder: str, files: Sequence[Path], samples: int
) -> tuple[PredictStep, tuple[Any, ...], Tensor | None, str]:
    """Return the model of a finished run, a batch of its data, its mask and what they are.

    The batch is of the validation data, or of files.

    Raises UserError for a folder of no finished run, and for files that its data does not read.
    """
    path = Path(folder)
    module, data = load_best_epoch(path, read_run(path)["app"])
    if files:
        _, data.splits["named"] = data.read_named(list(files))
        loader = data.eval_loader("named")
    else:
        data.setup("validate")
        loader = data.val_dataloader()
    batch = next(iter(loader))
    # a batch whose parts do not all have the samples on axis 0 has a method of its own
    batch = getattr(batch, "first", lambda count: [part[:count] for part in batch])(samples)
    what = ", ".join(map(str, files)) if files else "the run's validation data"
    note = f"The weights are those of the best epoch of {folder}; the batch is of {what}."
    network = PredictStep(module.cpu(), batch).eval()
    return network, tuple(batch), module.token_mask(batch), note
