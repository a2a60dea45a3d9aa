"""Arbitrariness from released weights, compared with new draws of the noise."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from scipy.special import ndtr

from veracal.accounting import Budget
from veracal.errors import DataError
from veracal.training import OutputPerturbation
from veracal.training.arbitrariness import (
    is_informative,
    max_disagreement,
    plane_distances,
)
from veracal.training.newton import minimize
from veracal.training.output_perturbation import (
    gaussian_noise_multiplier,
    sensitivity,
    spherical_gamma,
)
from veracal.training.weight_noise import (
    GammaNoise,
    GaussianNoise,
    gaussian_disagreement,
    output_arbitrariness,
)

RNG = np.random.default_rng(0)
BOTH = [GaussianNoise(1.0, 2), GammaNoise(1.0, 2)]


def draw_noise(noise, n, rng=RNG):
    if isinstance(noise, GaussianNoise):
        return rng.normal(0.0, noise.std, (n, noise.dimension))
    return spherical_gamma(noise.dimension, noise.scale, rng=rng, size=n)


def at_distances(z, far=60.0):
    """Weights, and rows in the plane of two features at given distances from theirs."""
    share = np.asarray(z) / far
    return np.array([far, 0.0]), np.stack([share, np.sqrt(1 - share**2)], axis=1)


def test_the_closed_form_matches_runs_with_new_noise():
    w, X, sigma, m = RNG.normal(size=4), RNG.normal(size=(30, 4)), 1.3, 20_000
    share = ((w + sigma * RNG.normal(size=(m, 4))) @ X.T > 0).mean(axis=0)
    result = gaussian_disagreement(w, X, sigma)
    np.testing.assert_allclose(result, 4 * share * (1 - share), atol=5 * 2 / np.sqrt(m))


@pytest.mark.parametrize("noise", BOTH, ids=repr)
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 4.0])
def test_intervals_cover_an_individual_named_beforehand(noise, t):
    """Each end fails in at most a twentieth of the releases, at any distance t."""
    level, trials = 0.9, 20_000
    tail = noise.tail_probability(np.array([t]))[0]
    mu = 4 * tail * (1 - tail)
    w, X = at_distances(t + draw_noise(noise, trials)[:, 0])
    result = output_arbitrariness(w, X, noise, level=level, individuals=1)
    error = 4 * np.sqrt(0.05 / trials)
    assert (result.low > mu).mean() <= 0.05 + error
    assert (result.high < mu).mean() <= 0.05 + error
    if t == 0.0:  # both sides count here, and the one-sided quantile fails
        assert (result.high < mu).mean() >= 0.05 - error
        narrow = np.abs(w @ X.T) - noise.quantile(0.05) > 0
        assert narrow.mean() > 0.09


@pytest.mark.parametrize("noise", [GaussianNoise(1.0, 8), GammaNoise(1.0, 8)], ids=repr)
def test_intervals_for_all_hold_for_individuals_chosen_afterwards(noise):
    theta, level, trials = np.full(8, 0.1), 0.8, 60
    failed = named = 0
    for b in draw_noise(noise, trials):
        X = np.stack([b, -b, theta, theta + b])  # chosen with knowledge of the noise
        tail = noise.tail_probability(plane_distances(theta, X).sums[:, 0])
        truth = 4 * tail * (1 - tail)
        result = output_arbitrariness(theta + b, X, noise, level=level)
        failed += bool(((truth < result.low) | (truth > result.high)).any())
        one = output_arbitrariness(theta + b, X, noise, level=level, individuals=1)
        named += bool(((truth < one.low) | (truth > one.high)).any())
    assert failed / trials <= 0.2 + 4 * np.sqrt(0.16 / trials)
    assert named / trials > 0.5  # intervals for one individual named beforehand do not hold


def test_more_individuals_have_wider_intervals():
    w, X = at_distances([0.0, 1.0, 3.0, 8.0])
    for noise in BOTH:
        ends = [
            output_arbitrariness(w, X, noise, individuals=k)
            for k in (1, 10, 10**6, 10**12, None)
        ]
        for one, more in pairwise(ends):
            assert (more.high >= one.high).all() and (more.low <= one.low).all()
        np.testing.assert_array_equal(ends[-1].high, ends[-2].high)
        assert ends[1].holds_for == "10 individuals named beforehand"
        assert ends[-1].holds_for == "all individuals at once"


def test_several_individuals_share_the_level():
    """For ten individuals, all intervals hold together; at individual levels they do not."""
    noise, trials, t = GaussianNoise(1.0, 10), 150, 0.0
    X, missed = np.eye(10), np.zeros(2)
    for b in draw_noise(noise, trials):
        for at, individuals in enumerate((10, 1)):
            result = output_arbitrariness(t + b, X, noise, level=0.9, individuals=individuals)
            missed[at] += bool((result.high < 1).any() or (result.low > 1).any())
    assert missed[0] / trials <= 0.1 + 0.09 and missed[1] / trials > 0.3


def test_a_threshold_shifts_the_plane():
    noise, theta, c = GaussianNoise(0.1, 3), np.array([1.0, -0.5, 0.3]), 0.9
    X = np.hstack([RNG.normal(size=(40, 2)), np.ones((40, 1))])
    shifted = theta - np.array([0.0, 0.0, c])  # the 1 of every row contains the threshold
    one = output_arbitrariness(theta, X, noise, threshold=c, individuals=3)
    other = output_arbitrariness(shifted, X, noise)
    np.testing.assert_allclose(one.high, other.high, rtol=1e-9)
    np.testing.assert_allclose(one.low, other.low, rtol=1e-9)
    assert one.holds_for == "all individuals at once"  # the threshold may depend on the weights
    plain = output_arbitrariness(theta, X, noise)
    assert np.abs(one.high - plain.high).max() > 0.01


def test_the_estimate_with_a_threshold_shrinks_the_weights_alone():
    noise, w, c = GaussianNoise(1.0, 2), np.array([2.0, 1.0]), 0.7
    X = RNG.normal(size=(20, 2))
    kappa = (2.5 - 1) / 2.5
    mean, spread = kappa * X @ w - c, np.linalg.norm(X, axis=1) * np.sqrt(1 + kappa)
    above = ndtr(mean / spread)
    slowly = np.where(X @ w > c, 1 - above, above)
    result = output_arbitrariness(w, X, noise, threshold=c).flip
    np.testing.assert_allclose(result, slowly, rtol=1e-12)


def test_the_unshrunk_estimate_underestimates_arbitrariness():
    """Flips at distance 0 average 0.30 instead of 0.50, at distance 3 0.041, not 0.003."""
    for t, flat, truth in ((0.0, 0.304, 0.50), (3.0, 0.041, 0.003)):
        z = RNG.normal(t, 1.0, 400_000)
        assert ndtr(-np.abs(z) / np.sqrt(2)).mean() == pytest.approx(flat, abs=2e-3)
        contradicted = np.where(z > 0, ndtr(-t), ndtr(t))
        assert contradicted.mean() == pytest.approx(truth, abs=3e-3)


def test_the_shrunk_estimate_is_more_accurate():
    """The demonstration of the method: n = 500, d = 10, C = 1, epsilon = 1.

    On other synthetic records the mean flip was 0.470, the flat estimate 0.300, the shrunk 0.454.
    """
    rng = np.random.default_rng(1)
    X = rng.normal(size=(500, 10))
    X /= np.linalg.norm(X, axis=1)[:, None]
    line = rng.normal(size=10)
    odds = X @ (8 * line / np.linalg.norm(line))
    signs = np.where(rng.random(500) < 1 / (1 + np.exp(-odds)), 1, -1)
    exact = minimize(X, signs, np.zeros((1, 10)), penalty=1.0)[0]
    multiplier = gaussian_noise_multiplier(Budget(1.0, 1e-3, "replace-one"))
    noise = GaussianNoise(multiplier * sensitivity(1.0, 1.0, "replace-one"), 10)
    truth, flat, shrunk = [], [], []
    t = X @ exact / noise.std
    for b in draw_noise(noise, 200, rng):
        z = X @ (exact + b) / noise.std
        truth.append(np.where(z > 0, ndtr(-t), ndtr(t)).mean())
        flat.append(ndtr(-np.abs(z) / np.sqrt(2)).mean())
        shrunk.append(output_arbitrariness(exact + b, X, noise).flip.mean())
    assert np.mean(truth) == pytest.approx(0.467, abs=0.01)
    assert np.mean(flat) == pytest.approx(0.299, abs=0.01)
    assert np.mean(shrunk) == pytest.approx(0.455, abs=0.02)


# ---------------------------------------------------------------- more than two classes


def slow_many(w, x, noise, spare, individuals):
    """The ends for K classes, by their definition."""
    k, both = len(w), noise.difference()
    pairs = k * (k - 1) / 2
    r = both.length_quantile(spare / pairs)
    if individuals is not None:
        r = min(r, both.quantile(spare / pairs / individuals / 2))
    z = (w[:, None] - w[None]) @ x / np.linalg.norm(x)
    top = int((w @ x).argmax())
    overtaken = sum(both.tail_probability(z[top, j] - r) for j in range(k) if j != top)
    most = [
        min(both.tail_probability(z[j, c] - r) for j in range(k) if j != c) for c in range(k)
    ]
    left, sizes = 1.0, []
    for bound in sorted(most, reverse=True):
        sizes.append(min(bound, left))
        left -= sizes[-1]
    sizes[0] += left
    low = k / (k - 1) * (1 - sum(p * p for p in sizes))
    return max(low, 0.0), max_disagreement(np.array(min(overtaken, 1.0)), k)


@pytest.mark.parametrize("noise", [GaussianNoise(0.4, 3), GammaNoise(0.2, 3)], ids=repr)
@pytest.mark.parametrize("individuals", [None, 5])
def test_many_classes_equal_their_definition(noise, individuals):
    for k in (3, 5):
        w, X = RNG.normal(size=(k, 3)), RNG.normal(size=(6, 3))
        result = output_arbitrariness(w, X, noise, individuals=individuals, level=0.9)
        slowly = [slow_many(w, x, noise, 0.1, individuals) for x in X]
        np.testing.assert_allclose(result.low, [low for low, _ in slowly], atol=1e-9)
        np.testing.assert_allclose(result.high, [high for _, high in slowly], atol=1e-9)
        assert result.flip is None


def test_filling_the_largest_bounds_first_minimizes_disagreement():
    """No probabilities within these bounds have a larger sum of squares."""
    hundredths = product(range(101), repeat=2)
    within = [(p, q, 100 - p - q) for p, q in hundredths if p <= 70 and q <= 45]
    best = max(sum(x * x for x in p) for p in within if 0 <= p[2] <= 30)
    assert best == 70**2 + 30**2


@pytest.mark.parametrize("noise", [GaussianNoise(1.0, 2), GammaNoise(0.5, 2)], ids=repr)
@pytest.mark.parametrize("individuals", [None, 1])
def test_intervals_of_many_classes_hold(noise, individuals):
    theta = np.array([[3.0, 0.0], [-1.0, 2.0], [-2.0, -2.5]])
    X = np.array([[1.0, 0.0], [0.3, 0.5], [-0.5, 0.1], [-1.0, -1.0]])
    runs = np.stack([draw_noise(noise, 20_000) for _ in theta], axis=1) + theta
    chosen = (runs @ X.T).argmax(axis=1)
    shares = np.stack([(chosen == c).mean(axis=0) for c in range(3)])
    truth = 1.5 * (1 - (shares**2).sum(axis=0))
    failed, some = np.zeros(4), 0
    for w in runs[:80]:
        result = output_arbitrariness(w, X, noise, level=0.8, individuals=individuals)
        failed += (truth < result.low - 0.01) | (truth > result.high + 0.01)
        some += int(is_informative(result.low, result.high).sum())
    assert failed.max() / 80 <= 0.2 and some > 20


def test_max_disagreement_is_attained_by_an_even_rest():
    q = np.linspace(0, 1, 41)
    assert np.allclose(max_disagreement(q, 2), np.where(q < 0.5, 4 * q * (1 - q), 1.0))
    for k in (3, 7):
        rest = [np.r_[1 - a, np.full(k - 1, a / (k - 1))] for a in q]
        slowly = np.array([k / (k - 1) * (1 - (p**2).sum()) for p in rest])
        below = q <= (k - 1) / k
        np.testing.assert_allclose(max_disagreement(q, k)[below], slowly[below], atol=1e-12)
        np.testing.assert_allclose(max_disagreement(q, k)[~below], 1.0)


# ---------------------------------------------------------------- edge cases


@pytest.mark.parametrize(
    "noise", [GaussianNoise(0.7, 3), GammaNoise(0.7, 3), GammaNoise(0.3, 9)]
)
def test_individuals_near_the_plane_have_an_upper_end_of_one(noise):
    near = output_arbitrariness(np.full(noise.dimension, 1e-3), np.eye(noise.dimension), noise)
    assert (near.high == 1.0).all()  # exactly 1


def test_a_row_of_zeros_is_never_above_the_threshold():
    assert gaussian_disagreement([1.0, 2.0], np.zeros((1, 2)), 1.0).tolist() == [0.0]
    for noise, w in product(BOTH, ([1.0, 2.0], np.eye(3, 2))):
        result = output_arbitrariness(w, np.zeros((1, 2)), noise)
        assert (result.low[0], result.high[0]) == (0.0, 0.0)
        assert result.flip is None or result.flip[0] == 0.0


def test_huge_numbers_have_a_defined_result():
    X = np.array([[1e308, 1e308], [1.0, 0.0], [5e-324, 0.0]])
    for noise in BOTH:
        result = output_arbitrariness([1e308, 1e308], X, noise)
        assert np.isfinite(result.low).all() and np.isfinite(result.high).all()
        assert result.high[1] == 0.0  # too far for any noise to flip
        lost = output_arbitrariness(np.full(2, 1.7e308), np.ones((1, 2)), noise)
        assert (lost.low[0], lost.high[0]) == (0.0, 1.0)  # its sum overflows
        both = output_arbitrariness(np.eye(3, 2) * 1e308, X, noise)
        assert np.isfinite(both.high).all() and np.isfinite(both.low).all()
    tiny = output_arbitrariness([0.0, 0.0], X, GaussianNoise(1e-300, 2))
    assert (tiny.high == 1.0).all() and (tiny.flip == 0.5).all()


def test_no_individuals_give_an_empty_result():
    result = output_arbitrariness([1.0, 0.0], np.zeros((0, 2)), BOTH[0])
    assert result.informative_share == 0.0 and len(result.high) == 0


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"weights": [1.0]}, DataError, "1 finite numbers"),
        ({"weights": np.eye(2)}, DataError, r"k >= 3"),
        ({"weights": [np.nan, 1.0]}, DataError, "finite"),
        ({"X": [[np.inf, 1.0]]}, DataError, "finite"),
        ({"X": [1.0, 2.0]}, DataError, "shape"),
        ({"level": 1.0}, ValueError, "level"),
        ({"level": np.nan}, ValueError, "level"),
        ({"individuals": 0}, ValueError, "individuals"),
        ({"individuals": 1.5}, ValueError, "individuals"),
    ],
)
def test_invalid_arguments_are_rejected(given, error, said):
    right = {"weights": [1.0, 2.0], "X": [[1.0, 0.0]], "noise": BOTH[0]}
    with pytest.raises(error, match=said):
        output_arbitrariness(**{**right, **given})


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_tails_are_those_of_real_releases(delta):
    """Noise of the mechanism itself, along two directions; 0.94 of the scale is detected."""
    d, n = 4, 4_000
    law = OutputPerturbation(1.0, delta, norm=1.0).noise(1.0)
    exact = np.full((n, d), 0.3)
    noise = (
        law.release(exact, rng=np.random.default_rng(5)) - np.rint(exact / law.step) * law.step
    )
    off = np.sqrt(d) * law.step / 2
    model = (
        GammaNoise(law.noise_scale, d, rounding=off)
        if delta == 0
        else GaussianNoise(law.noise_std, d, off)
    )
    for side in (np.eye(d)[1], np.array([1.0, -1.0, 1.0, -1.0]) / 2):
        along = noise @ side
        for tail in (0.3, 0.1):
            share = (np.abs(along) > model.quantile(tail)).mean() / 2
            assert abs(share - tail) < 5 * np.sqrt(tail / 2 / n)
    lengths = np.linalg.norm(noise, axis=1)
    # One standard error is at most 1.1 %; the wrong scale is off by 6 % or 12 %.
    sizes = lengths / d / law.noise_scale if delta == 0 else (lengths / law.noise_std) ** 2 / d
    assert abs(sizes.mean() - 1) < 0.045
    assert abs(sizes.mean() * (0.94 if delta == 0 else 0.94**2) - 1) > 0.045


@pytest.mark.parametrize("noise", BOTH, ids=repr)
def test_intervals_count_a_grid_however_coarse(noise):
    """Noise rounded to a grid of its scale: the true value is that of rounded noise."""
    trials, step = 20_000, 1.0
    rounded = replace(noise, rounding=np.sqrt(2) * step / 2)
    units = np.rint(draw_noise(noise, trials) / step)[:, 0] * step
    for t in (0.25, 1.25):
        share = (units + t > 0).mean()
        truth = 4 * share * (1 - share)
        w, X = at_distances(t + units)
        result = output_arbitrariness(w, X, rounded, level=0.9, individuals=1)
        missed = ((result.low > truth) | (result.high < truth)).mean()
        assert missed <= 0.1 + 4 * np.sqrt(0.09 / trials)


def test_more_classes_count_the_grid_of_both_vectors():
    for noise in (GaussianNoise(1.0, 3, 0.5), GammaNoise(1.0, 3, rounding=0.5)):
        assert noise.difference().rounding == 1.0
        w, X = RNG.normal(size=(3, 3)) * 9, RNG.normal(size=(20, 3))
        plain = output_arbitrariness(w, X, replace(noise, rounding=0.0))
        result = output_arbitrariness(w, X, noise)
        assert (result.high >= plain.high).all() and (result.high > plain.high).any()
        assert (result.low <= plain.low).all()
