r"""Where accuracy and confidence meet, from a few noisy answers.

The gap between the number of right predictions and the sum of confidences falls with the
inverse temperature :math:`\beta`, and is smooth in :math:`u = \log\beta`. The mean confidence
is taken to be a logistic curve of u,

.. math:: c(u) = \sigma(\mathrm{logit}\, a + s (u - u^*)),

which goes through the accuracy a at the root u*. (That a confidence is never below chance makes
no difference where it matters, near the root: a curve that starts at 1/k did no better in
trials, and one with a wrong k did worse.) Root and steepness s have broad public priors; noisy
answers turn them into a posterior. The next question is asked at its median, so that questions
close in on the root, where the form of the curve no longer matters. With much noise the
posterior stays near the prior, whose median is no change at all.

All of this is a function of noisy answers and of public numbers, and costs no privacy.

Questions that close in on a temperature, each asked where the answers before it point.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from veracal import _checks
from veracal._types import Floats
from veracal.calibration.maps.parametric import LEAST_INVERSE, MOST_INVERSE
from veracal.calibration.private.session import PricedQuery, QuerySession
from veracal.calibration.queries.scalars import Gap
from veracal.queries import Release

_POINTS = 241
_SPREAD = 0.9  # of the prior of the root, in log inverse temperature
_STEEPNESS = np.exp(np.linspace(math.log(0.15), math.log(3.0), 25))
_USUAL, _VARIES = math.log(0.9), 0.5  # prior of the logarithm of the steepness
_MISFIT = 0.1  # of the curve, as a share of how far from the root a gap is
_EDGE = 0.02  # accuracies closer to 0 or 1 are taken to be this far off
_TAIL = 1e-4  # of the posterior that a closer look may leave out, on either side
FINEST = 2.0**-16  # inverse temperatures asked for are multiples of it


@dataclass(frozen=True)
class Probe:
    """A noisy gap at an inverse temperature.

    Attributes
    ----------
    inverse : float
    gap : float
        Right predictions minus sum of confidences, with noise.
    std : float
        Standard deviation of the noise.
    """

    inverse: float
    gap: float
    std: float


@dataclass(frozen=True)
class GapContext:
    """What is known beside the gaps.

    Attributes
    ----------
    n : float
        Noisy number of records, at least 1.
    n_std : float
        Standard deviation of its noise.
    accuracy : float
        Noisy share of right predictions, between 0 and 1.
    inverses : pair of float
        Public range of inverse temperatures.
    """

    n: float
    n_std: float
    accuracy: float
    inverses: tuple[float, float]

    @classmethod
    def of(
        cls, correct: float, wrong: float, std: float, inverses: tuple[float, float]
    ) -> "GapContext":
        """From noisy counts, which may be negative or leave no accuracy."""
        n = max(correct + wrong, 1.0)
        accuracy = min(max(correct / n, _EDGE), 1 - _EDGE)
        return cls(n, math.sqrt(2) * std, accuracy, inverses)


@dataclass(frozen=True, eq=False)
class Posterior:
    """Weights of log inverse temperatures.

    Attributes
    ----------
    points : array of shape (m,)
    weights : array of shape (m,)
        They sum to one.
    """

    points: Floats
    weights: Floats

    def quantile(self, share: float) -> float:
        """Log inverse temperature below which a share of the weight lies."""
        middle = np.cumsum(self.weights) - self.weights / 2
        return float(np.interp(share, middle, self.points))

    def inverse(self, share: float = 0.5) -> float:
        """The same as an inverse temperature on a public grid."""
        exact = math.exp(self.quantile(share))
        return max(round(exact / FINEST), 1) * FINEST


def posterior(
    probes: Sequence[Probe], setting: GapContext, *, sampled: bool = False
) -> Posterior:
    """Where the root is, given answers so far: first on the whole range, then closer.

    Parameters
    ----------
    probes : sequence of Probe
    setting : Setting
    sampled : bool
        Whether the root of the population is meant, of which the records are a sample.
    """
    low, high = (math.log(inverse) for inverse in setting.inverses)
    found = _on(np.linspace(low, high, _POINTS), probes, setting, sampled)
    for _ in range(2):
        low, high = found.quantile(_TAIL), found.quantile(1 - _TAIL)
        step = found.points[1] - found.points[0]
        ends = max(low - step, found.points[0]), min(high + step, found.points[-1])
        found = _on(np.linspace(*ends, _POINTS), probes, setting, sampled)
    return found


def _on(
    points: Floats, probes: Sequence[Probe], setting: GapContext, sampled: bool
) -> Posterior:
    """Posterior of the root on some points, whatever the steepness."""
    prior = -0.5 * (points / _SPREAD) ** 2
    logs = prior[:, None] - 0.5 * ((np.log(_STEEPNESS) - _USUAL) / _VARIES) ** 2
    spread = len(probes) * setting.n * setting.accuracy * (1 - setting.accuracy)
    # The records' own chance is in all answers alike, so more of them do not average it out.
    chance = spread if sampled else 0.0
    misfit = math.hypot(_MISFIT, min(setting.n_std / setting.n, 1.0))
    for probe in probes:
        gaps = setting.n * (setting.accuracy - _curve(math.log(probe.inverse), points, setting))
        std = math.sqrt(probe.std**2 + chance) + misfit * abs(probe.gap) + 1e-9 * setting.n
        logs = logs - math.sqrt(2) * np.abs(probe.gap - gaps) / std
    weights = np.exp(logs - logs.max()).sum(axis=1)
    return Posterior(points, weights / weights.sum())


def _curve(u: float, roots: Floats, setting: GapContext) -> Floats:
    """Mean confidence at u, of shape (roots, steepness)."""
    height = logit(setting.accuracy)
    result: Floats = expit(height + _STEEPNESS * (u - roots[:, None]))
    return result


@dataclass(frozen=True, eq=False)
class Probed:
    """What was asked, and where it leads.

    Attributes
    ----------
    inverse : float
        Inverse temperature at which confidence and accuracy meet, as far as is known.
    setting : Setting
    probes : tuple of Probe
    releases : tuple of Release
        The counts, then a gap for each probe.
    """

    inverse: float
    setting: GapContext
    probes: tuple[Probe, ...]
    releases: tuple[Release, ...]

    @property
    def n(self) -> int:
        """Noisy number of records, not below zero."""
        return max(round(sum(self.releases[0].values)), 0)


def probed(
    inquiry: QuerySession, asks: Sequence[PricedQuery], inverses: tuple[float, float]
) -> Probed:
    """Ask for counts, then for gaps, the first of them where nothing changes.

    Parameters
    ----------
    inquiry : Inquiry
        Of which nothing was asked yet.
    asks : sequence of Ask
        The counts, then gaps, whose inverse temperatures are filled in.
    inverses : pair of float
        Public range.
    """
    low, high = _on_grid(inverses)
    inquiry.ask(asks[0], "counts")
    places, found = list[float](), None
    for i, ask in enumerate(asks[1:]):
        assert isinstance(ask.query, Gap)
        places.append(min(max(1.0, low), high) if found is None else found.inverse)
        inquiry.ask(
            PricedQuery(Gap(places[-1], ask.query.classes), ask.micro_epsilon), f"gap {i}"
        )
        found = probed_at(inquiry.answers, places, inverses)
    assert found is not None
    return found


def probed_at(
    answers: Sequence[Release], places: Sequence[float], inverses: tuple[float, float]
) -> Probed:
    """Where answers lead, all of them of the same sources.

    Parameters
    ----------
    answers : sequence of Release
        The counts, then a gap for each place; what follows is left alone.
    places : sequence of float
        Inverse temperatures of the gaps.
    inverses : pair of float
        Public range.
    """
    low, high = _on_grid(inverses)
    counts, *gaps = answers[: 1 + len(places)]
    correct, wrong = counts.values
    setting = GapContext.of(correct, wrong, counts.noise_std, inverses)
    probes = tuple(
        Probe(place, gap.value, gap.noise_std) for place, gap in zip(places, gaps, strict=True)
    )
    inverse = min(max(posterior(probes, setting).inverse(), low), high)
    return Probed(inverse, setting, probes, (counts, *gaps))


def _on_grid(inverses: tuple[float, float]) -> tuple[float, float]:
    """Ends of a range, rounded inward to the public grid that questions are asked on."""
    low, high = inverses
    first, last = math.ceil(low / FINEST) * FINEST, math.floor(high / FINEST) * FINEST
    return (first, last) if first <= last else (low, high)


def check_range(inverses: tuple[float, float]) -> tuple[float, float]:
    """A public range of inverse temperatures that a map may have, checked."""
    low, high = inverses
    _checks.positive(least_inverse=low, most_inverse=high)
    if not LEAST_INVERSE <= low < high <= MOST_INVERSE:
        raise ValueError(
            f"Expected a range of inverses between {LEAST_INVERSE:g} and {MOST_INVERSE:g}, got "
            f"inverses={inverses!r}."
        )
    return float(low), float(high)
