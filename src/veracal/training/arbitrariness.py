r"""What one released model tells of how arbitrary its decisions are, and what it does not.

The noise of a mechanism is public, and a released model shows one draw of it around what the
records say. How likely another run on the *same* records decides otherwise is then bounded, or
estimated, without a look at the records: post-processing, at no cost.

Rows x carry a 1 for the intercept wherever that is one of the noisy coordinates. Of K classes,
a person for whom runs decide with probabilities :math:`p_c` has the disagreement
:math:`\mu = \frac{K}{K-1}(1 - \sum_c p_c^2)`, from 0 to 1, which for two classes is
:math:`4p(1-p)`.

A bound on how arbitrary decisions are after objective perturbation, from the weights.

The gradient of the objective without noise is strongly monotone with the penalty
:math:`\lambda`, and at the released weights it is minus the noise b, whose law is public: the
unknown center is known *in the space of gradients*. Two runs on the same records therefore
differ by at most :math:`\lVert b - b'\rVert/\lambda`.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import betainc, gammaincc
from scipy.stats import beta, gamma

from veracal import _checks
from veracal._types import Bools, Floats
from veracal.data import frozen
from veracal.errors import DataError
from veracal.training.base import margins

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
_MIN_EXCLUDED = 0.01
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
    found: Bools = high - low <= 1 - _MIN_EXCLUDED
    return found


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it is about people
class PlaneDistances:
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


def plane_distances(weights: ArrayLike, X: ArrayLike, threshold: float = 0.0) -> PlaneDistances:
    """Where rows X of shape (n, d) stand to weights of shape (d,) or (m, d)."""
    w, rows = weight_matrix(weights), np.asarray(X, dtype=np.float64)
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
    return PlaneDistances(np.where((fixed | unknown)[:, None], 0.0, sums), fixed, unknown)


def weight_matrix(weights: ArrayLike) -> Floats:
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


def max_disagreement(flips: Floats, classes: int) -> Floats:
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


BoundForm = Literal["sharper", "closed"]
_STEPS = 500  # equally likely steps of a law,
_HALVINGS = 34  # and how often the last one is halved
_NEGLIGIBLE = 1e-12
_TABLE_SIZE = 4096  # distances that are computed once for all people


def objective_certificate(
    weights: ArrayLike,
    X: ArrayLike,
    *,
    penalty: float,
    noise_scale: float,
    residual: float = 0.0,
    level: float = 0.95,
    people: int | None = None,
    threshold: float = 0.0,
    form: BoundForm = "sharper",
) -> Arbitrariness:
    r"""Bound on the disagreement after objective perturbation, from the released weights.

    With :math:`M = |w\cdot x|/\lVert x\rVert` and r the quantile of
    :math:`\lVert b\rVert \sim \mathrm{Gamma}(d, s)` at the level, another run flips a decision
    only if :math:`\lVert b' - b\rVert \ge \lambda M`, so that

    .. math:: q \le P(\lVert b' - b_r\rVert \ge \lambda M)
        \le U = P(\lVert b'\rVert \ge \lambda M - r), \qquad \lVert b_r\rVert = r,

    the first, *sharper* one because a symmetric noise with one peak is the more likely outside
    of a ball the further the center is (Anderson 1955), the second in *closed* form. Where it
    is below one half, :math:`\mu \le 4q(1-q)`.

    *People named beforehand.* Two runs differ by :math:`H^{-1}(b' - b)` with
    :math:`0 \prec H^{-1} \preceq I/\lambda`, which is :math:`I/2\lambda` give or take as much,
    so that along :math:`\hat x = x/\lVert x\rVert` a flip needs
    :math:`(\lVert b\rVert + |\hat x\cdot b|) + (\lVert b'\rVert + \hat x\cdot b') \ge
    2\lambda M`: quantile of the first bracket, tail of the second.

    *K > 2 classes*, each with weights :math:`w_c` and noise :math:`b_c` of its own. With the
    decision c, its distance :math:`M_j = (w_c - w_j)\cdot x/\lVert x\rVert` from j, and M the
    least of them: if :math:`\lVert b_c - b_c'\rVert < \lambda M/2`, and
    :math:`\lVert b_j - b_j'\rVert < \lambda M_j/2` for all j, then no j overtakes c. The sum of
    the probabilities of the opposite bounds the flip, where all K lengths
    :math:`\lVert b_c\rVert` are within their quantile at the K-th root of the level.

    Parameters
    ----------
    weights : array of shape (d,), or (k, d) for k >= 3
        As released, intercept included.
    X : array of shape (n, d)
        Rows as predictions read them, with a 1 where there is an intercept.
    penalty : float > 0
        The whole coefficient :math:`\lambda` of the penalty, not 1 / C where more was needed.
    noise_scale : float > 0
        Scale s of the noise that was used.
    residual : float >= 0
        Bound on the gradient at which the solver stopped, in both runs.
    level : float in (0, 1)
    people : int or None
        Of how many, fixed beforehand, all bounds hold together. None: of everybody at once,
        also of people chosen after the release. More than two classes, and a threshold that is
        not 0, have bounds for everybody only.
    threshold : float
        What a weighted sum of two classes is compared with.
    form : {"sharper", "closed"}
        Of the bound for everybody.

    Guarantees
    ----------
    Post-processing of the released weights. With probability ``level`` over the noise of the
    release, for any records, all bounds hold. It is no statement about the weights that were
    seen, and there is no useful lower bound. Probabilities are rounded up: laws are cut into
    steps, each taken at its worst.
    """
    _checks.positive(penalty=penalty, noise_scale=noise_scale)
    _checks.one_of(("sharper", "closed"), form=form)
    if not 0 <= residual < np.inf:
        raise ValueError(f"Expected a finite residual >= 0, got residual={residual!r}.")
    w, spare = weight_matrix(weights), spare_of(level)
    whom(people)
    named = people if len(w) == 1 and not threshold else None
    where = plane_distances(w, X, threshold)
    # Everything in units of the noise: lengths are Gamma of scale 1 then.
    unit, left = penalty / noise_scale, residual / noise_scale
    if len(w) > 1:
        flips = _multiclass_flip_bounds(unit * where.sums, left, w.shape[1], level, form)
    else:
        away = unit * np.abs(where.sums[:, 0])
        flips = (
            _flip_bounds(away - 2 * left, w.shape[1], spare, form)
            if named is None
            else _directional_flip_bounds(2 * away - 4 * left, w.shape[1], spare / named)
        )
    high = where.high(max_disagreement(flips, max(2, len(w))))
    caveats = (OVER_THE_NOISE, SAME_RECORDS, SHARED_NOISE, NOT_SELECTED, NO_LOWER_END)
    return Arbitrariness(np.zeros_like(high), high, None, level, whom(named), caveats)


def _multiclass_flip_bounds(
    sums: Floats, left: float, d: int, level: float, form: BoundForm
) -> Floats:
    """Bounds on flips of the largest of several sums."""
    k = sums.shape[1]
    ordered = -np.sort(-sums, axis=1)
    gaps = ordered[:, :1] - ordered[:, 1:]
    halves = np.hstack([gaps[:, :1], gaps]) / 2 - 2 * left  # the decision, then the others
    spare = -np.expm1(np.log(level) / k)
    found = _flip_bounds(halves.ravel(), d, spare, form).reshape(halves.shape)
    total: Floats = np.minimum(found.sum(axis=1), 1.0)
    return total


def _flip_bounds(distances: Floats, d: int, spare: float, form: BoundForm) -> Floats:
    """Bounds on the probability that new noise is so far from that of the release."""
    radius = _length_quantile(spare, d)
    if form == "closed":
        found: Floats = gammaincc(d, np.maximum(distances - radius, 0.0))
        return found
    return distance_tail(distances, radius, d)


def _directional_flip_bounds(distances: Floats, d: int, spare: float) -> Floats:
    """Bounds on flips along one direction, named beforehand."""
    left = np.maximum(distances - _directional_quantile(d, spare), 0.0)
    return _look_up(left, 2 * _length_quantile(_NEGLIGIBLE, d), _directional_table(d))


def distance_tail(distances: Floats, radius: float, d: int) -> Floats:
    r"""Probability that noise of scale 1 is so far from a point at a radius, rounded up.

    Of noise with length g and first coordinate g u, :math:`\lVert b'-b_r\rVert^2 =
    g^2 + r^2 - 2gru`. Lengths are cut into steps, each taken at whichever of its ends makes
    the probability larger; of the last one, all of it.
    """
    most = radius + _length_quantile(_NEGLIGIBLE, d)
    return _look_up(np.maximum(distances, 0.0), most, _distance_table(radius, d))


def _look_up(distances: Floats, most: float, table: Floats) -> Floats:
    """Probabilities that fall, each of the next shorter distance of a table.

    All that is further than ``most`` has the probability there, which is next to nothing.
    """
    known = np.linspace(0.0, most, len(table))
    found: Floats = table[np.searchsorted(known, distances, side="right") - 1]
    return found


# ---------------------------------------------------------------- tables, of public numbers


@lru_cache(maxsize=16)
def _distance_table(radius: float, d: int) -> Floats:
    """Probabilities of :func:`outside`."""
    distances = np.linspace(0.0, radius + _length_quantile(_NEGLIGIBLE, d), _TABLE_SIZE)
    shares = _probability_grid()
    ends = gamma.ppf(shares[1:-1], d)
    found, before = np.zeros(_TABLE_SIZE), _distance_probability(distances, radius, 0.0, d)
    for end, mass in zip(ends, np.diff(shares), strict=False):
        here = _distance_probability(distances, radius, float(end), d)
        # In between it is smaller: it falls as far as the length nears the point, then rises.
        found += mass * np.maximum(before, here)
        before = here
    return frozen(np.minimum(found + (1 - shares[-2]), 1.0))


def _distance_probability(distances: Floats, radius: float, norm: float, d: int) -> Floats:
    """Probability that a point of a norm, in a direction by chance, is so far from another."""
    if norm == 0:
        return (distances <= radius).astype(np.float64)
    cosine = (norm**2 + radius**2 - distances**2) / (2 * norm * radius)
    if d == 1:
        return (cosine >= -1) * 0.5 + (cosine >= 1) * 0.5
    place = np.clip((cosine + 1) / 2, 0.0, 1.0)
    found: Floats = betainc((d - 1) / 2, (d - 1) / 2, place)
    return found


@lru_cache(maxsize=16)
def _directional_table(d: int) -> Floats:
    """Probabilities that length and first coordinate of noise together are so large."""
    distances = np.linspace(0.0, 2 * _length_quantile(_NEGLIGIBLE, d), _TABLE_SIZE)
    if d == 1:
        return frozen(np.where(distances > 0, 0.5 * gammaincc(1, distances / 2), 1.0))
    shares = _probability_grid()
    ends = 2 * beta.ppf(shares[1:], (d - 1) / 2, (d - 1) / 2)
    found = np.zeros(_TABLE_SIZE)
    for end, mass in zip(ends, np.diff(shares), strict=True):
        found += mass * gammaincc(d, distances / end)
    return frozen(np.minimum(found, 1.0))


@lru_cache(maxsize=64)
def _directional_quantile(d: int, spare: float) -> float:
    """What length and size of the first coordinate of noise are together above so rarely."""
    ends, masses = np.ones(1), np.ones(1)
    if d > 1:
        ends, masses = (
            np.sqrt(beta.ppf(_probability_grid()[1:], 0.5, (d - 1) / 2)),
            np.diff(_probability_grid()),
        )

    def longer(length: float) -> float:
        return float(masses @ gammaincc(d, length / (1 + ends))) - spare

    return float(brentq(longer, 0.0, 2 * _length_quantile(spare, d) + 1.0)) * (1 + 1e-9)


def _length_quantile(tail: float, d: int) -> float:
    """What the length of noise of scale 1 is above with a probability."""
    return float(gamma.isf(tail, d))


@lru_cache(maxsize=1)
def _probability_grid() -> Floats:
    """From 0 to 1 in steps that are alike, but for the last one, which is halved and halved."""
    body = np.arange(_STEPS) / _STEPS
    halved = 1 - 2.0 ** -np.arange(1, _HALVINGS) / _STEPS
    return frozen(np.concatenate([body, halved, [1.0]]))
