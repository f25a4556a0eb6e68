"""Sizes of the five measurements; `QUICK` has the smallest that run."""

from dataclasses import dataclass, field

SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class StackSettings:
    """Stacks of random layers."""

    dim: int = 64
    num_heads: int = 4
    num_tokens: int = 32
    num_samples: int = 4
    depths: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 24, 32, 48)  # measured; the last is the stack's
    seeds: tuple[int, ...] = SEEDS


@dataclass(frozen=True)
class SignSettings:
    """Iterations of X + A X W."""

    dim: int = 8
    num_tokens: int = 16
    # the theorem is about the limit, and the two largest eigenvalues can be close
    depths: tuple[int, ...] = (0, 1, 3, 10, 30, 100, 300, 1000, 3000)
    seeds: tuple[int, ...] = SEEDS


@dataclass(frozen=True)
class SpectrumSettings:
    """A vision transformer with random weights, on images of 32 x 32 in 64 patches."""

    model: str = "vit_tiny_patch16_224"
    num_layers: int = 12
    num_samples: int = 8
    seeds: tuple[int, ...] = SEEDS


@dataclass(frozen=True)
class MiniLMSettings:
    """A pretrained BERT on real sentences, beside random weights of the same shape."""

    num_sentences: int = 16
    seeds: tuple[int, ...] = SEEDS  # for the random weights


@dataclass(frozen=True)
class TaskSettings:
    """Networks that are trained to name each of their tokens."""

    dim: int = 32
    num_heads: int = 2
    num_tokens: int = 16
    vocabulary: int = 16
    batch_size: int = 16
    steps: int = 120  # at most: training ends once `solved_batches` in a row have no error
    solved_batches: int = 10
    warmup: int = 20
    test_samples: int = 256
    depths: tuple[int, ...] = (6, 12, 24)
    learning_rates: tuple[float, ...] = (1e-3, 4e-3)  # chosen at the first depth
    trial_seed: int = 100  # chooses the learning rate, and is none of the seeds that count
    seeds: tuple[int, ...] = SEEDS
    # at the first depth these also have `patience` times the steps: do they fail, or are they slow?
    patient: tuple[str, ...] = ("plain", "gfsa_negative")
    patience: int = 4


@dataclass(frozen=True)
class Settings:
    """All settings of `make evidence`."""

    stacks: StackSettings = field(default_factory=StackSettings)
    signs: SignSettings = field(default_factory=SignSettings)
    spectra: SpectrumSettings = field(default_factory=SpectrumSettings)
    minilm: MiniLMSettings = field(default_factory=MiniLMSettings)
    task: TaskSettings = field(default_factory=TaskSettings)


QUICK = Settings(
    StackSettings(dim=8, num_heads=2, num_tokens=5, num_samples=2, depths=(0, 1, 3), seeds=(0, 1)),
    SignSettings(dim=4, num_tokens=5, depths=(0, 10, 300), seeds=(0, 1)),
    SpectrumSettings(num_layers=1, num_samples=1, seeds=(0, 1)),
    MiniLMSettings(num_sentences=2, seeds=(0, 1)),
    TaskSettings(
        dim=8, num_tokens=5, vocabulary=4, batch_size=4, steps=4, warmup=1, test_samples=8,
        depths=(1, 2), seeds=(0, 1), patience=2,
    ),
)  # fmt: skip
