"""Transformer and Branchformer speech recognizers, built of speechbrain's blocks."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from attention_core.checks import check_probabilities, check_sizes
from experiment_kit.errors import UserError
from speechbrain.lobes.models.convolution import ConvolutionFrontEnd
from speechbrain.lobes.models.transformer.Branchformer import BranchformerEncoderLayer
from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR
from speechbrain.nnet.linear import Linear
from torch import Tensor, nn

MAX_STATES = 2500  # size of the table of sinusoidal positions
ATTENTION_TYPES = {"transformer": "regularMHA", "branchformer": "RelPosMHAXL"}


def pad_by_reflection(x: Tensor, lengths: Tensor, reach: int) -> Tensor:
    """Append to the valid frames of each utterance their reflection, (B, T + reach, ...).

    speechbrain's convolutions reflect the longest utterance of a batch alone. In the others they
    read the padding.

    >>> pad_by_reflection(torch.tensor([[1.0, 2.0, 3.0, 9.0]]), torch.tensor([3]), 2)
    tensor([[1., 2., 3., 2., 1., 0.]])
    """
    steps = torch.arange(reach, device=x.device)
    rows = torch.arange(len(x), device=x.device)[:, None]
    reflection = x[rows, (lengths[:, None] - 2 - steps).clamp(min=0)]
    x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, reach))
    return x.index_put((rows, lengths[:, None] + steps), reflection)


class MaskedBranchformerLayer(BranchformerEncoderLayer):
    """speechbrain's layer, with a convolution that reads a reflection instead of the padding.

    Equal to speechbrain's without padding. speechbrain's layer cannot convolve utterances shorter
    than half the kernel, and its results depend on padding.

    Source: https://arxiv.org/abs/2207.02971
    """

    def forward(
        self,
        x: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        pos_embs: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Merge the attention and the convolution branch; masks are True where ignored."""
        size = x.shape[1]
        if src_key_padding_mask is None:
            src_key_padding_mask = x.new_zeros(x.shape[:2], dtype=torch.bool)
        lengths = (~src_key_padding_mask).sum(1)
        h = self.norm_mhsa(x)
        attention, weights = self.mha_layer(
            h, h, h, attn_mask=src_mask, key_padding_mask=src_key_padding_mask, pos_embs=pos_embs
        )
        reach = self.convolution_branch.csgu.conv.kernel_size // 2
        h = pad_by_reflection(self.norm_conv(x), lengths, reach)
        convolution = self.convolution_branch(h)[:, :size]
        both = torch.cat([self.dropout(attention), self.dropout(convolution)], dim=-1)
        return x + self.dropout(self.merge_proj(both)), weights


@dataclass(frozen=True)
class RecognizerConfig:
    """The sizes of a recognizer.

    Args:
        encoder: Blocks of the encoder.
        dim: Width, even.
        num_heads: Attention heads of a layer.
        num_encoder_layers: Layers of the encoder.
        num_decoder_layers: Layers of the decoder.
        ffn_dim: Width of the MLP.
        csgu_dim: Width of the Branchformer's convolutional gating unit, even.
        csgu_kernel: Steps that this unit joins, odd.
        channels: Channels of each block of the front end.
        kernels: Steps that each block of the front end joins, odd.
        strides: Steps that each block of the front end makes one of.
        residuals: A second path with one convolution in each block of the front end.
        dropout: Dropout.
        pre_norm: Norms before attention and MLP in the decoder and in the Transformer's encoder;
            the Branchformer always has them there.
    """

    encoder: Literal["transformer", "branchformer"] = "transformer"
    dim: int = 512
    num_heads: int = 4
    num_encoder_layers: int = 12
    num_decoder_layers: int = 6
    ffn_dim: int = 2048
    csgu_dim: int = 3072
    csgu_kernel: int = 31
    channels: tuple[int, ...] = (64, 64, 64)
    kernels: tuple[int, ...] = (5, 5, 1)
    strides: tuple[int, ...] = (2, 2, 1)
    residuals: tuple[bool, ...] = (False, False, True)
    dropout: float = 0.1
    pre_norm: bool = True

    def __post_init__(self) -> None:
        blocks = self.channels, self.kernels, self.strides, self.residuals
        sizes = {name: value for name, value in vars(self).items() if type(value) is int}
        check_sizes("model.network", **sizes)
        check_probabilities("model.network", dropout=self.dropout)
        if self.dim % self.num_heads or self.dim % 2:
            text = "model.network.dim must be even and a multiple of num_heads,"
            raise ValueError(f"{text} got {self.dim} and {self.num_heads}")
        if len({len(values) for values in blocks}) > 1 or not self.channels:
            text = "model.network: channels, kernels,"
            raise ValueError(f"{text} strides and residuals must have the same length")
        if not all(kernel % 2 for kernel in (*self.kernels, self.csgu_kernel)) or self.csgu_dim % 2:
            raise ValueError("model.network: kernels must be odd and csgu_dim must be even")


