r"""Privacy-loss distributions of single mechanisms on a grid, and their composition.

*Single mechanisms.* A pair (U, L) of distributions has the loss
:math:`\ell(x) = \log U(x) / L(x)`, which is monotone in x for every pair here. The mass between
two neighboring points of a grid of losses is moved to these points so that it is preserved
under both distributions, which is the least pessimistic rounding (Doroshenko et al. 2022,
https://arxiv.org/abs/2207.04380, Algorithm 1). dp-accounting 0.6.0 builds the same
distributions, but inverts the loss point by point (a mixture of Gaussians takes 10 s instead of
0.01 s), takes second differences of delta, which cancel, and visits every integer of a discrete
distribution. The tests compare the two.

*Composition.* Losses of events add, so their distributions convolve. A Fourier transform turns
the convolution into a product: one transform per event, and one inverse transform.
dp-accounting composes two distributions at a time and truncates after each. For the 64 levels
of a noise schedule this module is about ten times faster, and it accounts for the rounding of
the transform, which dp-accounting neglects.
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

TAIL_WIDTH = 10.0  # standard deviations; the mass of 8e-24 beyond counts as infinite loss
_MAX_EXPONENT = 700.0  # e^700 is still a double


@dataclass(frozen=True)
class Loss:
    """The distribution of a privacy loss under the upper distribution of a pair.

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


def normal_mixture_loss(
    upper: tuple[Floats, Floats], lower: tuple[Floats, Floats], *, spacing: float
) -> Loss:
    r"""Loss of one mixture of unit normals relative to another.

    Each is a pair of arrays (means, weights): :math:`\sum_j w_j N(m_j, 1)`. No mean of the
    upper mixture is below a mean of the lower one, so the loss increases.
    """
    ends = (min(upper[0].min(), lower[0].min()) - TAIL_WIDTH, upper[0].max() + TAIL_WIDTH)
    table = np.linspace(*ends, 4097)
    losses = np.maximum.accumulate(_log_ratio(table, upper, lower))
    first = math.floor(losses[0] / spacing)
    points = spacing * np.arange(first, math.ceil(losses[-1] / spacing) + 1)
    x = _invert_log_ratio(points[1:-1], table, losses, upper, lower)
    # To the left of the table the loss is smaller than at its first point: it is rounded up.
    x = np.concatenate([[-np.inf], x, ends[1:]])
    masses = [
        sum(w * _normal_masses(x - m) for m, w in zip(*mixture, strict=True))
        for mixture in (upper, lower)
    ]
    beyond = float(sum(w * special.ndtr(m - ends[1]) for m, w in zip(*upper, strict=True)))
    return _round_to_points(spacing, first, masses[0], masses[1], beyond)


def laplace_loss(shift: float, *, spacing: float) -> Loss:
    """Loss of the unit Laplace distribution relative to its shift."""
    points = _symmetric_grid(shift, spacing)
    x = np.clip((shift - points) / 2, 0, shift)  # the loss at x is shift - 2x
    width = -np.diff(x)
    upper = -np.exp(-x[1:]) * np.expm1(-width) / 2
    lower = -np.exp(x[:-1] - shift) * np.expm1(-width) / 2
    rare = math.exp(-shift) / 2
    return _add_end_atoms(points, shift, upper, lower, (0.5, rare), spacing)


def discrete_laplace_loss(scale: float, shift: int, *, spacing: float) -> Loss:
    """Loss of the discrete Laplace distribution exp(-abs(k) / scale) relative to its shift."""
    points = _symmetric_grid(shift / scale, spacing)
    # The loss at 0 < k < shift is (shift - 2k) / scale; ``last`` is the last k at or above it.
    last = np.clip(np.floor((shift - scale * points) / 2), 0, shift - 1)
    ratio, count = -1 / scale, -np.diff(last)
    share = -np.expm1(ratio * count) / (1 + math.exp(ratio))
    upper = np.exp(ratio * (last[1:] + 1)) * share
    lower = np.exp(ratio * (shift - last[:-1])) * share
    often = 1 / (1 + math.exp(ratio))
    rare = often * math.exp(ratio * shift)
    return _add_end_atoms(points, shift / scale, upper, lower, (often, rare), spacing)


