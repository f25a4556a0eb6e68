"""The contract of hosts: a model is itself with Plain, after detach, and after a refusal."""

import copy
import pickle
from collections.abc import Callable
from functools import cache, partial
from itertools import count, product
from typing import Any, NamedTuple

import pytest
import torch
from attention_core import AGF, EigenSpectrum, FeatScale, LayerScale, SelfAttention, attach, detach
from attention_core.filters import GFSA, AttnScale, Plain, ReAttention
from attention_core.hosts.hook_points import find_positions
from attention_core.hosts.saving import load_mechanism, save_mechanism
from attention_core.hosts.transformers import load
from timm.models import eva
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.testing import assert_close

from tests.core.kernels import cases as kernels
from tests.hosts import helpers, speechbrain_models, timm_models, torch_models
from tests.hosts.helpers import filtered_modules, randomize, run
from tests.hosts.transformers import models as transformers_models

# torch warns of the masks that speechbrain passes
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")


class Case(NamedTuple):
    """A model, its inputs, and the number of its layers with attention."""

    build: Callable[[], nn.Module]
    make_inputs: Callable[[], dict[str, Tensor]]
    num_layers: int
    is_bitwise: bool = True


CASES = {
    name: Case(partial(timm_models.build, name), timm_models.make_inputs, num_layers)
    for name, num_layers in timm_models.NUM_LAYERS.items()
}
for name, family in transformers_models.FAMILIES.items():
    # stock models that run eagerly in float64 are nan where a window holds padding alone
    is_eager = name in transformers_models.EAGER
    make_inputs = partial(transformers_models.make_inputs, name, padded=not is_eager)
    build = partial(transformers_models.build, name)
    CASES[f"transformers-{name}"] = Case(build, make_inputs, family.num_layers, not is_eager)
for encoder, kind in product(speechbrain_models.ENCODERS, speechbrain_models.KINDS):
    build = partial(speechbrain_models.build, encoder, kind)
    is_bitwise = kind != "regularMHA"
    CASES[f"{encoder}-{kind}"] = Case(build, speechbrain_models.make_inputs, 2, is_bitwise)
for name, build in torch_models.BUILDS.items():
    num_layers = 4 if name == "transformer" else 2  # encoder and decoder
    CASES[f"torch-{name}"] = Case(build, partial(torch_models.make_inputs, name), num_layers, False)
all_cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@all_cases
def test_a_batch_of_no_samples_has_the_outputs_shape_of_the_host(case):
    stock, inputs = case.build(), {name: t[:0] for name, t in case.make_inputs().items()}
    try:
        expected = run(stock, inputs)
    except Exception as error:
        pytest.skip(f"the host itself takes none: {error}")
    y = run(attach(stock, partial(GFSA, wK=0.3)), inputs)
    assert (y.shape, y.dtype) == (expected.shape, expected.dtype)


@all_cases
def test_filters_that_start_as_attention_start_as_the_host(case):
    stock, inputs = case.build(), case.make_inputs()
    expected, plain = run(stock, inputs), attach(copy.deepcopy(stock), Plain)
    assert len(filtered_modules(plain)) == case.num_layers
    # some hosts compute the softmax in float32
    tolerance = {"rtol": 0, "atol": 0} if case.is_bitwise else {"rtol": 1e-4, "atol": 2e-5}
    assert_close(run(plain, inputs), expected, **tolerance)
    for make in [GFSA, AttnScale]:
        ours = attach(copy.deepcopy(stock), make)
        missing, unexpected = ours.load_state_dict(stock.state_dict(), strict=False)
        assert not unexpected
        assert all(".filter." in name for name in missing)
        assert_close(run(ours, inputs), expected, rtol=1e-4, atol=2e-5)


def list_configs(model: nn.Module) -> list[dict[str, Any]]:
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    return [config.to_dict() | {"kind": config._attn_implementation} for config in configs]


@all_cases
def test_copies_keep_the_filters_and_detach_restores_the_host(case):
    model, inputs = case.build(), case.make_inputs()
    before, names = run(model, inputs), list(model.state_dict())
    types = [type(module) for module in model.modules()]
    configs, hooks = list_configs(model), helpers.count_hooks(model)
    has_hook_points = all(find_positions(model, "attention"))
    slots = {"tokens": partial(LayerScale, init=0.3)} if has_hook_points else {}
    randomize(attach(attach(model, Plain, ":1"), GFSA, **slots))
    weights = [f"{name}.filter.{w}" for name in filtered_modules(model) for w in ("w0", "w1", "wK")]
    new = set(model.state_dict()) - set(names)
    assert {name for name in new if not name.endswith(".tokens.gamma")} == set(weights)
    filtered, clone = run(model, inputs), copy.deepcopy(model)
    assert (filtered - before).abs().max() > 1e-3
    assert torch.equal(run(clone, inputs), filtered)
    if not any(map(is_parametrized, model.modules())):  # which torch does not pickle
        assert torch.equal(run(pickle.loads(pickle.dumps(model)), inputs), filtered)
    assert not torch.equal(run(randomize(clone), inputs), filtered)
    clone.load_state_dict(model.state_dict())
    for attached in (model, clone):
        assert torch.equal(run(attached, inputs), filtered)
        assert torch.equal(run(detach(attached), inputs), before)
        assert list(attached.state_dict()) == names
        assert [type(module) for module in attached.modules()] == types
        assert (list_configs(attached), helpers.count_hooks(attached)) == (configs, hooks)


