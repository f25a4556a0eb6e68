"""A task that needs different tokens: name each token, by networks without attention's residual.

A sequence has random tokens, and the network must name the token at every position. The answer is
its own input: it is lost where attention makes tokens equal. The MLP keeps its residual and both
LayerNorms stay, so that what changes between two methods is the attention alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from attention_core import spectral
from torch import Tensor, nn

from benchmarks.evidence.methods import TRAINED, Method
from benchmarks.evidence.settings import TaskSettings

_PLANS = {"depths", "learning_rates", "seeds", "trial_seed", "patient", "patience", "steps"}


class Block(nn.Module):
    """A pre-LN block whose attention has a residual connection only on demand."""

    def __init__(self, method: Method, dim: int, num_heads: int) -> None:
        super().__init__()
        self.residual = method.residual
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = method.build_attention(dim, num_heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        z = self.attention(self.norm1(x))
        x = x + z if self.residual else z
        return x + self.mlp(self.norm2(x))


class TokenNamer(nn.Module):
    """Embeddings of tokens and positions, blocks, and one answer a token."""

    def __init__(
        self, method: Method, depth: int, dim: int, num_heads: int, num_tokens: int, vocabulary: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.positions = nn.Parameter(torch.randn(num_tokens, dim))
        self.blocks = nn.Sequential(*(Block(method, dim, num_heads) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encode_tokens(tokens))  # (B, N, vocabulary)

    def encode_tokens(self, tokens: Tensor) -> Tensor:
        """Return the tokens after the last block, (B, N, D)."""
        return self.blocks(self.embedding(tokens) + self.positions)


def list_budgets(settings: TaskSettings) -> list[tuple[str, int, int]]:
    """List every method, depth and number of steps."""
    usual = [(name, depth, settings.steps) for depth in settings.depths for name in TRAINED]
    steps = settings.steps * settings.patience
    return usual + [(name, settings.depths[0], steps) for name in settings.patient]


def list_trials(settings: TaskSettings) -> list[dict[str, Any]]:
    """List the runs that choose learning rates: at the first depth, on a seed of their own."""
    return [
        describe_run(settings, name, depth, rate, settings.trial_seed, steps)
        for name, depth, steps in list_budgets(settings)
        for rate in settings.learning_rates
        if depth == settings.depths[0]
    ]


def list_runs(settings: TaskSettings, trials: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """List the runs that count, at the learning rate of the best trial of their method."""
    rates = choose_rates(trials)
    return [
        describe_run(settings, name, depth, rates[name, steps], seed, steps)
        for name, depth, steps in list_budgets(settings)
        for seed in settings.seeds
    ]


def choose_rates(trials: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], float]:
    """Return the rate with the lowest loss of each method and number of steps; ties take the lower.

    >>> row = {"method": "plain", "steps": 9, "loss": 2.0, "learning_rate": 0.1}
    >>> choose_rates([row, row | {"loss": 1.0, "learning_rate": 0.2}])
    {('plain', 9): 0.2}
    """
    ordered = sorted(trials, key=lambda row: (row["loss"], row["learning_rate"]), reverse=True)
    return {(row["method"], row["steps"]): row["learning_rate"] for row in ordered}


def describe_run(
    settings: TaskSettings, name: str, depth: int, learning_rate: float, seed: int, steps: int
) -> dict[str, Any]:
    """Return the arguments of `train_namer`."""
    sizes = {key: value for key, value in asdict(settings).items() if key not in _PLANS}
    return {
        "name": name,
        "method": TRAINED[name].describe_layer(),
        "depth": depth,
        "learning_rate": learning_rate,
        "seed": seed,
        "steps": steps,
        **sizes,
    }


def train_namer(
    name: str, method: dict[str, Any], depth: int, learning_rate: float, seed: int, steps: int,
    warmup: int, solved_batches: int, batch_size: int, test_samples: int, **sizes: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """Train one network, and return one row: its accuracy on new sequences, and its tokens."""
    torch.manual_seed(seed)
    network = TokenNamer(Method(**method), depth, **sizes)
    optimizer = torch.optim.AdamW(network.parameters(), learning_rate, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / warmup) * (1 - step / steps)
    )
    # data of their own generator: all methods see the same sequences
    generator = torch.Generator().manual_seed(seed)
    shape = (sizes["num_tokens"],)
    tests = torch.randint(sizes["vocabulary"], (test_samples, *shape), generator=generator)
    start = measure_network(network, tests)
    right = 0  # batches in a row without an error
    for _ in range(steps):
        tokens = torch.randint(sizes["vocabulary"], (batch_size, *shape), generator=generator)
        logits = network(tokens)
        right = right + 1 if bool((logits.argmax(-1) == tokens).all()) else 0
        if right == solved_batches:
            break
        optimizer.zero_grad()
        compute_loss(logits, tokens).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return [
        {"method": name, "depth": depth, "seed": seed, "learning_rate": learning_rate,
         "steps": steps, "start_cosine": start["token_cosine"],
         "start_hfc_lfc": start["hfc_lfc"], **measure_network(network, tests)}
    ]  # fmt: skip


def compute_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Compute the mean cross entropy of the tokens."""
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


@torch.no_grad()
def measure_network(network: TokenNamer, tokens: Tensor) -> dict[str, float]:
    """Measure accuracy and loss, and the tokens after the last block."""
    x = network.encode_tokens(tokens)
    logits = network.head(x)
    return {
        "accuracy": (logits.argmax(-1) == tokens).double().mean().item(),
        "loss": compute_loss(logits, tokens).item(),
        "token_cosine": spectral.token_cosine(x).mean().item(),
        "hfc_lfc": spectral.hfc_lfc(x).mean().item(),
    }
