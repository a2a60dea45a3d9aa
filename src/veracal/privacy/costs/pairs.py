r"""Privacy losses of pairs of laws, on a grid.

A pair (U, L) of laws has the loss :math:`\ell(x) = \log U(x) / L(x)`, which is monotone in x
for every pair here. The masses of the two laws between two neighboring points of a grid of
losses are put onto these points so that both masses stay what they are: the least pessimistic
rounding there is (Doroshenko et al. 2022, https://arxiv.org/abs/2207.04380, Algorithm 1).

dp-accounting 0.6.0 builds the same distributions, but inverts the loss point by point (a
mixture of Gaussians takes ten seconds where this takes hundredths), takes second differences of
delta, which cancel, and steps through every integer of a discrete law. The tests compare them.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from veracal._types import Floats, Ints

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
