"""Transformer and Branchformer that recognise speech, of speechbrain's blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from experiment_kit.errors import UserError
from speechbrain.lobes.models.convolution import ConvolutionFrontEnd
from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR
from speechbrain.nnet.linear import Linear
from torch import Tensor, nn

from attention_speech.models.padding import MaskedBranchformerLayer, reflected

POSITIONS = 2500  # that the sinusoids are made for
ENCODERS = {"transformer": "regularMHA", "branchformer": "RelPosMHAXL"}


@dataclass(frozen=True)
class Size:
    """The sizes of a recogniser; `gate` and `kernel` are of the Branchformer's convolution.

    `channels`, `kernels`, `strides` and `residuals` (a second path, of one convolution) are of the
    blocks of the front end. `pre_norm` puts norms before attention and MLP, in the decoder and in
    the Transformer's encoder; the Branchformer's are there always.

    Raises ValueError for sizes that do not fit together.

    >>> Size(width=10, heads=4)
    Traceback (most recent call last):
    ValueError: model.size: width must be even and a multiple of the heads, got 10 and 4
    """

    encoder: Literal["transformer", "branchformer"] = "transformer"
    width: int = 512
    heads: int = 4
    encoder_layers: int = 12
    decoder_layers: int = 6
    hidden: int = 2048
    gate: int = 3072
    kernel: int = 31
    channels: tuple[int, ...] = (64, 64, 64)
    kernels: tuple[int, ...] = (5, 5, 1)
    strides: tuple[int, ...] = (2, 2, 1)
    residuals: tuple[bool, ...] = (False, False, True)
    dropout: float = 0.1
    pre_norm: bool = True

    def __post_init__(self) -> None:
        blocks = self.channels, self.kernels, self.strides, self.residuals
        if self.encoder not in ENCODERS:
            raise ValueError(
                f"model.size: encoder must be {' or '.join(ENCODERS)}, got {self.encoder!r}"
            )
        if self.width % self.heads or self.width % 2:
            raise ValueError(
                "model.size: width must be even and a multiple of the heads, got "
                f"{self.width} and {self.heads}"
            )
        if len({len(part) for part in blocks}) > 1 or not self.channels:
            raise ValueError(
                "model.size: channels, kernels, strides and residuals must be of one length"
            )
        if not all(kernel % 2 for kernel in (*self.kernels, self.kernel)) or self.gate % 2:
            raise ValueError("model.size: kernels must be odd and gate even")


class Recogniser(nn.Module):
    """Convolutional front end, encoder, decoder, and the outputs of CTC and of attention.

    With 80 bands and 5,000 pieces the paper's Transformer has 71,525,968 parameters (printed:
    71.5M) and its Branchformer 109,845,680 (printed: 109.8M). An utterance's outputs do not depend
    on its padding.

    Raises UserError for speech that is longer than there are positions.

    Source: https://github.com/speechbrain/speechbrain (recipes/LibriSpeech/ASR/transformer)

    >>> import torch
    >>> size = Size(width=8, heads=2, encoder_layers=1, decoder_layers=1, hidden=8)
    >>> network = Recogniser(size, bands=12, vocab_size=7).eval()
    >>> x, lengths, tokens = torch.randn(2, 21, 12), torch.tensor([21, 9]), torch.ones(2, 3).long()
    >>> ctc, attention, states = network(x, lengths, tokens)
    >>> ctc.shape, attention.shape, states.tolist()
    (torch.Size([2, 6, 7]), torch.Size([2, 3, 7]), [6, 3])
    """

    def __init__(self, size: Size, bands: int, vocab_size: int) -> None:
        super().__init__()
        self.size = size
        self.front: Any = ConvolutionFrontEnd(
            input_shape=(None, None, bands),
            num_blocks=len(size.channels),
            num_layers_per_block=1,
            out_channels=size.channels,
            kernel_sizes=size.kernels,
            strides=size.strides,
            dilations=[1] * len(size.channels),
            residuals=size.residuals,
            dropout=size.dropout,
        )
        for stride in size.strides:
            bands = -(-bands // stride)
        self.transformer: Any = TransformerASR(
            vocab_size,
            bands * size.channels[-1],
            size.width,
            size.heads,
            size.encoder_layers,
            size.decoder_layers,
            size.hidden,
            size.dropout,
            nn.GELU,
            normalize_before=size.pre_norm,
            kernel_size=size.kernel,
            encoder_module=size.encoder,
            attention_type=ENCODERS[size.encoder],
            max_length=POSITIONS,
            causal=False,  # None would be True
            csgu_linear_units=size.gate,
        )
        if size.encoder == "branchformer":
            for layer in self.transformer.encoder.layers:
                layer.__class__ = MaskedBranchformerLayer
        self.ctc: Any = Linear(input_size=size.width, n_neurons=vocab_size)
        self.output: Any = Linear(input_size=size.width, n_neurons=vocab_size)

    def shortened(self, lengths: Tensor) -> Tensor:
        """How many states so many frames become.

        >>> import torch
        >>> Recogniser(Size(width=8), 12, 7).shortened(torch.tensor([1, 4, 5]))
        tensor([1, 1, 2])
        """
        for stride in self.size.strides:
            lengths = (lengths + stride - 1) // stride
        return lengths

    def encode(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """States (B, S, width) of features (B, T, bands), and how many of each are real."""
        x, lengths = self._reduced(x, lengths)
        return self.transformer.encode(x, lengths / x.shape[1]), lengths

    def forward(self, x: Tensor, lengths: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of CTC (B, S, V), of attention (B, U, V), and how many states are real.

        Shapes: features (B, T, bands), lengths (B,) in frames, tokens (B, U) that begin with the
        begin and are 0 where padded.
        """
        x, lengths = self._reduced(x, lengths)
        states, decoded = self.transformer(x, tokens, lengths / x.shape[1])
        return self.ctc(states), self.output(decoded), lengths

    def _reduced(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        blocks = zip(self.front.values(), self.size.kernels, self.size.strides, strict=True)
        for block, kernel, stride in blocks:
            x = block(reflected(x, lengths, kernel // 2))[:, : -(-x.shape[1] // stride)]
            lengths = (lengths + stride - 1) // stride
        if x.shape[1] > POSITIONS:
            raise UserError(
                f"speech of {x.shape[1]} states is longer than the {POSITIONS} positions of the "
                "network: data.max_seconds leaves it out of training, cut it elsewhere"
            )
        return x, lengths

    def layers(self) -> Sequence[nn.Module]:
        """The front end's projection and each layer of the encoder: what puts out tokens."""
        return [self.transformer.custom_src_module, *self.transformer.encoder.layers]
