r"""Composition of privacy-loss distributions: what all events together lose.

Losses of events add, so their laws convolve, and a Fourier transform turns that into a
product: one transform for each event, one back. dp-accounting composes two at a time and finds
the truncation anew for each; with the 64 levels of a noise schedule this is some ten times
faster, and it keeps account of the rounding of the transform, which dp-accounting leaves out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import fft

from veracal._types import Floats
from veracal.privacy.costs.pairs import Loss

_TAIL = 1e-6  # of delta, cut off on either side of a composition and added to delta
_GROUPS = 4096

Counted = Sequence[tuple[PrivacyLossDistribution, int]]


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


def compose(parts: Counted, *, delta: float) -> Total:
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
