"""Which eigenvalue of I + H (x) A dominates: the rules of Record straight, and their repairs."""

import pytest
import torch
from attention_core import spectral, theory
from hypothesis import strategies as st
from torch import Tensor, tensor
from torch.testing import assert_close

from tests.core.theory.draws import draw, normal, sizes, softmax_map


def uniform(seed: int, size: int, low: float, high: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(size, generator=generator, dtype=torch.float64)


def real_map_spectrum(seed: int, n: int, low: float = -0.99) -> Tensor:
    return torch.cat([uniform(seed, n - 1, low, 0.99), torch.ones(1).double()])


def growth(H, A, pair):
    return abs(1 + (H[pair[0]] * A[pair[1]]).item())


def choose_larger(H, A, first, second):
    return max(first, second, key=lambda pair: growth(H, A, pair))


def choose_by_phase(H, A):
    """The three printed rules of theorem 3.3; corollary 3 repeats them for half planes."""
    smallest, largest, left = int(A.argmin()), int(A.argmax()), H.real < 0
    distance = (1 + H).abs()
    other = d = int(distance.argmax())
    if A[smallest] > 0:
        other = int(distance.argmin())
    elif left.any() and not left[d]:
        other = int(distance.masked_fill(~left, -1.0).argmax())
    return choose_larger(H, A, (d, largest), (other, smallest))


def choose_by_sign(H, A):
    """The printed rules of theorem B.1 for a real H; an eigenvalue 0 counts as positive."""
    low, high, first, last = int(H.argmin()), int(H.argmax()), int(A.argmin()), int(A.argmax())
    if H[low] >= 0 or (H[high] >= 0 and (1 + H[high]).abs() > (1 + H[low]).abs()):
        return high, last
    if H[high] >= 0 or (A[first] < 0 and H[low] < -2):
        return choose_larger(H, A, (low, first), (low, last))
    if A[first] < 0:
        return low, first
    return (low, last) if H[low] < -2 else choose_larger(H, A, (high, first), (low, last))


def is_right(choose, H, A) -> bool:
    best = (1 + torch.outer(H, A.to(H.dtype))).abs().max().item()
    return growth(H, A, choose(H, A)) >= best * (1 - 1e-12)


def test_proposition_1_most_eigenvalues_are_complex():
    spectrum = theory.measure_attention_spectrum(normal(0, 2000, 12, 12).softmax(-1))
    assert 0.6 < 1 - spectrum.real_share.mean() < 0.68  # 0.642 in 4000 draws
    assert (spectrum.real_share < 1).all()


@draw(n=sizes)
def test_proposition_1_holds_of_the_moduli(seed, n):
    spectrum = theory.measure_attention_spectrum(softmax_map(seed, n))
    assert_close(spectrum.eigenvalues[0].real, torch.ones(()).double())
    assert spectrum.second < 1
    assert spectrum.positive
    assert spectrum.invertible == (spectrum.eigenvalues.abs().min() > 1e-13)


def test_assumption_3_1_fails_for_equal_tokens_causal_masks_and_underflow():
    x = normal(0, 4, 3)
    x[1] = x[0]
    twins = theory.measure_attention_spectrum((x @ x.T).softmax(-1))
    assert twins.positive
    assert not twins.invertible
    causal = (x @ x.T).masked_fill(torch.ones(4, 4).triu(1) > 0, -torch.inf).softmax(-1)
    assert not theory.measure_attention_spectrum(causal).positive
    assert not theory.measure_attention_spectrum((1e3 * torch.eye(3)).softmax(-1)).positive


@draw(n=sizes, d=sizes)
def test_definition_3_2_by_a_double_loop(seed, n, d):
    A, H = torch.linalg.eigvals(softmax_map(seed, n)), torch.linalg.eigvals(normal(seed, d, d))
    moduli = {(j, i): abs(1 + (H[j] * A[i]).item()) for j in range(d) for i in range(n)}
    best = max(moduli.values())
    expected = {pair for pair, modulus in moduli.items() if modulus > best * (1 - 1e-9)}
    assert set(theory.find_dominating_pairs(H, A)) == expected


@draw(n=sizes, d=sizes, real=st.booleans(), positive=st.booleans())
def test_the_repaired_theorem_3_3_for_real_maps(seed, n, d, real, positive):
    A = real_map_spectrum(seed, n, 0.01 if positive else -0.99)
    H = 2 * normal(seed + 1, d) if real else torch.linalg.eigvals(2 * normal(seed + 1, d, d))
    assert is_right(theory.choose_dominating_pair, H, A)
    _, i = theory.choose_dominating_pair(H, A)
    assert A[i] in (A.min(), A.max())  # always at an end, as the text says


@pytest.mark.parametrize(("H", "A", "wrong", "right"), [
    ([-1.0, -0.5], [0.1, 1.0], 0.9, 0.95),  # rule 1, against corollary 2
    ([-0.1, -1.8, 1.0], [-0.9, 1.0], 2.0, 2.62),  # rule 2
    ([-0.2, -0.8], [-0.9, 1.0], 1.18, 1.72),  # rule 3, against corollary 2
])  # fmt: skip
def test_each_rule_of_theorem_3_3_fails(H, A, wrong, right):
    H, A = tensor(H).double(), tensor(A).double()
    assert growth(H, A, choose_by_phase(H, A)) == pytest.approx(wrong)
    assert growth(H, A, theory.choose_dominating_pair(H, A)) == pytest.approx(right)
    if (H < 0).all():
        assert not is_right(choose_by_phase, H, A)  # corollary 3 has the same rules


def test_a_complex_map_dominates_at_neither_end():
    first = tensor([0.02, 0.64, 0.32, 0.02]).double()
    A = torch.linalg.eigvals(torch.stack([first.roll(k) for k in range(4)]))  # circulant
    H = tensor([-1.0]).double()
    assert A.imag[A.real.argmin()].abs() < 1e-12
    assert all(A.imag[i].abs() > 0.6 for _, i in theory.find_dominating_pairs(H, A))
    with pytest.raises(ValueError, match="must be real"):
        theory.choose_dominating_pair(H, A)


@draw(n=sizes, d=sizes, real=st.booleans())
def test_corollary_2_holds_for_complex_maps_too(seed, n, d, real):
    A = real_map_spectrum(seed, n) if real else torch.linalg.eigvals(softmax_map(seed, n, 3.0))
    for low, high, effect, index in ((-1.0, -1e-3, "sharpens", 1), (1e-3, 4.0, "smooths", 0)):
        H = uniform(seed + 1, d, low, high)
        assert theory.predict_effect(H) == effect
        assert spectral.dominating_eigenvalue_shares(H, A, tolerance=1e-12)[index] == 1
        if real:  # the pairs that the corollary names
            j, i = theory.choose_dominating_pair(H, A)
            smooth = H.argmax() if A.min() > 0 else H.argmin()
            assert (j, i) == ((smooth, A.argmin()) if index else (H.argmax(), A.argmax()))


def test_corollary_2_says_nothing_of_zeros_and_of_other_spectra():
    for H in ([-0.5, 0.0], [-1.5, -0.5], [-0.5, 0.5], [0.5 + 0.1j]):
        assert theory.predict_effect(tensor(H)) is None
    assert theory.predict_effect(tensor([0.5 + 0j])) == "smooths"


@draw(n=sizes, d=sizes)
def test_corollary_3_holds_for_a_right_half_plane_and_a_real_map_alone(seed, n, d):
    H = torch.complex(uniform(seed, d, 0.0, 2.0), normal(seed + 1, d))
    A = real_map_spectrum(seed + 2, n)
    assert_close((1 + H).abs().max(), (1 + torch.outer(H, A.to(H.dtype))).abs().max())
    H, A = tensor([1j]), tensor([1.0, 0.9j, -0.9j])
    assert (0, 2) in theory.find_dominating_pairs(H, A)  # 1 + i (-0.9 i) = 1.9


@draw(n=sizes, d=sizes, positive=st.booleans(), wide=st.booleans())
def test_theorem_b1_holds_for_one_sign_and_repaired_for_mixed_signs(seed, n, d, positive, wide):
    A = real_map_spectrum(seed, n, 0.01 if positive else -0.99)
    for H in (uniform(seed + 1, d, 0.01, 4.0), -uniform(seed + 1, d, 0.01, 4.0 if wide else 1.9)):
        assert is_right(choose_by_sign, H, A)
    H = torch.cat([uniform(seed + 1, d, -4.0, 4.0), tensor([-0.5, 0.5]).double()])
    three = [1 + H.max(), (1 + H.min()).abs(), (1 + H.min() * A.min()).abs()]
    assert_close(torch.stack(three).max(), (1 + torch.outer(H, A)).abs().max())


def test_theorem_b1_fails_for_mixed_signs():
    H, A = tensor([-3.0, 1.5]).double(), tensor([-0.9, 1.0]).double()
    assert growth(H, A, choose_by_sign(H, A)) == pytest.approx(2.5)
    assert growth(H, A, theory.choose_dominating_pair(H, A)) == pytest.approx(3.7)
