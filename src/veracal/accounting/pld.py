r"""Privacy losses of pairs of laws, on a grid.

A pair (U, L) of laws has the loss :math:`\ell(x) = \log U(x) / L(x)`, which is monotone in x
for every pair here. The masses of the two laws between two neighboring points of a grid of
losses are put onto these points so that both masses stay what they are: the least pessimistic
rounding there is (Doroshenko et al. 2022, https://arxiv.org/abs/2207.04380, Algorithm 1).

dp-accounting 0.6.0 builds the same distributions, but inverts the loss point by point (a
mixture of Gaussians takes ten seconds where this takes hundredths), takes second differences of
delta, which cancel, and steps through every integer of a discrete law. The tests compare them.

Events as dp-accounting's privacy-loss distributions; nowhere else are they turned.

Composition of privacy-loss distributions: what all events together lose.

Losses of events add, so their laws convolve, and a Fourier transform turns that into a
product: one transform for each event, one back. dp-accounting composes two at a time and finds
the truncation anew for each; with the 64 levels of a noise schedule this is some ten times
faster, and it keeps account of the rounding of the transform, which dp-accounting leaves out.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import fft, special, stats

from veracal._types import Floats, Ints
from veracal.accounting.events import (
    Approximate,
    AsReplaceOne,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Gaussian,
    Laplace,
    Parallel,
    PoissonGaussian,
    Pure,
)

FAR = 10.0  # standard deviations; the 8e-24 beyond count as infinite loss
_MOST = 700.0  # e^700 is still a double


@dataclass(frozen=True)
class Loss:
    """The law of a privacy loss under the upper law of a pair.

    Attributes
    ----------
    spacing : float
        Distance between two points of the grid.
    first : int
        The first point, as a multiple of the spacing.
    masses : array
        Probabilities of the points.
    infinite : float
        Probability of an infinite loss.
    """

    spacing: float
    first: int
    masses: Floats
    infinite: float


def normal_mixtures(
    upper: tuple[Floats, Floats], lower: tuple[Floats, Floats], *, spacing: float
) -> Loss:
    r"""Loss of one mixture of unit normals against another.

    Parameters
    ----------
    upper, lower : pair of arrays (means, weights)
        The laws :math:`\sum_j w_j N(m_j, 1)`. The means of the upper one are nowhere below
        those of the lower one, so that the loss increases.
    spacing : float
    """
    ends = (min(upper[0].min(), lower[0].min()) - FAR, upper[0].max() + FAR)
    table = np.linspace(*ends, 4097)
    losses = np.maximum.accumulate(_log_ratio(table, upper, lower))
    first = math.floor(losses[0] / spacing)
    points = spacing * np.arange(first, math.ceil(losses[-1] / spacing) + 1)
    x = _inverse(points[1:-1], table, losses, upper, lower)
    # What lies left of the table has a smaller loss than its first point: it is rounded up.
    x = np.concatenate([[-np.inf], x, ends[1:]])
    masses = [
        sum(w * _between(x - m) for m, w in zip(*law, strict=True)) for law in (upper, lower)
    ]
    beyond = float(sum(w * special.ndtr(m - ends[1]) for m, w in zip(*upper, strict=True)))
    return _connected(spacing, first, masses[0], masses[1], beyond)


def laplace(shift: float, *, spacing: float) -> Loss:
    """Loss of the unit Laplace law against the same law, shifted."""
    points = _points(shift, spacing)
    x = np.clip((shift - points) / 2, 0, shift)  # the loss at x is shift - 2x
    width = -np.diff(x)
    upper = -np.exp(-x[1:]) * np.expm1(-width) / 2
    lower = -np.exp(x[:-1] - shift) * np.expm1(-width) / 2
    rare = math.exp(-shift) / 2
    return _with_ends(points, shift, upper, lower, (0.5, rare), spacing)


def discrete_laplace(scale: float, shift: int, *, spacing: float) -> Loss:
    """Loss of integers of law exp(-abs(k) / scale) against the same law, shifted."""
    points = _points(shift / scale, spacing)
    # The loss at 0 < k < shift is (shift - 2k) / scale; ``last`` is the last k at or above it.
    last = np.clip(np.floor((shift - scale * points) / 2), 0, shift - 1)
    ratio, count = -1 / scale, -np.diff(last)
    share = -np.expm1(ratio * count) / (1 + math.exp(ratio))
    upper = np.exp(ratio * (last[1:] + 1)) * share
    lower = np.exp(ratio * (shift - last[:-1])) * share
    often = 1 / (1 + math.exp(ratio))
    rare = often * math.exp(ratio * shift)
    return _with_ends(points, shift / scale, upper, lower, (often, rare), spacing)


def discrete_gaussian(parameter: float, shift: int, *, spacing: float) -> Loss:
    """Loss of integers of law exp(-k^2 / 2 s^2) against the same law, shifted."""
    reach = math.ceil(FAR * parameter)
    k = np.arange(-reach, reach + shift + 1)
    weights = np.exp(-((k / parameter) ** 2) / 2)
    upper = weights / weights.sum()
    lower = np.exp(-(((k - shift) / parameter) ** 2) / 2) / weights.sum()
    losses = shift * (shift - 2 * k) / (2 * parameter**2)
    # Below -reach the loss exceeds all of these: that mass, as small as a tail of FAR standard
    # deviations, is infinite. Above the end it is less than all, and rounded up.
    beyond = float(special.ndtr(-reach / parameter))
    return _atoms(losses, upper, lower, spacing, beyond)


def bounded(epsilon: float, delta: float, *, spacing: float) -> Loss:
    """Loss of randomized response, the worst of all that is (epsilon, delta)-private."""
    truth = special.expit(epsilon)
    masses = (1 - delta) * np.array([1 - truth, truth])
    return _atoms(np.array([-epsilon, epsilon]), masses, masses[::-1], spacing, delta)


# ---------------------------------------------------------------- masses on points


def _connected(
    spacing: float, first: int, upper: Floats, lower: Floats, infinite: float
) -> Loss:
    """Put the masses between points i and i + 1 onto the two of them.

    v on the right and u - v on the left keep both masses if
    ``v (1 - e^-spacing) = u - l e^point``.
    """
    points = spacing * np.arange(first, first + len(upper))
    right = (upper - lower * np.exp(np.minimum(points, _MOST))) / -math.expm1(-spacing)
    right = np.clip(right, 0, upper)
    masses = np.append(upper - right, 0.0)
    masses[1:] += right
    return Loss(spacing, first, masses, infinite)


def _atoms(
    losses: Floats, upper: Floats, lower: Floats, spacing: float, infinite: float
) -> Loss:
    """Put atoms of known loss onto the grid."""
    left = np.floor(losses / spacing).astype(np.int64)
    first = int(left.min())
    places: Ints = left - first
    sums = [np.bincount(places, weights).astype(float) for weights in (upper, lower)]
    return _connected(spacing, first, sums[0], sums[1], infinite)


def _points(most: float, spacing: float) -> Floats:
    """Grid that covers the losses from -most to most."""
    end = math.floor(most / spacing) + 1
    return spacing * np.arange(-end, end + 1)


def _with_ends(
    points: Floats,
    most: float,
    upper: Floats,
    lower: Floats,
    ends: tuple[float, float],
    spacing: float,
) -> Loss:
    """Add the two atoms at losses of -most and most to the masses between points."""
    often, rare = ends
    first = round(points[0] / spacing)
    for loss, u, v in ((most, often, rare), (-most, rare, often)):
        place = min(max(math.floor(loss / spacing) - first, 0), len(upper) - 1)
        upper[place] += u
        lower[place] += v
    return _connected(spacing, first, upper, lower, 0.0)


# ---------------------------------------------------------------- mixtures of normals


def _log_ratio(x: Floats, upper: tuple[Floats, Floats], lower: tuple[Floats, Floats]) -> Floats:
    """Loss at x."""
    return _log_density(x, upper) - _log_density(x, lower)


def _log_density(x: Floats, law: tuple[Floats, Floats]) -> Floats:
    """Log of a mixture's density, up to what all mixtures share."""
    terms = [math.log(w) + m * x - m * m / 2 for m, w in zip(*law, strict=True) if w > 0]
    return np.asarray(np.logaddexp.reduce(terms, axis=0))


