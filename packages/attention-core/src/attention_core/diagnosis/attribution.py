"""Find the steps of a block among its tensors: the residual sum, its terms, and what follows it.

No name of a library is read: a tensor is the residual sum if it equals the sum of tokens before the
attention and of tokens after it. A step that no module of the block sees is left out.
"""

from itertools import pairwise

from torch import Tensor, nn

from attention_core.diagnosis.recording import AttentionCall, Event, equal_up_to_rounding

_PROBE = 64  # entries that are compared before the whole tensors


def find_steps(call: AttentionCall) -> tuple[dict[str, Tensor], str]:
    """Return the tokens (B, N, D) of each step of a block, and a note on what is not found.

    The steps are those of `LayerDiagnosis`.
    """
    first = call.events[0].tensor
    entered = call.events[call.start].tensor
    if call.to_batch_first(entered) is None or entered.shape[-1] != first.shape[-1]:
        return {}, "its tokens are not (batch, tokens, channels)"
    events = [
        (i, event)
        for i, event in enumerate(call.events)
        if _is_alike(event.tensor, first) and not event.is_changed
    ]
    found = _find_residual(events, call)
    output = call.events[-1]
    is_complete = output.module is call.events[0].module and _is_alike(output.tensor, first)
    steps, note = {"input": first}, ""
    if found is None:
        branch = [e.tensor for _, e in events if e.module is call.attention and not e.is_input]
        if branch:
            steps["attention"] = branch[-1]
        note = "no module sees the sum of the attention and its residual (as in parallel blocks)"
    else:
        place, x, branch_tokens, total = found
        steps = {"input": x, "attention": branch_tokens, "residual": total}
        steps |= _find_norms([e for i, e in events if i >= place], total)
    if is_complete and output.module is not call.attention:
        steps["mlp"] = output.tensor
    if steps.get("mlp") is steps.get("residual"):
        steps.pop("mlp", None)
    order = call.is_sequence_first
    return {
        name: x.transpose(0, 1) if order else x.flatten(1, -2) for name, x in steps.items()
    }, note


def _is_alike(x: Tensor, first: Tensor) -> bool:
    return (x.shape[0], x.shape[-1], x.numel()) == (first.shape[0], first.shape[-1], first.numel())


def _find_residual(
    events: list[tuple[int, Event]], call: AttentionCall
) -> tuple[int, Tensor, Tensor, Tensor] | None:
    """Return the position of the first sum after the attention, its two terms and itself."""
    before = _drop_repeated([e.tensor for i, e in events if i <= call.start])[::-1]
    seen = {id(x) for x in before}
    branches: list[Tensor] = []
    for i, event in events:
        total = event.tensor
        if i < call.position or id(total) in seen:
            continue
        for branch in branches:
            for x in before:
                if _is_sum(total, x, branch):
                    return i, x, branch, total
        seen.add(id(total))
        branches.append(total)  # also what enters a module: the branch times a LayerScale
    return None


def _find_norms(events: list[Event], total: Tensor) -> dict[str, Tensor]:
    """Return the norm of the residual sum and the sum after the MLP, in a post-LN block."""
    norms = [
        after.tensor
        for before, after in pairwise(events)
        if before.tensor is total
        and before.is_input
        and after.module is before.module
        and _is_norm(after.module)
    ]
    if not norms:
        return {}
    normed, output = norms[0], events[-1].tensor
    place = next(i for i, event in enumerate(events) if event.tensor is normed)
    later = events[place + 1 :]
    sums = [(total, False), (normed, True)]
    for i, event in enumerate(later):
        branches = [e.tensor for e in later[:i] if not e.is_input]
        for x, is_post in sums:
            if any(_is_sum(event.tensor, x, branch) for branch in branches):
                if not is_post:
                    return {}
                return {"norm": normed} | _find_last_sum(events[place:], output)
    return {"norm": normed} if output is normed else {}


def _find_last_sum(events: list[Event], output: Tensor) -> dict[str, Tensor]:
    for i in range(len(events) - 1, 0, -1):
        total = events[i].tensor
        terms = _drop_repeated([e.tensor for e in events[:i] if e.tensor is not total])
        for j, x in enumerate(terms):
            if any(_is_sum(total, x, branch) for branch in terms[j + 1 :]):
                return {} if total is output else {"mlp_residual": total}
    return {}


def _is_norm(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__


def _drop_repeated(tensors: list[Tensor]) -> list[Tensor]:
    return list({id(x): x for x in tensors}.values())


def _is_sum(total: Tensor, x: Tensor, branch: Tensor) -> bool:
    total, x, branch = (y.flatten(1) for y in (total, x, branch))
    probe = (slice(1), slice(_PROBE))
    return equal_up_to_rounding(total[probe], x[probe] + branch[probe]) and equal_up_to_rounding(
        total, x + branch
    )