def find_layer(kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    module, x = speechbrain_models.build_layer(kind), torch.randn(2, 11, 12).double()
    positions = speechbrain_models.relative_positions(module)
    given = {"key_padding_mask": speechbrain_models.PADDING, "pos_embs": positions}
    return attach(module, GFSA), {"query": x, "key": x, "value": x} | given


def attach_slots(name: str, slots: dict[str, Any], **options: Any) -> tuple[nn.Module, Any]:
    """Attach to a model of one layer, or of one that shifts its windows."""
    model = CASES[name].build(**options)
    model = model.layers[0] if name == "torch-encoder" else model
    return attach(model, **{"filter": GFSA} | slots), CASES[name].make_inputs()


SLOTS = {"kernel": partial(AGF, K=2), "tokens": FeatScale, "reparam": EigenSpectrum}
MIXING = {"filter": ReAttention, "tokens": FeatScale}
COMPILED = {
    "vit": partial(attach_slots, "vit", SLOTS, depth=1),
    "cait": partial(attach_slots, "cait", {"tokens": FeatScale}, depth=1),
    "swin": partial(attach_slots, "swin", MIXING, depths=(2,)),
    "torch-encoder": partial(attach_slots, "torch-encoder", {}),
    "transformers-bert": partial(attach_slots, "transformers-bert", {}, num_hidden_layers=1),
    **{kind: partial(find_layer, kind) for kind in speechbrain_models.KINDS},
}


@pytest.mark.parametrize("make", COMPILED.values(), ids=COMPILED)
def test_a_filtered_module_compiles_in_one_graph(make):
    torch.compiler.reset()
    module, inputs = make()
    compiled = torch.compile(randomize(module), fullgraph=True, backend="eager")
    assert_close(run(compiled, inputs), run(module, inputs))


KERNELS = ["vit", "transformers-bert", "transformers-vit", "torch-encoder", "torch-encoder-first"]


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_acts_is_restored_and_sees_no_padding(name, tmp_path):
    case = CASES[name]
    stock, inputs = case.build(), case.make_inputs()
    before, model = run(stock, inputs), attach(copy.deepcopy(stock), kernel=partial(AGF, K=2))
    randomize(model, "kernel")
    y = run(model, inputs)
    assert (y - before).abs().max() > 1e-3
    save_mechanism(model, tmp_path)
    assert torch.equal(run(load_mechanism(stock, tmp_path), inputs), y)
    if name in ("transformers-bert", "torch-encoder"):
        assert_close(run(model, {key: x[1:, :5] for key, x in inputs.items()}), y[1:, :5])
    assert torch.equal(run(detach(model), inputs), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kernel", kernels.CASES, ids=lambda case: case.name)
def test_a_kernel_takes_the_precision_of_its_host(kernel, dtype):
    layer = nn.MultiheadAttention(12, 3, batch_first=True, dtype=dtype)
    layer._parameters = {"int8": nn.Parameter(torch.ones(1).char(), False)} | layer._parameters
    attach(layer, kernel=lambda dim, num_heads: kernel.make(dim, num_heads, 11))
    assert layer(*[torch.randn(2, 11, 12, dtype=dtype)] * 3, need_weights=False)[0].dtype == dtype


# the attention of the last layer up to its output projection, for one token, whose map is 1
SPECTRA: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "vit": lambda m, x: m.blocks[-1].attn(x),
    "torch-encoder": lambda m, x: m.layers[-1].self_attn(x, x, x)[0],
    "transformers-bert": lambda m, x: (a := m.encoder.layer[-1].attention).output.dense(
        a.self(x)[0]
    ),
    "transformers-bart": lambda m, x: m.model.decoder.layers[-1].self_attn(x)[0],
    "transformers-vit": lambda m, x: m.layers[-1].attention(x)[0],
}


@pytest.mark.parametrize("name", SPECTRA)
def test_a_spectrum_is_that_of_a_layer_is_saved_and_leaves_its_weights(name, tmp_path):
    case = CASES[name]
    stock, inputs = case.build(), case.make_inputs()
    model = attach(copy.deepcopy(stock), reparam=EigenSpectrum)
    y, layer = run(model, inputs), [*filtered_modules(model).values()][-1]
    expected, dtype = layer.spectrum[0].eigenvalues(), layer.spectrum[0].value.dtype
    x = torch.randn(1, 1, len(expected), dtype=dtype)
    jacobian = torch.autograd.functional.jacobian(partial(SPECTRA[name], model), x).squeeze()
    found = torch.linalg.eigvals(jacobian).real.sort().values
    assert_close(found, expected.sort().values.to(dtype), rtol=1e-3, atol=1e-4)
    save_mechanism(model, tmp_path)
    assert torch.equal(run(load_mechanism(stock, tmp_path), inputs), y)
    if name.startswith("transformers"):
        model.save_pretrained(tmp_path / "whole")
        # a loaded tensor lies elsewhere in memory, where a product may be rounded otherwise
        assert_close(run(load(type(model), tmp_path / "whole", dtype=dtype), inputs), y)
    for tied in (copy.deepcopy(model), model):
        assert_close(run(detach(tied), inputs), y)
        assert [*tied.state_dict()] == [*case.build().state_dict()]


def test_a_kernel_and_a_spectrum_of_rotated_queries_act():
    layer = attach(eva.EvaAttention(12, 3, scale_norm=False).eval(), kernel=AGF)
    x = torch.randn(2, 7, 12)
    q, k, v = (u.unflatten(-1, (3, 4)).transpose(1, 2) for u in layer.qkv(x).chunk(3, -1))
    assert_close(layer(x), layer.proj((layer.kernel(q, k, x) @ v).transpose(1, 2).flatten(2)))
    (spectrum,) = attach(detach(layer), reparam=EigenSpectrum).spectrum
    H = torch.autograd.functional.jacobian(layer, x[:1, :1]).squeeze()  # one token, whose map is 1
    assert_close(H, layer.proj.weight @ spectrum.value)


QUIET = {"attention_probs_dropout_prob": 0.4, "hidden_dropout_prob": 0.0}
DROPPED = {
    "timm": lambda: (timm_models.build(attn_drop_rate=0.5), timm_models.make_inputs()),
    "transformers": lambda: (
        transformers_models.build("bert", **QUIET), transformers_models.make_inputs("bert")),
    "speechbrain": lambda: (
        speechbrain_models.build_layer("regularMHA", dropout=0.5),
        dict.fromkeys(("query", "key", "value"), torch.randn(2, 11, 12).double())),
}  # fmt: skip


@pytest.mark.parametrize("make", DROPPED.values(), ids=DROPPED)
def test_dropout_acts_in_training_alone(make):
    model, inputs = make()
    attach(model, GFSA)
    assert torch.equal(run(model, inputs), run(model, inputs))
    model.train()
    assert not torch.equal(run(model, inputs), run(model, inputs))


OWN = Case(lambda: SelfAttention(12, 3).eval(), lambda: {"x": torch.randn(2, 7, 12)}, 0)
REFUSED = (TypeError, ValueError, RuntimeError)


def fail_late(make: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """Return a factory that makes `calls` parts and then raises."""
    counter = count(1)

    def make_or_fail(*sizes: int) -> Any:
        if next(counter) > calls:
            raise RuntimeError("no more parts")
        return make(*sizes)

    return make_or_fail


# by the number of the last layer; made anew for each model, since some count their calls
REFUSALS: dict[str, Callable[[int], dict[str, Any]]] = {
    "filter-none": lambda last: {"make_filter": lambda heads: None},
    "filter-tokens": lambda last: {"make_filter": FeatScale},
    "filter-late": lambda last: {"make_filter": fail_late(GFSA, last)},
    "kernel-filter": lambda last: {"kernel": GFSA},
    "tokens-none": lambda last: {"make_filter": GFSA, "tokens": lambda dim: None},
    "tokens-late": lambda last: {"make_filter": GFSA, "tokens": fail_late(LayerScale, last)},
    "reparam-none": lambda last: {"reparam": lambda dim: None},
    "reparam-shared": lambda last: {"make_filter": GFSA, "reparam": cache(EigenSpectrum)},
    "reparam-width": lambda last: {"reparam": lambda dim: EigenSpectrum(dim + 1)},
    "reparam-late": lambda last: {"reparam": fail_late(EigenSpectrum, last)},
    "layers-empty": lambda last: {"make_filter": GFSA, "layers": "99:"},
    "where-absent": lambda last: {"make_filter": GFSA, "where": "Nope"},
    "option-unknown": lambda last: {"make_filter": GFSA, "K": 5},
    "position": lambda last: {"make_filter": GFSA, "position": "nope"},
}


# one host of each library, with and without places for tokens, kernels and spectra
REFUSING = {name: CASES[name] for name in ("vit", "swin", "transformers-bert", "torch-encoder")}
REFUSING |= {"RelPos": CASES[f"{speechbrain_models.ENCODERS[0]}-RelPosMHAXL"], "SelfAttention": OWN}


@pytest.mark.parametrize("case", REFUSING.values(), ids=REFUSING)
def test_a_refused_attach_changes_nothing(case):
    model, inputs = case.build(), case.make_inputs()
    handle = next(model.modules()).register_forward_hook(lambda *given: None)
    output, before = run(model, inputs), helpers.take_snapshot(model)
    for make_options in REFUSALS.values():
        with pytest.raises(REFUSED):
            attach(model, **make_options(max(case.num_layers - 1, 0)))
        helpers.check_unchanged(model, before)
        assert_close(run(model, inputs), output, rtol=0, atol=0, equal_nan=True)
    assert detach(model) is model
    helpers.check_unchanged(model, before)
    handle.remove()
    assert not next(model.modules())._forward_hooks
    if case is not OWN:
        assert len(filtered_modules(attach(model, GFSA))) == case.num_layers