def _inverse(
    targets: Floats,
    table: Floats,
    losses: Floats,
    upper: tuple[Floats, Floats],
    lower: tuple[Floats, Floats],
) -> Floats:
    """Where the loss takes its target values: in closed form, or by steps inside brackets."""
    if len(upper[0]) == 2 and len(lower[0]) == 1:
        return np.clip(_solved(targets, *upper), table[0], table[-1])
    if len(upper[0]) == 1 and len(lower[0]) == 2:
        return np.clip(-_solved(-targets, -lower[0], lower[1]), table[0], table[-1])
    if len(upper[0]) == len(lower[0]) == 2:
        return np.clip(_mirrored(targets, *upper), table[0], table[-1])
    right = np.clip(np.searchsorted(losses, targets), 1, len(table) - 1)
    a, b = table[right - 1], table[right]
    fa, fb = losses[right - 1] - targets, losses[right] - targets
    x = b
    for _ in range(12):  # regula falsi, the Illinois way
        slope = np.where(fb > fa, fb - fa, 1.0)
        x = np.clip(b - fb * (b - a) / slope, a, b)
        fx = _log_ratio(x, upper, lower) - targets
        low = fx < 0
        # The end that stays is counted half next time, which is what makes it converge fast.
        fa, fb = np.where(low, fx, fa / 2), np.where(low, fb / 2, fx)
        a, b = np.where(low, x, a), np.where(low, b, x)
        if np.abs(fx).max(initial=0.0) < 1e-10:
            break
    return x


