r"""What one released model tells of how arbitrary its decisions are, and what it does not.

The noise of a mechanism is public, and a released model shows one draw of it around what the
records say. How likely another run on the *same* records decides otherwise is then bounded, or
estimated, without a look at the records: post-processing, at no cost.

Rows x carry a 1 for the intercept wherever that is one of the noisy coordinates. Of K classes,
a person for whom runs decide with probabilities :math:`p_c` has the disagreement
:math:`\mu = \frac{K}{K-1}(1 - \sum_c p_c^2)`, from 0 to 1, which for two classes is
:math:`4p(1-p)`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Bools, Floats
from veracal.errors import DataError
from veracal.training.linear import margins

OVER_THE_NOISE = (
    "Intervals hold with their probability over the noise of the release: that is no "
    "probability given the weights that were seen."
)
SAME_RECORDS = (
    "It is about the same records with new noise: not about other records, other settings, or "
    "how the settings were found."
)
SHARED_NOISE = (
    "All people share the noise of one model: an average over people is not more certain than "
    "one of them."
)
NOT_SELECTED = (
    "It does not hold of a model that was chosen among several runs by its results, or whose "
    "noise depends on the records."
)
ESTIMATED = (
    "The estimated flip is no bound and promises nothing; do not make a disagreement of it by "
    "4q(1-q), which would be too large."
)
_LEAST_SAID = 0.01
NO_LOWER_END = (
    "There is no useful lower end, and an upper end of 1 says nothing: of many models it says "
    "nothing of anybody."
)


@dataclass(frozen=True, eq=False)
class Arbitrariness:
    """What a released model tells of each person's decision.

    Attributes
    ----------
    low, high : array of shape (n,)
        Interval of the disagreement.
    flip : array of shape (n,) or None
        Estimate of how likely another run contradicts the released decision; None where there
        is no estimate that could be believed.
    level : float
        Of the intervals: how often, over the noise of the release, they hold.
    holds_for : str
        Of whom all of them hold at once.
    caveats : tuple of str
        What all of this does not say, in full sentences, to be printed with it.
    """

    low: Floats
    high: Floats
    flip: Floats | None
    level: float
    holds_for: str
    caveats: tuple[str, ...] = ()

    @property
    def informed(self) -> Bools:
        """Of whom the interval says anything: it leaves out a hundredth of [0, 1] or more."""
        return informative(self.low, self.high)

    @property
    def told(self) -> float:
        """Share of people of whom the interval says anything; 0 of nobody."""
        return float(np.mean(self.informed)) if len(self.high) else 0.0


def informative(low: Floats, high: Floats) -> Bools:
    """Whether an interval of a disagreement leaves out a hundredth of [0, 1] or more.

    Examples
    --------
    >>> informative(np.array([1e-9, 0.0, 0.3]), np.array([1.0, 0.4, 1.0]))
    array([False,  True,  True])
    """
    found: Bools = high - low <= 1 - _LEAST_SAID
    return found


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it is about people
class Places:
    """Where people stand to the planes of a model.

    Attributes
    ----------
    sums : array of shape (n, m)
        Weighted sums of each of m rows of weights, less the threshold, over the length of the
        person's row: distances in units of a weight. Zero where they cannot be computed.
    fixed : array of bool, of shape (n,)
        Rows of zeros, which no weights decide: never arbitrary.
    unknown : array of bool, of shape (n,)
        Whose sums are too large for float64.
    """

    sums: Floats
    fixed: Bools
    unknown: Bools

    def low(self, values: Floats) -> Floats:
        """Lower ends, where known."""
        return np.where(self.fixed | self.unknown, 0.0, np.clip(values, 0.0, 1.0))

    def high(self, values: Floats) -> Floats:
        """Upper ends, where known."""
        ends = np.where(self.unknown, 1.0, np.clip(values, 0.0, 1.0))
        return np.where(self.fixed, 0.0, ends)


def places(weights: ArrayLike, X: ArrayLike, threshold: float = 0.0) -> Places:
    """Where rows X of shape (n, d) stand to weights of shape (d,) or (m, d)."""
    w, rows = matrix(weights), np.asarray(X, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != w.shape[1] or not np.isfinite(rows).all():
        raise DataError(
            "X",
            f"rows of {w.shape[1]} finite numbers, one for each weight",
            f"the shape {rows.shape}",
            "Append a 1 to each row if there is an intercept.",
        )
    peaks = np.abs(rows).max(axis=1, initial=0.0)
    fixed = peaks == 0
    scaled = rows / np.where(fixed, 1.0, peaks)[:, None]  # squares of large numbers overflow
    lengths = np.where(fixed, 1.0, np.linalg.norm(scaled, axis=1))[:, None]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        shifts = threshold / lengths / np.where(fixed, 1.0, peaks)[:, None]
        # The same bits of a person, whoever is asked for beside them.
        sums = margins(scaled / lengths, w, np.zeros(len(w))) - shifts
    unknown: Bools = ~np.asarray(np.isfinite(sums).all(axis=1))
    return Places(np.where((fixed | unknown)[:, None], 0.0, sums), fixed, unknown)


def matrix(weights: ArrayLike) -> Floats:
    """Weights as (1, d) for two classes, or (k, d) for k >= 3."""
    found = np.asarray(weights, dtype=np.float64)
    found = found[None] if found.ndim == 1 else found
    if found.ndim != 2 or len(found) == 2 or not found.size or not np.isfinite(found).all():
        raise DataError(
            "weights",
            "finite numbers, of shape (d,) for two classes or (k, d) for k >= 3",
            f"the shape {np.shape(weights)}",
            "Give coefficients and intercept of a class as one row.",
        )
    return found


def most_disagreement(flips: Floats, classes: int) -> Floats:
    r"""The most that people can disagree whose decision flips with at most a probability.

    With the released class at :math:`1 - q` and the rest spread evenly,
    :math:`\mu = \frac{K}{K-1}\bigl(1 - (1-q)^2 - \frac{q^2}{K-1}\bigr)`, which rises with q as
    far as :math:`\frac{K-1}{K}` and is 1 there: a larger bound says nothing.

    Examples
    --------
    >>> most_disagreement(np.array([0.0, 0.1, 0.5, 0.9]), 2)
    array([0.  , 0.36, 1.  , 1.  ])
    """
    q = np.minimum(flips, (classes - 1) / classes)
    # Not 1 - (1 - q)^2: that would round small numbers away.
    found: Floats = classes / (classes - 1) * (q * (2 - q) - q * q / (classes - 1))
    return found


def spare_of(level: float) -> float:
    """What a level leaves."""
    if isinstance(level, bool) or not 0 < level < 1:
        raise ValueError(f"Expected level between 0 and 1, got level={level!r}.")
    return 1 - level


def whom(people: int | None) -> str:
    """Of whom intervals hold together, in words."""
    if people is None:
        return "everybody at once"
    _checks.whole(people=people)
    return "one person named beforehand" if people == 1 else f"{people} people named beforehand"
