"""Look at the filters of a model, give them random weights, and an attention of a user."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from attention_core import GFSA, AttnScale, Plain, Polynomial, attach, detach
from attention_core.hosts.adapter import Filtered
from torch import Tensor, nn
from torch.testing import assert_close


def filtered_modules(model: nn.Module) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Filtered)}


def filters(model: nn.Module) -> list[Any]:
    return [module.filter for module in filtered_modules(model).values()]


def randomize(model: nn.Module, part: str = "filter") -> nn.Module:
    """Draw the weights of all filters, or of all functions of tokens."""
    for name, weight in model.named_parameters():
        if part in name.split("."):
            nn.init.normal_(weight, std=0.7)
    return model


def count_trained(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def find_untrained(model: nn.Module) -> list[str]:
    """Return the trainable parameters that the last backward pass did not reach."""
    return [name for name, w in model.named_parameters() if w.requires_grad and w.grad is None]


def count_hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def record_calls(modules: list[nn.Module], call: Callable[[], Any]) -> list[tuple[Any, Any]]:
    """Return the inputs and the output of each module during a call."""
    calls: list[tuple[Any, Any]] = []
    for module in modules:
        module.register_forward_hook(lambda m, inputs, output: calls.append((inputs, output)))
    call()
    return calls


class OwnAttention(nn.Module):
    """An attention of a user, with options of the call."""

    def __init__(self, calls: int = 1, keys: int | None = None, unbatched: bool = False) -> None:
        super().__init__()
        self.num_heads, self.calls, self.keys, self.unbatched = 3, calls, keys, unbatched
        self.qkv = nn.Linear(12, 36)

    def forward(self, x: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 3, 4).permute(2, 0, 3, 1, 4)
        k, v = (u[:, :, : self.keys] for u in (k, v))
        if self.unbatched:
            q, k, v = (u.flatten(0, 1) for u in (q, k, v))
        y = torch.zeros_like(q)
        for _ in range(self.calls):
            y = y + F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
        return y.flatten(1) if self.unbatched else y.transpose(1, 2).flatten(2)


def build_double(make: Callable[[], nn.Module]) -> nn.Module:
    """Make a module in float64, with weights that are large enough for a fault to show."""
    torch.manual_seed(0)
    module = make().double()
    module.eval()  # TinyViT's and LeViT's return None
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.4)
    return module


def check_identity_and_detach(module: nn.Module, run: Callable[[nn.Module], Tensor]) -> None:
    """Check that filters at identity keep the output, that copies act, and that detach restores."""
    before, fused = type(module), getattr(module, "fused_attn", None)
    with torch.no_grad():  # TinyViT keeps what it computed, and could not be copied
        expected, names = run(module), list(module.state_dict())
    assert_close(run(attach(copy.deepcopy(module), Plain)), expected, rtol=1e-12, atol=1e-12)
    for filter in (GFSA, AttnScale, partial(Polynomial, K=3, basis="jacobi")):
        assert_close(run(attach(copy.deepcopy(module), filter)), expected)
    randomize(attach(module, GFSA))
    assert (run(module) - expected).abs().max() > 1e-3
    assert torch.equal(run(pickle.loads(pickle.dumps(module))), run(module))
    assert torch.equal(run(copy.deepcopy(module)), run(module))
    assert_close(run(detach(module)), expected, rtol=1e-12, atol=1e-12)  # fused or not
    assert (list(module.state_dict()), type(module)) == (names, before)
    assert getattr(module, "fused_attn", None) is fused