def _solved(targets: Floats, means: Floats, weights: Floats) -> Floats:
    """Where ``log(1 - q + q exp(m x - m^2 / 2))`` takes its target values."""
    m, q = means[1], weights[1]
    small = np.minimum(targets, 40.0)  # above, one and q are lost beside the exponential
    with np.errstate(divide="ignore"):  # at the infimum of the loss, which is at minus infinity
        logs = np.log(np.maximum(np.expm1(small) + q, 0))
    return np.asarray((logs + (targets - small) - math.log(q) + m * m / 2) / m)


def _mirrored(targets: Floats, means: Floats, weights: Floats) -> Floats:
    r"""Where the loss of a mixture of 0 and m against one of 0 and -m takes its targets.

    With s half a target, :math:`m x = s + \operatorname{asinh}(e^{m^2/2} \sinh(s)(1-q)/q)`.
    """
    m, q = means[1], weights[1]
    half = np.abs(targets) / 2
    with np.errstate(divide="ignore"):  # at a target of zero, and at a rate of one
        log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
        logs = m * m / 2 + log_sinh + np.log1p(-q) - math.log(q)
    arc = np.logaddexp(logs, np.logaddexp(2 * logs, 0.0) / 2)
    return np.asarray(np.sign(targets) * (half + arc) / m)


def _between(x: Floats) -> Floats:
    """Masses of the unit normal between neighbors, each from its nearer tail."""
    tail = special.ndtr(-np.abs(x))
    left, right = tail[:-1], tail[1:]
    same = np.where(x[:-1] >= 0, left - right, right - left)
    return np.asarray(np.where((x[:-1] < 0) & (x[1:] > 0), 1 - left - right, same))


_MOST_POINTS = 2**22  # of a discrete Gaussian's support: 32 MB of doubles