def discrete_gaussian_loss(parameter: float, shift: int, *, spacing: float) -> Loss:
    """Loss of the discrete Gaussian distribution exp(-k^2 / 2 s^2) relative to its shift."""
    largest = math.ceil(TAIL_WIDTH * parameter)
    k = np.arange(-largest, largest + shift + 1)
    weights = np.exp(-((k / parameter) ** 2) / 2)
    upper = weights / weights.sum()
    lower = np.exp(-(((k - shift) / parameter) ** 2) / 2) / weights.sum()
    losses = shift * (shift - 2 * k) / (2 * parameter**2)
    # Below -largest the loss exceeds all of these: that mass, which is at most the tail beyond
    # TAIL_WIDTH standard deviations, counts as infinite. Above the end the loss is smaller
    # than all of these, and rounded up.
    beyond = float(special.ndtr(-largest / parameter))
    return _round_atoms(losses, upper, lower, spacing, beyond)


def randomized_response_loss(epsilon: float, delta: float, *, spacing: float) -> Loss:
    """Loss of randomized response, the worst (epsilon, delta)-private mechanism."""
    truth = special.expit(epsilon)
    masses = (1 - delta) * np.array([1 - truth, truth])
    return _round_atoms(np.array([-epsilon, epsilon]), masses, masses[::-1], spacing, delta)


# ---------------------------------------------------------------- masses on points


def _round_to_points(
    spacing: float, first: int, upper: Floats, lower: Floats, infinite: float
) -> Loss:
    """Move the masses between points i and i + 1 to these two points.

    A mass v on the right and u - v on the left preserves both masses if
    ``v (1 - e^-spacing) = u - l e^point``.
    """
    points = spacing * np.arange(first, first + len(upper))
    right = (upper - lower * np.exp(np.minimum(points, _MAX_EXPONENT))) / -math.expm1(-spacing)
    right = np.clip(right, 0, upper)
    masses = np.append(upper - right, 0.0)
    masses[1:] += right
    return Loss(spacing, first, masses, infinite)


def _round_atoms(
    losses: Floats, upper: Floats, lower: Floats, spacing: float, infinite: float
) -> Loss:
    """Round atoms of known loss to the grid."""
    left = np.floor(losses / spacing).astype(np.int64)
    first = int(left.min())
    index: Ints = left - first
    sums = [np.bincount(index, weights).astype(float) for weights in (upper, lower)]
    return _round_to_points(spacing, first, sums[0], sums[1], infinite)


def _symmetric_grid(most: float, spacing: float) -> Floats:
    """Grid points that cover the losses from -most to most."""
    end = math.floor(most / spacing) + 1
    return spacing * np.arange(-end, end + 1)