class Recognizer(nn.Module):
    """Convolutional front end, encoder and decoder, with output layers for CTC and attention.

    With 80 mel bands and 5,000 tokens the paper's Transformer has 71,525,968 parameters (printed:
    71.5M) and its Branchformer 109,845,680 (printed: 109.8M). The outputs of an utterance do not
    depend on its padding.

    Source: https://github.com/speechbrain/speechbrain (recipes/LibriSpeech/ASR/transformer)
    """

    def __init__(self, config: RecognizerConfig, n_mels: int, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.front_end: Any = ConvolutionFrontEnd(
            input_shape=(None, None, n_mels),
            num_blocks=len(config.channels),
            num_layers_per_block=1,
            out_channels=config.channels,
            kernel_sizes=config.kernels,
            strides=config.strides,
            dilations=[1] * len(config.channels),
            residuals=config.residuals,
            dropout=config.dropout,
        )
        bands = n_mels
        for stride in config.strides:
            bands = -(-bands // stride)
        self.transformer: Any = TransformerASR(
            vocab_size,
            bands * config.channels[-1],
            config.dim,
            config.num_heads,
            config.num_encoder_layers,
            config.num_decoder_layers,
            config.ffn_dim,
            config.dropout,
            nn.GELU,
            normalize_before=config.pre_norm,
            kernel_size=config.csgu_kernel,
            encoder_module=config.encoder,
            attention_type=ATTENTION_TYPES[config.encoder],
            max_length=MAX_STATES,
            causal=False,  # None would mean True
            csgu_linear_units=config.csgu_dim,
        )
        if config.encoder == "branchformer":
            for layer in self.transformer.encoder.layers:
                layer.__class__ = MaskedBranchformerLayer
        self.ctc: Any = Linear(input_size=config.dim, n_neurons=vocab_size)
        self.output: Any = Linear(input_size=config.dim, n_neurons=vocab_size)

    def num_states(self, frames: Tensor) -> Tensor:
        """Count the encoder states of so many frames."""
        for stride in self.config.strides:
            frames = (frames + stride - 1) // stride
        return frames

    def encode(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return states (B, S, dim) of features (B, T, mels), and the number of valid states."""
        x, lengths = self._run_front_end(x, lengths)
        return self.transformer.encode(x, lengths / x.shape[1]), lengths

    def forward(self, x: Tensor, lengths: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits of CTC (B, S, V) and of attention (B, U, V), and the number of states.

        Shapes: features (B, T, mels), lengths (B,) in frames, tokens (B, U) that open with the
        begin token and are 0 where padded.
        """
        x, lengths = self._run_front_end(x, lengths)
        states, decoded = self.transformer(x, tokens, lengths / x.shape[1])
        return self.ctc(states), self.output(decoded), lengths

    def _run_front_end(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        blocks = zip(self.front_end.values(), config.kernels, config.strides, strict=True)
        for block, kernel, stride in blocks:
            x = block(pad_by_reflection(x, lengths, kernel // 2))[:, : -(-x.shape[1] // stride)]
            lengths = (lengths + stride - 1) // stride
        if x.shape[1] > MAX_STATES:
            raise UserError(
                f"speech of {x.shape[1]} states is longer than the {MAX_STATES} positions of the "
                "network: in training, lower data.max_seconds to skip it; in testing, split it"
            )
        return x, lengths


class SpeechEncoder(nn.Module):
    """The states of a recognizer's encoder alone; the decoder is not run."""

    def __init__(self, recognizer: Recognizer) -> None:
        super().__init__()
        self.recognizer = recognizer

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return states (B, S, dim) of features (B, T, mels)."""
        return self.recognizer.encode(x, lengths)[0]