def for_rows(event: Event, rows: int) -> Event:
    """The event as it touches all rows of one unit at once.

    A sum moves ``rows`` times as far; an epsilon-DP mechanism is (rows * epsilon)-DP for the
    group. A Poisson batch is left as it is, since :func:`privacy_loss` counts how many
    of the rows enter it; so is a wrapper, whose contents are asked in their turn.
    """
    if rows == 1 or isinstance(event, PoissonGaussian | AsReplaceOne | Parallel):
        return event
    if isinstance(event, Pure):
        return replace(event, epsilon=_times(Fraction(repr(event.epsilon)), rows, repr))
    if isinstance(event, Gaussian | Laplace | DiscreteLaplace | DiscreteGaussian):
        if isinstance(event.sensitivity, int):
            return replace(event, sensitivity=event.sensitivity * rows)
        return replace(event, sensitivity=_times(Fraction(event.sensitivity), rows, float))
    raise ValueError(
        f"Expected at_most=1 for {type(event).__name__}, got at_most={rows}: there is no "
        "argument for what it costs a unit of several rows. Keep one row of each unit "
        "(limit_contributions), or use a mechanism on sums."
    )


def _times(exact: Fraction, rows: int, read: Callable[[float], str | float]) -> float:
    """The least float that, as it is read later, is not below the exact product."""
    product = float(exact * rows)
    while Fraction(read(product)) < exact * rows:
        product = math.nextafter(product, math.inf)
    return product


def has_loss(event: Event) -> bool:
    """Whether the event has a privacy-loss distribution of its own."""
    if isinstance(event, DiscreteGaussian):
        points = 2 * FAR * event.noise + event.sensitivity
        return event.entries == 1 and points <= _MOST_POINTS
    return isinstance(
        event, Gaussian | Laplace | DiscreteLaplace | PoissonGaussian | Pure | Approximate
    )


def privacy_loss(event: Event, *, spacing: float, rows: int = 1) -> PrivacyLossDistribution:
    r"""The pessimistic privacy-loss distribution of one mechanism.

    Noise without sampling is charged by its ratio to the sensitivity under the event's *own*
    relation. dp-accounting's replace-one accountants are not asked: with privacy-loss
    distributions they double a Gaussian's sensitivity by themselves and refuse Laplace noise,
    with Rényi divergences they do not double.

    Vectors are covered by the scalar case. For Gaussian noise by rotation. For (discrete)
    Laplace noise because the laws are log-concave: testing 0 against a shift of a + b in one
    entry is as easy as the tests of a and of b one after the other, so spreading a shift over
    entries never helps (Dong, Roth and Su 2022, Section 2.4). Discrete Gaussian vectors have no
    such argument, and :func:`has_loss` says no.

    Parameters
    ----------
    event : Gaussian, Laplace, their discrete forms, PoissonGaussian, Pure or Approximate
        With noise and sensitivity above zero, for the whole unit (:func:`for_rows`).
    spacing : float
        Distance between points of the grid of losses.
    rows : int
        Rows of one unit in a Poisson batch.
    """
    if isinstance(event, PoissonGaussian):
        return _poisson(event, spacing, rows)
    if isinstance(event, Gaussian):
        one = np.ones(1)
        law = (np.array([event.sensitivity / event.noise]), one)
        loss = normal_mixtures(law, (np.zeros(1), one), spacing=spacing)
    elif isinstance(event, Laplace):
        loss = laplace(event.sensitivity / event.noise, spacing=spacing)
    elif isinstance(event, DiscreteLaplace):
        shift = int(event.sensitivity)
        loss = discrete_laplace(event.noise, shift, spacing=spacing)
    elif isinstance(event, DiscreteGaussian):
        shift = int(event.sensitivity)
        loss = discrete_gaussian(event.noise, shift, spacing=spacing)
    elif isinstance(event, Pure | Approximate):
        delta = event.delta if isinstance(event, Approximate) else 0.0
        loss = bounded(event.epsilon, delta, spacing=spacing)
    else:
        raise TypeError(f"{type(event).__name__} has no privacy-loss distribution of its own")
    return PrivacyLossDistribution(_pmf(loss))