def _add_end_atoms(
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
        index = min(max(math.floor(loss / spacing) - first, 0), len(upper) - 1)
        upper[index] += u
        lower[index] += v
    return _round_to_points(spacing, first, upper, lower, 0.0)


# ---------------------------------------------------------------- mixtures of normals


def _log_ratio(x: Floats, upper: tuple[Floats, Floats], lower: tuple[Floats, Floats]) -> Floats:
    """Loss at x."""
    logs = []
    for mixture in (upper, lower):  # log densities, up to a term that they share
        terms = [
            math.log(w) + m * x - m * m / 2 for m, w in zip(*mixture, strict=True) if w > 0
        ]
        logs.append(np.logaddexp.reduce(terms, axis=0))
    return np.asarray(logs[0] - logs[1])


def _invert_log_ratio(
    targets: Floats,
    table: Floats,
    losses: Floats,
    upper: tuple[Floats, Floats],
    lower: tuple[Floats, Floats],
) -> Floats:
    """Points at which the loss takes its target values: in closed form, or by bracketing."""
    if len(upper[0]) == 2 and len(lower[0]) == 1:
        return np.clip(_invert_sampled(targets, *upper), table[0], table[-1])
    if len(upper[0]) == 1 and len(lower[0]) == 2:
        return np.clip(-_invert_sampled(-targets, -lower[0], lower[1]), table[0], table[-1])
    if len(upper[0]) == len(lower[0]) == 2:
        return np.clip(_invert_replaced(targets, *upper), table[0], table[-1])
    right = np.clip(np.searchsorted(losses, targets), 1, len(table) - 1)
    a, b = table[right - 1], table[right]
    fa, fb = losses[right - 1] - targets, losses[right] - targets
    x = b
    for _ in range(12):  # regula falsi, Illinois variant
        slope = np.where(fb > fa, fb - fa, 1.0)
        x = np.clip(b - fb * (b - a) / slope, a, b)
        fx = _log_ratio(x, upper, lower) - targets
        low = fx < 0
        # Halving the value at the retained end makes the method converge fast.
        fa, fb = np.where(low, fx, fa / 2), np.where(low, fb / 2, fx)
        a, b = np.where(low, x, a), np.where(low, b, x)
        if np.abs(fx).max(initial=0.0) < 1e-10:
            break
    return x


def _invert_sampled(targets: Floats, means: Floats, weights: Floats) -> Floats:
    """Points at which ``log(1 - q + q exp(m x - m^2 / 2))`` takes its target values."""
    m, q = means[1], weights[1]
    small = np.minimum(targets, 40.0)  # above, 1 and q are negligible beside the exponential
    with np.errstate(divide="ignore"):  # the loss attains its infimum at minus infinity
        logs = np.log(np.maximum(np.expm1(small) + q, 0))
    return np.asarray((logs + (targets - small) - math.log(q) + m * m / 2) / m)


def _invert_replaced(targets: Floats, means: Floats, weights: Floats) -> Floats:
    r"""Invert the loss of a mixture of normals at 0 and m relative to one at 0 and -m.

    With s half a target, :math:`m x = s + \operatorname{asinh}(e^{m^2/2} \sinh(s)(1-q)/q)`.
    """
    m, q = means[1], weights[1]
    half = np.abs(targets) / 2
    with np.errstate(divide="ignore"):  # at a target of zero, and at a rate of one
        log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
        logs = m * m / 2 + log_sinh + np.log1p(-q) - math.log(q)
    arc = np.logaddexp(logs, np.logaddexp(2 * logs, 0.0) / 2)
    return np.asarray(np.sign(targets) * (half + arc) / m)


def _normal_masses(x: Floats) -> Floats:
    """Masses of the unit normal between adjacent points, each computed in its nearer tail."""
    tail = special.ndtr(-np.abs(x))
    left, right = tail[:-1], tail[1:]
    same = np.where(x[:-1] >= 0, left - right, right - left)
    return np.asarray(np.where((x[:-1] < 0) & (x[1:] > 0), 1 - left - right, same))


_MAX_POINTS = 2**22  # of a discrete Gaussian's support: 32 MB of doubles


def for_rows(event: Event, rows: int) -> Event:
    """The event for all rows of one unit at once (group privacy).

    The sensitivity of a sum is multiplied by ``rows``; an epsilon-DP mechanism is
    (rows * epsilon)-DP for the group. Events on Poisson batches are returned unchanged, since
    :func:`privacy_loss` counts how many of the rows enter the batch. So are wrappers, whose
    contents are converted separately.
    """
    if rows == 1 or isinstance(event, PoissonGaussian | AsReplaceOne | Parallel):
        return event
    if isinstance(event, Pure):
        return replace(
            event, epsilon=_multiply_rounding_up(Fraction(repr(event.epsilon)), rows, repr)
        )
    if isinstance(event, Gaussian | Laplace | DiscreteLaplace | DiscreteGaussian):
        if isinstance(event.sensitivity, int):
            return replace(event, sensitivity=event.sensitivity * rows)
        return replace(
            event, sensitivity=_multiply_rounding_up(Fraction(event.sensitivity), rows, float)
        )
    raise ValueError(
        f"Expected max_contributions=1 for {type(event).__name__}, got "
        f"max_contributions={rows}: its cost for a unit of several rows is not known. Keep one "
        "row per unit (limit_contributions), or use a mechanism on sums."
    )


def _multiply_rounding_up(
    exact: Fraction, rows: int, read: Callable[[float], str | float]
) -> float:
    """The smallest float that, as converted by ``read``, is not below the exact product."""
    product = float(exact * rows)
    while Fraction(read(product)) < exact * rows:
        product = math.nextafter(product, math.inf)
    return product


def has_loss(event: Event) -> bool:
    """Whether a privacy-loss distribution of the event is available."""
    if isinstance(event, DiscreteGaussian):
        points = 2 * TAIL_WIDTH * event.noise + event.sensitivity
        return event.entries == 1 and points <= _MAX_POINTS
    return isinstance(
        event, Gaussian | Laplace | DiscreteLaplace | PoissonGaussian | Pure | Approximate
    )


def privacy_loss(event: Event, *, spacing: float, rows: int = 1) -> PrivacyLossDistribution:
    r"""The pessimistic privacy-loss distribution of one mechanism.

    Noise without sampling is charged by its ratio to the sensitivity under the event's *own*
    relation. The replace-one accountants of dp-accounting are not used: with privacy-loss
    distributions they double the sensitivity of a Gaussian and reject Laplace noise, and with
    Rényi divergences they do not double it.

    The scalar case covers vectors. For Gaussian noise this follows by rotation. For (discrete)
    Laplace noise it follows from log-concavity: testing 0 against a shift of a + b in one entry
    is at least as easy as the two tests of a and of b together, so spreading a shift over
    entries never helps the adversary (Dong, Roth and Su 2022, Section 2.4). No such argument is
    known for discrete Gaussian vectors, for which :func:`has_loss` is false.

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
        return _poisson_loss(event, spacing, rows)
    if isinstance(event, Gaussian):
        one = np.ones(1)
        mixture = (np.array([event.sensitivity / event.noise]), one)
        loss = normal_mixture_loss(mixture, (np.zeros(1), one), spacing=spacing)
    elif isinstance(event, Laplace):
        loss = laplace_loss(event.sensitivity / event.noise, spacing=spacing)
    elif isinstance(event, DiscreteLaplace):
        shift = int(event.sensitivity)
        loss = discrete_laplace_loss(event.noise, shift, spacing=spacing)
    elif isinstance(event, DiscreteGaussian):
        shift = int(event.sensitivity)
        loss = discrete_gaussian_loss(event.noise, shift, spacing=spacing)
    elif isinstance(event, Pure | Approximate):
        delta = event.delta if isinstance(event, Approximate) else 0.0
        loss = randomized_response_loss(event.epsilon, delta, spacing=spacing)
    else:
        raise TypeError(f"{type(event).__name__} has no privacy-loss distribution of its own")
    return PrivacyLossDistribution(_pmf(loss))


def _poisson_loss(event: PoissonGaussian, spacing: float, rows: int) -> PrivacyLossDistribution:
    r"""Loss of a noisy sum over a Poisson batch, for a unit of k rows.

    With probability :math:`p_j` (binomial), j of the unit's rows enter the batch and change
    the sum by at most jC. Let a be the probability of an event A under the noise around the sum
    of the other records. By the Neyman-Pearson lemma, a shift of length at most jC gives A a
    probability between :math:`\Phi(\Phi^{-1}(a) - jC/\sigma)` and
    :math:`\Phi(\Phi^{-1}(a) + jC/\sigma)`, and one half-line attains all these bounds at once.
    So for every :math:`\alpha \ge 0`, :math:`P(A) - \alpha Q(A)` is largest for the pairs

    - add/remove: :math:`\sum_j p_j N(jC, \sigma^2)` against :math:`N(0, \sigma^2)`, and the
      reverse (the mixture of Gaussians, https://arxiv.org/abs/2401.10294);
    - replace-one: :math:`\sum_j p_j N(jC, \sigma^2)` against
      :math:`\sum_j p_j N(-jC, \sigma^2)`.

    Averaging over the batch of the other records only lowers it (joint convexity), and a pair
    that dominates for all :math:`\alpha` composes.
    """
    most = _max_entering(event, rows)  # the mass of larger counts is added as infinite loss
    entering = np.arange(most + 1)
    weights = stats.binom.pmf(entering, rows, event.rate)
    means = entering * (event.sensitivity / event.noise)
    mixture = (means, weights)
    if event.relation == "replace-one":
        loss = normal_mixture_loss(mixture, (-means, weights), spacing=spacing)
        return PrivacyLossDistribution(_pmf(loss, stats.binom.sf(most, rows, event.rate)))
    nothing = (np.zeros(1), np.ones(1))
    remove = normal_mixture_loss(mixture, nothing, spacing=spacing)
    add = normal_mixture_loss(nothing, (-means, weights), spacing=spacing)
    beyond = stats.binom.sf(most, rows, event.rate)
    return PrivacyLossDistribution(_pmf(remove, beyond), _pmf(add))


def _max_entering(event: PoissonGaussian, rows: int) -> int:
    """Number of a unit's rows that a batch exceeds with probability below 1e-20."""
    return int(stats.binom.isf(1e-20, rows, event.rate)) if rows > 8 else rows


def _pmf(loss: Loss, beyond: float = 0.0) -> DensePLDPmf:
    """Convert a loss to dp-accounting's type, with the omitted mass as infinite loss."""
    infinite = min(1.0, loss.infinite + float(beyond))
    return DensePLDPmf(loss.spacing, loss.first, loss.masses, infinite, True)


def typical_loss(event: Event, rows: int) -> tuple[float, float]:
    """Rough standard deviation and rough maximum of one loss, to choose the grid."""
    if isinstance(event, Pure | Approximate):
        return event.epsilon, event.epsilon
    assert not isinstance(event, AsReplaceOne)
    ratio = float(event.sensitivity) / event.noise  # type: ignore[union-attr]
    if isinstance(event, Laplace | DiscreteLaplace):
        return ratio, ratio
    if isinstance(event, PoissonGaussian):
        both = 2 if event.relation == "replace-one" else 1
        shift = both * _max_entering(event, rows) * ratio
        chi = math.sqrt(math.expm1(min(ratio * ratio, 50.0)))
        return min(both * rows * event.rate * chi, shift), shift * (TAIL_WIDTH + shift)
    return ratio, ratio * (TAIL_WIDTH + ratio)


_TAIL = 1e-6  # of delta, cut off on either side of a composition and added to delta
_GROUPS = 4096

CountedLosses = Sequence[tuple[PrivacyLossDistribution, int]]


@dataclass(frozen=True)
class ComposedLoss:
    """The loss distributions of a composition, one for each direction of the neighbors."""

    directions: tuple[Loss, ...]

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon that holds with this delta in both directions."""
        return max(_epsilon(loss, delta) for loss in self.directions)

    def delta(self, epsilon: float) -> float:
        """The smallest delta that holds with this epsilon in both directions."""
        return min(1.0, max(_delta(loss, epsilon) for loss in self.directions))


def compose(parts: CountedLosses, *, delta: float) -> ComposedLoss:
    """Compose loss distributions on one grid, each with its count.

    Each direction is composed over all events before the worse of the two is taken, since the
    worse direction may differ between events.

    ``delta`` is the smallest of interest; it determines how much of the tails may be truncated.

    Guarantees
    ----------
    Pessimistic in real arithmetic: truncated mass counts as an infinite loss, and mass that
    wraps around is counted twice. The rounding error of the transform is estimated,
    conservatively, by the largest negative value at any point, and counted as infinite loss at
    every point.
    """
    one_way: list[tuple[Loss, int]] = []
    other_way: list[tuple[Loss, int]] = []
    for pld, n in parts:  # only here are private attributes of dp-accounting used
        for side, pmf in (
            (one_way, pld._pmf_remove),
            (other_way, pld._pmf_remove if pld._symmetric else pld._pmf_add),
        ):
            dense = pmf.to_dense_pmf()
            loss = Loss(
                dense._discretization, dense._lower_loss, dense._probs, dense._infinity_mass
            )
            side.append((loss, n))
    symmetric = all(pld._symmetric for pld, _ in parts)
    directions = (one_way,) if symmetric else (one_way, other_way)
    return ComposedLoss(tuple(_compose(each, delta * _TAIL) for each in directions))


def to_dp_accounting(total: ComposedLoss) -> PrivacyLossDistribution:
    """Convert a composition to dp-accounting's type, to compute mixtures."""
    pmfs = [
        DensePLDPmf(loss.spacing, loss.first, loss.masses.copy(), loss.infinite, True)
        for loss in total.directions
    ]
    return PrivacyLossDistribution(*pmfs)


# ---------------------------------------------------------------- convolution


def _compose(parts: list[tuple[Loss, int]], tail: float) -> Loss:
    """Convolve loss distributions, each with its count."""
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    spacing = parts[0][0].spacing
    assert all(loss.spacing == spacing for loss, _ in parts)
    first = sum(loss.first * n for loss, n in parts)
    low, high = _window(parts, tail)
    size = fft.next_fast_len(high - low + 1, real=True)
    product = np.ones(size // 2 + 1, dtype=complex)
    for loss, n in parts:
        turns = -(-len(loss.masses) // size)  # the masses are wrapped around a circle
        padded = np.pad(loss.masses, (0, turns * size - len(loss.masses)))
        product *= fft.rfft(padded.reshape(turns, size).sum(axis=0)) ** n
    masses = np.roll(fft.irfft(product, size), -(low % size))
    # Where the true mass is practically zero, the transform leaves its rounding error. The
    # largest negative value shows its size, and every point may be too small by as much.
    rounding = max(0.0, -float(masses.min()))
    kept = -math.expm1(sum(n * math.log1p(-min(loss.infinite, 1 - 1e-16)) for loss, n in parts))
    infinite = min(1.0, kept + 2 * tail + size * rounding)
    return Loss(spacing, first + low, np.maximum(masses, 0.0), infinite)


def _window(parts: list[tuple[Loss, int]], tail: float) -> tuple[int, int]:
    r"""Bounds that the sum of all losses exceeds with probability at most ``tail``.

    By Chernoff's bound, :math:`P(S \ge s) \le e^{-ts} \prod_i M_i(t)^{n_i}` for every t > 0.
    The smallest s is taken over slopes t around the optimum for a normal sum, and well below it
    for distributions with a long tail.
    """
    whole = sum((len(loss.masses) - 1) * n for loss, n in parts)
    grouped = [(*_group_masses(loss.masses), n) for loss, n in parts]
    means = [float(x @ w / w.sum()) for x, w, _ in grouped]
    variance = sum(
        n * float(w @ (x - m) ** 2) for (x, w, n), m in zip(grouped, means, strict=True)
    )
    if variance <= 0:
        return 0, whole
    slopes = math.sqrt(-2 * math.log(tail) / variance) * np.geomspace(1 / 300, 3, 16)
    ends = []
    for sign in (-1, 1):
        logs = np.zeros(len(slopes))
        for (x, w, n), m in zip(grouped, means, strict=True):
            exponents = np.outer(sign * slopes, (x - m)[w > 0])
            top = exponents.max(axis=1)  # so that no exponential overflows
            logs += n * (top + np.log(np.exp(exponents - top[:, None]) @ w[w > 0]))
        deviation = float(np.min((logs - math.log(tail)) / slopes))
        center = sum(n * m for (_, _, n), m in zip(grouped, means, strict=True))
        ends.append(center + sign * deviation)
    return max(0, math.floor(ends[0])), min(whole, math.ceil(ends[1]))


def _group_masses(masses: Floats) -> tuple[Floats, Floats]:
    """A distribution on few points whose moment-generating function is nowhere smaller.

    The mass of each group moves to the two ends of the group with its mean preserved; an
    exponential function lies below its chord.
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
    # With u and v the masses above point j under the two distributions, delta is u - e^s v.
    u = loss.infinite + np.append(np.cumsum(masses[::-1])[::-1], 0.0)
    if u[0] <= delta:
        return 0.0
    # Exponentials relative to the point where u passes delta. Capping them makes v smaller,
    # which is pessimistic.
    base = float(s[np.flatnonzero(u[:-1] > delta)[-1]])
    v = np.append(np.cumsum((masses * np.exp(np.minimum(base - s, 700.0)))[::-1])[::-1], 0.0)
    deltas = u[1:] - np.exp(np.minimum(s - base, 700.0)) * v[1:]
    j = int(np.argmax(deltas <= delta))  # delta decreases with epsilon: the first valid point
    # The point of ``base`` is valid, so that j is at most there, where v has a positive mass.
    return max(0.0, min(float(s[j]), base + math.log((u[j] - delta) / v[j])))
