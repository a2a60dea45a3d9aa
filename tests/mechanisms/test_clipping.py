"""One example moves a clipped sum by no more than the bound, whatever it holds."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from veracal.mechanisms import clipping
from veracal.mechanisms.clipping import (
    Automatic,
    Flat,
    GlobalAdapt,
    GlobalV1,
    GlobalV2,
    add_gradient_noise,
    clipped_sum,
    is_continuous,
    select_and_scale,
)

CLIPS = [Flat(0.5), Automatic(0.5), GlobalV1(0.5, 3.0), GlobalV2(0.5), GlobalAdapt(0.5, 3.0)]
ODD = [0.0, -0.0, 5e-324, 1e-310, 1e-160, 1e-30, 0.1, -0.5, 1.0, 1e20, -1e154, 1e200, 1e308]
BROKEN = [math.nan, math.inf, -math.inf]


def slowly(gradients, factor) -> np.ndarray:
    """The definition, one example at a time, for gradients of ordinary size."""
    total = np.zeros(gradients.shape[1:])
    for gradient in gradients.astype(float):
        norm = math.sqrt((gradient**2).sum())
        total += factor(norm) * gradient
    return total


@pytest.mark.parametrize(
    ("clip", "factor"),
    [
        (Flat(0.5), lambda norm: min(1, 0.5 / norm)),
        (Automatic(0.5, gamma=0.2), lambda norm: 0.5 / (norm + 0.2)),
        (GlobalV1(0.5, 3.0), lambda norm: 0.5 / 3 if norm <= 3 else 0),
        (GlobalV2(2.0), lambda norm: 1 if norm <= 2 else 0),
        (GlobalAdapt(0.5, 3.0), lambda norm: 0.5 / 3 if norm <= 3 else 0.5 / norm),
    ],
    ids=lambda part: repr(part) if hasattr(part, "bound") else "definition",
)
def test_rules_equal_their_definition(clip, factor, rng) -> None:
    gradients = rng.standard_normal((40, 2, 3)) * rng.exponential(1.5, (40, 1, 1))
    result = clipped_sum(gradients, clip).total
    np.testing.assert_allclose(result, slowly(gradients, factor), rtol=5e-6, atol=1e-9)
    as_torch = clipped_sum(torch.asarray(gradients), clip).total
    np.testing.assert_allclose(as_torch.numpy(), result, rtol=1e-12, atol=1e-12)


entries = st.one_of(st.floats(-10, 10), st.sampled_from(ODD + BROKEN))
batches = arrays(np.float64, st.tuples(st.integers(1, 6), st.just(3)), elements=entries)


@pytest.mark.parametrize("clip", CLIPS, ids=repr)
@given(gradients=batches, other=arrays(np.float64, 3, elements=entries))
def test_one_example_contributes_at_most_the_bound(clip, gradients, other) -> None:
    whole = clipped_sum(gradients, clip)
    assert np.isfinite(whole.total).all()
    for i in range(len(gradients)):
        rest = clipped_sum(np.delete(gradients, i, axis=0), clip)
        assert np.linalg.norm(whole.total - rest.total) <= clip.bound
        assert abs(whole.exceeding - rest.exceeding) <= 1
        replaced = np.array(gradients)
        replaced[i] = other
        moved = whole.total - clipped_sum(replaced, clip).total
        assert np.linalg.norm(moved) <= 2 * clip.bound


@pytest.mark.parametrize("clip", CLIPS, ids=repr)
@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, torch.float32, torch.bfloat16, torch.float16]
)
def test_a_nonfinite_example_contributes_exactly_zero(clip, dtype, rng) -> None:
    good = rng.standard_normal((5, 4))
    for bad in (math.nan, math.inf, -math.inf):
        spoilt = np.insert(good, 2, [0.1, bad, 0.2, 0.3], axis=0)
        if isinstance(dtype, torch.dtype):
            pair = [torch.asarray(part).to(dtype) for part in (good, spoilt)]
        else:
            pair = [part.astype(dtype) for part in (good, spoilt)]
        clean, result = (clipped_sum(part, clip) for part in pair)
        np.testing.assert_allclose(
            np.asarray(result.total), np.asarray(clean.total), rtol=1e-14, atol=1e-15
        )
        assert result.exceeding == clean.exceeding
        only = clipped_sum(pair[1][2:3], clip).total
        assert np.array_equal(np.asarray(only), np.zeros(4))


@pytest.mark.parametrize("clip", CLIPS, ids=repr)
@pytest.mark.parametrize("value", ODD)
def test_extreme_entries_stay_within_the_bound(clip, value) -> None:
    for gradient in ([value, 0.0], [value, value], [value, -value]):
        for library in (np.asarray, torch.asarray):
            total = np.asarray(clipped_sum(library([gradient]), clip).total)
            assert np.isfinite(total).all() and math.hypot(*total) <= clip.bound


@pytest.mark.parametrize("bound", [1e-200, 1e-100, 1e-15, 1e15, 1e100])
def test_extreme_bounds_hold(bound) -> None:
    for value in (*ODD, bound, 3 * bound, bound / 3):
        total = clipped_sum(np.array([[value, value]]), Flat(bound)).total
        assert math.hypot(*total) <= bound


def test_a_finite_gradient_with_an_infinite_norm_is_dropped() -> None:
    largest = np.finfo(np.float64).max
    assert clipped_sum(np.array([[largest, largest]]), Flat(1.0)).total.tolist() == [0, 0]


def test_half_precision_norms_do_not_overflow() -> None:
    gradient = np.array([[300.0, 400.0]], dtype=np.float16)  # the squares are beyond float16
    np.testing.assert_allclose(clipped_sum(gradient, Flat(1.0)).total, [0.6, 0.8], rtol=1e-5)


def test_a_float32_sum_is_accumulated_in_float64() -> None:
    gradients = np.ones((20_000, 1), dtype=np.float32) * np.float32(0.1)
    total = clipped_sum(gradients, Flat(1.0)).total
    assert total.dtype == np.float64
    assert abs(total[0] - 20_000 * float(np.float32(0.1))) < 1e-9


@pytest.mark.parametrize("block", [1, 7 * 3, 1 << 22])
def test_the_size_of_a_block_does_not_matter(block, monkeypatch, rng) -> None:
    gradients = rng.standard_normal((50, 3)) * 10
    gradients[7] = math.nan
    whole = clipped_sum(gradients, GlobalAdapt(1.0, 5.0))
    monkeypatch.setattr(clipping, "_BLOCK_ENTRIES", block)
    parts = clipped_sum(gradients, GlobalAdapt(1.0, 5.0))
    np.testing.assert_allclose(parts.total, whole.total, rtol=1e-13)
    assert parts.exceeding == whole.exceeding > 0


def test_no_examples_sum_to_zero() -> None:
    assert clipped_sum(np.empty((0, 2, 3)), Flat(1.0)).total.tolist() == [[0] * 3] * 2
    assert clipped_sum(torch.empty(0, 2), GlobalAdapt(1.0)).exceeding == 0


def test_an_exact_sum_has_no_informative_repr() -> None:
    clipped = clipped_sum(np.array([[0.125]]), Flat(1.0))
    chosen = select_and_scale(np.array([8.0]), Flat(1.0))
    assert "0.125" not in repr(clipped) and "0.12" not in repr(chosen)


def test_selection_drops_nonfinite_norms() -> None:
    chosen = select_and_scale(np.array([1.0, math.nan, 4.0, math.inf], np.float32), Flat(2.0))
    assert chosen.kept.tolist() == [True, False, True, False]
    assert chosen.factors.dtype == np.float64
    np.testing.assert_allclose(chosen.factors, [1, 0.5], rtol=3e-6)


def test_exceeding_counts_kept_examples_only() -> None:
    gradients = np.array([[1.0], [7.0], [-9.0], [math.inf], [math.nan]])
    assert clipped_sum(gradients, GlobalAdapt(1.0, 5.0)).exceeding == 2
    assert clipped_sum(gradients, GlobalAdapt(1.0, 5.0, tolerance=1.5)).exceeding == 1
    assert clipped_sum(gradients, Flat(1.0)).exceeding == 0


def test_adaptation_follows_its_formula_within_limits() -> None:
    clip = GlobalAdapt(1.0, 10.0, rate=0.1)
    assert clip.adapt(0.3).threshold == pytest.approx(10 * math.exp(0.2))
    assert clip.adapt(0.0).threshold == pytest.approx(10 * math.exp(-0.1))
    assert clip.adapt(1e9).threshold == 1e12 and clip.adapt(-1e9).threshold == 1e-12
    assert clip.threshold == 10.0 and clip.adapt(0.3).bound == 1.0


@pytest.mark.parametrize("count_noise", [0.5, 1.0, 10.0])
def test_sum_and_count_are_charged_as_one_vector(count_noise) -> None:
    clip = GlobalAdapt(1.0, count_noise=count_noise)
    sensitivity = math.hypot(1 / 2.0, 1 / count_noise)  # in units of each one's noise
    assert clip.combined_noise_multiplier(2.0) == pytest.approx(1 / sensitivity)
    assert clip.combined_noise_multiplier(2.0) < min(2.0, count_noise)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Flat(0.0),
        lambda: Flat(math.inf),
        lambda: Automatic(1.0, gamma=0.0),
        lambda: Automatic(1e300, gamma=1e-10),
        lambda: GlobalV1(2.0, 1.0),
        lambda: GlobalV2(-1.0),
        lambda: GlobalAdapt(1.0, threshold=1e13),
        lambda: GlobalAdapt(1.0, count_noise=0.0),
    ],
)
def test_rules_reject_invalid_settings(wrong) -> None:
    with pytest.raises(ValueError, match="Expected"):
        wrong()


@pytest.mark.parametrize("library", [np.asarray, torch.asarray])
def test_pre_clipping_noise_has_its_distribution_and_keeps_the_dtype(library, rng) -> None:
    gradients = library(np.ones((400, 50), dtype=np.float32))
    noisy = add_gradient_noise(gradients, 0.046, rng=rng)
    assert noisy.dtype == gradients.dtype and tuple(noisy.shape) == (400, 50)
    assert np.std(np.asarray(noisy) - 1) == pytest.approx(0.046, rel=0.02)
    assert add_gradient_noise(gradients, 0.0, rng=rng) is gradients


def test_only_flat_and_automatic_are_continuous():
    class Own(Flat):
        """A custom rule."""

    assert is_continuous(Flat(1.0)) and is_continuous(Automatic(1.0))
    for rule in (GlobalV1(1.0, 2.0), GlobalV2(1.0), GlobalAdapt(1.0), Own(1.0)):
        assert not is_continuous(rule)


@pytest.mark.parametrize("width", [1, 3, 50, 9_000])
def test_the_norm_of_a_gradient_has_the_same_bits_beside_any_others(width):
    rng = np.random.default_rng(0)
    gradient, result = rng.standard_normal(width), set()
    for n in (1, 2, 3, 8, 17):
        for place in {0, n // 2, n - 1}:
            gradients = rng.standard_normal((n, width))
            gradients[place] = gradient
            result.add(clipping._norms(gradients, np)[place].tobytes())
    assert len(result) == 1