def _poisson(event: PoissonGaussian, spacing: float, rows: int) -> PrivacyLossDistribution:
    r"""Loss of a noisy sum over a Poisson batch, for a unit of k rows.

    Of the unit's rows, j enter the batch with probability :math:`p_j` (binomial) and move
    the sum by at most jC. Write a for the probability of an event A under the noise around the
    other records' sum. By Neyman and Pearson a shift of length at most jC leaves A a
    probability between :math:`\Phi(\Phi^{-1}(a) - jC/\sigma)` and
    :math:`\Phi(\Phi^{-1}(a) + jC/\sigma)`, and one half-line attains all these bounds at once.
    So for every :math:`\alpha \ge 0` no shifts make :math:`P(A) - \alpha Q(A)` larger than

    - add/remove: :math:`\sum_j p_j N(jC, \sigma^2)` against :math:`N(0, \sigma^2)`, and the
      reverse (the mixture of Gaussians, https://arxiv.org/abs/2401.10294);
    - replace-one: :math:`\sum_j p_j N(jC, \sigma^2)` against
      :math:`\sum_j p_j N(-jC, \sigma^2)`.

    Averaging over the other records' batch only lowers it (joint convexity), and a pair that
    dominates for all :math:`\alpha` composes.
    """
    most = _most_entering(event, rows)  # of more, the mass below counts as infinite
    entering = np.arange(most + 1)
    weights = stats.binom.pmf(entering, rows, event.rate)
    means = entering * (event.sensitivity / event.noise)
    law = (means, weights)
    if event.relation == "replace-one":
        loss = normal_mixtures(law, (-means, weights), spacing=spacing)
        return PrivacyLossDistribution(_pmf(loss, stats.binom.sf(most, rows, event.rate)))
    nothing = (np.zeros(1), np.ones(1))
    remove = normal_mixtures(law, nothing, spacing=spacing)
    add = normal_mixtures(nothing, (-means, weights), spacing=spacing)
    beyond = stats.binom.sf(most, rows, event.rate)
    return PrivacyLossDistribution(_pmf(remove, beyond), _pmf(add))


def _most_entering(event: PoissonGaussian, rows: int) -> int:
    """Rows of a unit of which more enter a batch together less than once in 1e20 times."""
    return int(stats.binom.isf(1e-20, rows, event.rate)) if rows > 8 else rows


def _pmf(loss: Loss, beyond: float = 0.0) -> DensePLDPmf:
    """Hand a loss to dp-accounting, with what is left out of it as infinite."""
    infinite = min(1.0, loss.infinite + float(beyond))
    return DensePLDPmf(loss.spacing, loss.first, loss.masses, infinite, True)


def typical_loss(event: Event, rows: int) -> tuple[float, float]:
    """Rough standard deviation of one loss, and the largest of note, to choose a grid by."""
    if isinstance(event, Pure | Approximate):
        return event.epsilon, event.epsilon
    assert not isinstance(event, AsReplaceOne)
    ratio = float(event.sensitivity) / event.noise  # type: ignore[union-attr]
    if isinstance(event, Laplace | DiscreteLaplace):
        return ratio, ratio
    if isinstance(event, PoissonGaussian):
        both = 2 if event.relation == "replace-one" else 1
        reach = both * _most_entering(event, rows) * ratio
        chi = math.sqrt(math.expm1(min(ratio * ratio, 50.0)))
        return min(both * rows * event.rate * chi, reach), reach * (FAR + reach)
    return ratio, ratio * (FAR + ratio)


_TAIL = 1e-6  # of delta, cut off on either side of a composition and added to delta
_GROUPS = 4096

NoisyCounts = Sequence[tuple[PrivacyLossDistribution, int]]


@dataclass(frozen=True)
class Total:
    """The losses of a composition, one law for each direction of the neighbors."""

    directions: tuple[Loss, ...]

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon that holds with this delta in both directions."""
        return max(_epsilon(loss, delta) for loss in self.directions)

    def delta(self, epsilon: float) -> float:
        """The smallest delta that holds with this epsilon in both directions."""
        return min(1.0, max(_delta(loss, epsilon) for loss in self.directions))


def compose(parts: NoisyCounts, *, delta: float) -> Total:
    """Compose distributions on one grid, each as often as it says.

    Each direction is composed over all events before the worse of the two is taken: the
    worse direction may differ between events.

    Parameters
    ----------
    parts : sequence of (distribution, count)
    delta : float
        The smallest delta of interest; it decides how much of the tails may be cut off.

    Guarantees
    ----------
    Pessimistic in real arithmetic: what is cut off counts as an infinite loss, and what wraps
    around is counted twice. The rounding of the transform is estimated, generously, by the
    largest value below zero that it leaves at any point, and counted as infinite at all points.
    """
    both = any(not _is_symmetric(pld) for pld, _ in parts)
    directions = (0, 1) if both else (0,)
    return Total(
        tuple(
            _compose([(_direction(pld, which), n) for pld, n in parts], delta * _TAIL)
            for which in directions
        )
    )


def distribution(total: Total) -> PrivacyLossDistribution:
    """Hand a total back to dp-accounting, for mixing."""
    pmfs = [
        DensePLDPmf(loss.spacing, loss.first, loss.masses.copy(), loss.infinite, True)
        for loss in total.directions
    ]
    return PrivacyLossDistribution(*pmfs)


# dp-accounting keeps the parts of a distribution to itself; these three lines are the only ones
# that reach for them.
def _is_symmetric(pld: PrivacyLossDistribution) -> bool:
    """Whether both directions have the same law."""
    return bool(pld._symmetric)


def _direction(pld: PrivacyLossDistribution, which: int) -> Loss:
    """The law of one direction: 0 remove, 1 add."""
    pmf = (pld._pmf_remove if which == 0 or pld._symmetric else pld._pmf_add).to_dense_pmf()
    return Loss(pmf._discretization, pmf._lower_loss, pmf._probs, pmf._infinity_mass)


# ---------------------------------------------------------------- convolution


def _compose(parts: list[tuple[Loss, int]], tail: float) -> Loss:
    """Convolve laws, each as often as it says."""
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    spacing = parts[0][0].spacing
    assert all(loss.spacing == spacing for loss, _ in parts)
    first = sum(loss.first * n for loss, n in parts)
    low, high = _window(parts, tail)
    size = fft.next_fast_len(high - low + 1, real=True)
    product = np.ones(size // 2 + 1, dtype=complex)
    for loss, n in parts:
        product *= fft.rfft(_folded(loss.masses, size)) ** n
    masses = np.roll(fft.irfft(product, size), -(low % size))
    # Where the law is practically zero the transform leaves its rounding; the largest negative
    # value shows its size, and every point may be too small by as much.
    rounding = max(0.0, -float(masses.min()))
    kept = -math.expm1(sum(n * math.log1p(-min(loss.infinite, 1 - 1e-16)) for loss, n in parts))
    infinite = min(1.0, kept + 2 * tail + size * rounding)
    return Loss(spacing, first + low, np.maximum(masses, 0.0), infinite)


def _folded(masses: Floats, size: int) -> Floats:
    """Wrap a law around a circle of ``size`` points."""
    turns = -(-len(masses) // size)
    padded = np.pad(masses, (0, turns * size - len(masses)))
    return np.asarray(padded.reshape(turns, size).sum(axis=0))


def _window(parts: list[tuple[Loss, int]], tail: float) -> tuple[int, int]:
    r"""Bounds that the sum of all losses exceeds with probability ``tail`` at most.

    By Chernoff, :math:`P(S \ge s) \le e^{-ts} \prod_i M_i(t)^{n_i}` for every t > 0; the least
    s is taken over slopes t around the one that would do if the sum were normal, and well
    below, for laws with a long tail.
    """
    whole = sum((len(loss.masses) - 1) * n for loss, n in parts)
    grouped = [(*_grouped(loss.masses), n) for loss, n in parts]
    means = [float(x @ w / w.sum()) for x, w, _ in grouped]
    variance = sum(
        n * float(w @ (x - m) ** 2) for (x, w, n), m in zip(grouped, means, strict=True)
    )
    if variance <= 0:
        return 0, whole
    slopes = math.sqrt(-2 * math.log(tail) / variance) * np.geomspace(1 / 300, 3, 16)
    ends = []
    for sign in (-1, 1):
        logs = sum(
            n * _log_moments(sign * slopes, x - m, w)
            for (x, w, n), m in zip(grouped, means, strict=True)
        )
        reach = float(np.min((logs - math.log(tail)) / slopes))
        center = sum(n * m for (_, _, n), m in zip(grouped, means, strict=True))
        ends.append(center + sign * reach)
    return max(0, math.floor(ends[0])), min(whole, math.ceil(ends[1]))


def _log_moments(slopes: Floats, x: Floats, weights: Floats) -> Floats:
    """Logarithm of the moment-generating function, without overflow."""
    exponents = np.outer(slopes, x[weights > 0])
    top = exponents.max(axis=1)
    return np.asarray(top + np.log(np.exp(exponents - top[:, None]) @ weights[weights > 0]))


def _grouped(masses: Floats) -> tuple[Floats, Floats]:
    """A law on few points whose moment-generating function is nowhere smaller.

    Each group's mass moves to the two ends of the group with its mean kept; an exponential lies
    below its chord.
    """
    size = max(1, len(masses) // _GROUPS)
    count = -(-len(masses) // size)
    table = np.pad(masses, (0, count * size - len(masses))).reshape(count, size)
    right = table @ (np.arange(size) / size)
    weights = np.append(table.sum(axis=1) - right, 0.0)
    weights[1:] += right
    return size * np.arange(count + 1.0), np.maximum(weights, 0.0)


# ---------------------------------------------------------------- epsilon and delta


def _delta(loss: Loss, epsilon: float) -> float:
    r"""The hockey-stick divergence :math:`\sum_s p_s (1 - e^{\varepsilon - s})_+`."""
    s = loss.spacing * np.arange(loss.first, loss.first + len(loss.masses))
    above = s > epsilon
    return loss.infinite + float(loss.masses[above] @ -np.expm1(epsilon - s[above]))


def _epsilon(loss: Loss, delta: float) -> float:
    """The smallest epsilon >= 0 whose hockey-stick divergence is at most delta."""
    if loss.infinite > delta:
        return math.inf
    start = max(0, 1 - loss.first)  # the first point above zero
    s = loss.spacing * np.arange(loss.first + start, loss.first + len(loss.masses))
    masses = loss.masses[start:]
    # With u and v the masses above point j under the two laws, delta there is u - e^s v.
    u = loss.infinite + np.append(np.cumsum(masses[::-1])[::-1], 0.0)
    if u[0] <= delta:
        return 0.0
    # Exponentials relative to where u passes delta. Capped ones make v smaller: pessimistic.
    base = float(s[np.flatnonzero(u[:-1] > delta)[-1]])
    v = np.append(np.cumsum((masses * np.exp(np.minimum(base - s, 700.0)))[::-1])[::-1], 0.0)
    there = u[1:] - np.exp(np.minimum(s - base, 700.0)) * v[1:]
    j = int(
        np.argmax(there <= delta)
    )  # delta falls with epsilon: the first point where it holds
    if v[j] <= 0:
        return float(s[j])
    return max(0.0, min(float(s[j]), base + math.log((u[j] - delta) / v[j])))
