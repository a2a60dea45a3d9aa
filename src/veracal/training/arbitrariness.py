r"""Arbitrariness of the decisions of one released model, bounded from the model alone.

The distribution of a mechanism's noise is public, and a released model contains one draw of it.
The probability that another run on the *same* records decides otherwise can therefore be
bounded or estimated without access to the records: post-processing, at no cost.

Rows x include a 1 for the intercept if the intercept is one of the noisy coordinates. With K
classes, an individual whom runs assign to class c with probability :math:`p_c` has the
disagreement :math:`\mu = \frac{K}{K-1}(1 - \sum_c p_c^2)`, from 0 to 1, which for two classes
is :math:`4p(1-p)`.

*Objective perturbation.* The gradient of the objective without noise is strongly monotone with
the penalty :math:`\lambda`, and at the released weights it equals minus the noise b, whose
distribution is public: the unknown center is known *in the space of gradients*. Two runs on the
same records therefore differ by at most :math:`\lVert b - b'\rVert/\lambda`.
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
from veracal.data import read_only
from veracal.errors import DataError
from veracal.training.base import margins

OVER_THE_NOISE = (
    "Intervals hold with their probability over the noise of the release, not given the "
    "released weights."
)
SAME_RECORDS = (
    "They describe new noise on the same records, not other records, other settings, or the "
    "choice of the settings."
)
SHARED_NOISE = (
    "All individuals share the noise of one model: an average over individuals is not more "
    "certain than a single one."
)
NOT_SELECTED = (
    "They do not hold for a model that was chosen among several runs by its results, or whose "
    "noise depends on the records."
)
ESTIMATED = (
    "The estimated flip is not a bound and has no guarantee; do not convert it to a "
    "disagreement by 4q(1-q), which would be too large."
)
_MIN_EXCLUDED = 0.01
NO_LOWER_END = (
    "There is no useful lower end, and an upper end of 1 is uninformative: for many models "
    "that is the result for all individuals."
)


@dataclass(frozen=True, eq=False)
class Arbitrariness:
    """Arbitrariness of each individual's decision by a released model.

    Attributes
    ----------
    low, high : array of shape (n,)
        Interval of the disagreement.
    flip : array of shape (n,) or None
        Estimated probability that another run contradicts the released decision; None if no
        reliable estimate exists.
    level : float
        Probability, over the noise of the release, that the intervals hold.
    holds_for : str
        The individuals for whom all intervals hold at once, as text.
    caveats : tuple of str
        Limits of these results, in full sentences, to be printed with them.
    """

    low: Floats
    high: Floats
    flip: Floats | None
    level: float
    holds_for: str
    caveats: tuple[str, ...] = ()

    @property
    def informative_share(self) -> float:
        """Share of individuals with an informative interval; 0 without individuals."""
        return float(np.mean(is_informative(self.low, self.high))) if len(self.high) else 0.0


def is_informative(low: Floats, high: Floats) -> Bools:
    """Whether an interval of a disagreement excludes a hundredth of [0, 1] or more.

    Examples
    --------
    >>> is_informative(np.array([1e-9, 0.0, 0.3]), np.array([1.0, 0.4, 1.0]))
    array([False,  True,  True])
    """
    excluded: Bools = high - low <= 1 - _MIN_EXCLUDED
    return excluded


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it is about individuals
class PlaneDistances:
    """Signed distances of individuals to the decision planes of a model."""

    # Weighted sums for each of m rows of weights, minus the threshold, over the norm of the
    # individual's row: distances in units of a weight. Zero if they cannot be computed.
    sums: Floats
    fixed: Bools  # rows of zeros, whose decision depends on no weight: never arbitrary
    unknown: Bools  # individuals whose sums are too large for float64

    def low(self, values: Floats) -> Floats:
        """Lower ends; 0 if unknown."""
        return np.where(self.fixed | self.unknown, 0.0, np.clip(values, 0.0, 1.0))

    def high(self, values: Floats) -> Floats:
        """Upper ends; 1 if unknown."""
        ends = np.where(self.unknown, 1.0, np.clip(values, 0.0, 1.0))
        return np.where(self.fixed, 0.0, ends)


def plane_distances(weights: ArrayLike, X: ArrayLike, threshold: float = 0.0) -> PlaneDistances:
    """Distances of rows X of shape (n, d) to the planes of weights of shape (d,) or (m, d)."""
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
        # The result of a row has the same bits whatever the other rows are.
        sums = margins(scaled / lengths, w, np.zeros(len(w))) - shifts
    unknown: Bools = ~np.asarray(np.isfinite(sums).all(axis=1))
    return PlaneDistances(np.where((fixed | unknown)[:, None], 0.0, sums), fixed, unknown)


def weight_matrix(weights: ArrayLike) -> Floats:
    """Weights as (1, d) for two classes, or (k, d) for k >= 3."""
    result = np.asarray(weights, dtype=np.float64)
    result = result[None] if result.ndim == 1 else result
    if result.ndim != 2 or len(result) == 2 or not result.size or not np.isfinite(result).all():
        raise DataError(
            "weights",
            "finite numbers, of shape (d,) for two classes or (k, d) for k >= 3",
            f"the shape {np.shape(weights)}",
            "Give coefficients and intercept of a class as one row.",
        )
    return result


def max_disagreement(flips: Floats, classes: int) -> Floats:
    r"""Maximum disagreement of individuals whose flip probability is at most ``flips``.

    With the released class at :math:`1 - q` and the rest spread evenly,
    :math:`\mu = \frac{K}{K-1}\bigl(1 - (1-q)^2 - \frac{q^2}{K-1}\bigr)`, which rises with q up
    to :math:`\frac{K-1}{K}` and is 1 there: a larger bound is uninformative.

    Examples
    --------
    >>> max_disagreement(np.array([0.0, 0.1, 0.5, 0.9]), 2)
    array([0.  , 0.36, 1.  , 1.  ])
    """
    q = np.minimum(flips, (classes - 1) / classes)
    # Not 1 - (1 - q)^2, which would lose small numbers to rounding.
    bound: Floats = classes / (classes - 1) * (q * (2 - q) - q * q / (classes - 1))
    return bound


def failure_probability(level: float) -> float:
    """The probability 1 - level that an interval may fail."""
    if isinstance(level, bool) or not 0 < level < 1:
        raise ValueError(f"Expected level between 0 and 1, got level={level!r}.")
    return 1 - level


def describe_scope(individuals: int | None) -> str:
    """The individuals for whom intervals hold together, as text."""
    if individuals is None:
        return "all individuals at once"
    _checks.whole(individuals=individuals)
    return (
        "one individual named beforehand"
        if individuals == 1
        else f"{individuals} individuals named beforehand"
    )


BoundForm = Literal["sharper", "closed"]
_STEPS = 500  # equally likely steps of a distribution,
_HALVINGS = 34  # and the number of times the last one is halved
_NEGLIGIBLE = 1e-12
_TABLE_SIZE = 4096  # distances that are computed once for all individuals


def objective_certificate(
    weights: ArrayLike,
    X: ArrayLike,
    *,
    penalty: float,
    noise_scale: float,
    residual: float = 0.0,
    level: float = 0.95,
    individuals: int | None = None,
    threshold: float = 0.0,
    form: BoundForm = "sharper",
) -> Arbitrariness:
    r"""Bound on the disagreement after objective perturbation, from the released weights.

    With :math:`M = |w\cdot x|/\lVert x\rVert` and r the quantile of
    :math:`\lVert b\rVert \sim \mathrm{Gamma}(d, s)` at the level, another run flips a decision
    only if :math:`\lVert b' - b\rVert \ge \lambda M`, so that

    .. math:: q \le P(\lVert b' - b_r\rVert \ge \lambda M)
        \le U = P(\lVert b'\rVert \ge \lambda M - r), \qquad \lVert b_r\rVert = r,

    the first, *sharper* one because symmetric unimodal noise is more likely outside a ball the
    further its center is (Anderson 1955), the second in *closed* form. If it is below one half,
    :math:`\mu \le 4q(1-q)`.

    *Individuals named beforehand.* Two runs differ by :math:`H^{-1}(b' - b)` with :math:`0
    \prec H^{-1} \preceq I/\lambda`, which is :math:`I/2\lambda` plus or minus at most as much,
    so that along :math:`\hat x = x/\lVert x\rVert` a flip requires :math:`(\lVert b\rVert +
    |\hat x\cdot b|) + (\lVert b'\rVert + \hat x\cdot b') \ge 2\lambda M`: the quantile of the
    first term and the tail of the second give the bound.

    *K > 2 classes*, with weights :math:`w_c` and independent noise :math:`b_c`. With the
    decision c, its distance :math:`M_j = (w_c - w_j)\cdot x/\lVert x\rVert` from j, and M the
    minimum of them: if :math:`\lVert b_c - b_c'\rVert < \lambda M/2`, and
    :math:`\lVert b_j - b_j'\rVert < \lambda M_j/2` for all j, then no j overtakes c. The sum of
    the probabilities of the complements bounds the flip, if all K lengths
    :math:`\lVert b_c\rVert` are within their quantile at the K-th root of the level.

    Parameters
    ----------
    weights : array of shape (d,), or (k, d) for k >= 3
        As released, intercept included.
    X : array of shape (n, d)
        Rows as the classifier reads them, with a 1 if there is an intercept.
    penalty : float > 0
        The total coefficient :math:`\lambda` of the penalty, which may exceed 1 / C.
    noise_scale : float > 0
        Scale s of the noise.
    residual : float >= 0
        Bound on the solver's final gradient, in both runs.
    level : float in (0, 1)
    individuals : int or None
        Number of individuals, fixed beforehand, for whom all bounds hold together. None: for
        all individuals at once, including any chosen after the release. More than two classes,
        and a threshold other than 0, have bounds for all individuals only.
    threshold : float
        Decision threshold of the weighted sum of two classes.
    form : {"sharper", "closed"}
        Form of the bound for all individuals.

    Guarantees
    ----------
    Post-processing of the released weights. With probability ``level`` over the noise of the
    release, for any records, all bounds hold. This is not a statement given the released
    weights, and there is no useful lower bound. Probabilities are rounded up: distributions are
    discretized, with the worst case of each step.
    """
    _checks.positive(penalty=penalty, noise_scale=noise_scale)
    _checks.one_of(("sharper", "closed"), form=form)
    if not 0 <= residual < np.inf:
        raise ValueError(f"Expected a finite residual >= 0, got residual={residual!r}.")
    w, failure = weight_matrix(weights), failure_probability(level)
    describe_scope(individuals)
    named = individuals if len(w) == 1 and not threshold else None
    distances = plane_distances(w, X, threshold)
    # In units of the noise scale, in which lengths are Gamma of scale 1.
    unit, slack = penalty / noise_scale, residual / noise_scale
    if len(w) > 1:
        flips = _multiclass_flip_bounds(unit * distances.sums, slack, w.shape[1], level, form)
    else:
        margin = unit * np.abs(distances.sums[:, 0])
        flips = (
            _flip_bounds(margin - 2 * slack, w.shape[1], failure, form)
            if named is None
            else _directional_flip_bounds(2 * margin - 4 * slack, w.shape[1], failure / named)
        )
    high = distances.high(max_disagreement(flips, max(2, len(w))))
    caveats = (OVER_THE_NOISE, SAME_RECORDS, SHARED_NOISE, NOT_SELECTED, NO_LOWER_END)
    return Arbitrariness(np.zeros_like(high), high, None, level, describe_scope(named), caveats)


def _multiclass_flip_bounds(
    sums: Floats, slack: float, d: int, level: float, form: BoundForm
) -> Floats:
    """Bounds on the flip probabilities of the largest of several sums."""
    k = sums.shape[1]
    ordered = -np.sort(-sums, axis=1)
    gaps = ordered[:, :1] - ordered[:, 1:]
    halves = np.hstack([gaps[:, :1], gaps]) / 2 - 2 * slack  # the decision, then the others
    failure = -np.expm1(np.log(level) / k)
    bounds = _flip_bounds(halves.ravel(), d, failure, form).reshape(halves.shape)
    total: Floats = np.minimum(bounds.sum(axis=1), 1.0)
    return total


def _flip_bounds(distances: Floats, d: int, failure: float, form: BoundForm) -> Floats:
    """Bounds on the probability that new noise is at these distances from the release's."""
    radius = _length_quantile(failure, d)
    if form == "closed":
        tail: Floats = gammaincc(d, np.maximum(distances - radius, 0.0))
        return tail
    return distance_tail(distances, radius, d)


def _directional_flip_bounds(distances: Floats, d: int, failure: float) -> Floats:
    """Bounds on flip probabilities along one direction, named beforehand."""
    remaining = np.maximum(distances - _directional_quantile(d, failure), 0.0)
    return _look_up(remaining, 2 * _length_quantile(_NEGLIGIBLE, d), _directional_table(d))


def distance_tail(distances: Floats, radius: float, d: int) -> Floats:
    r"""Probability that noise of scale 1 is at a distance from a point at a radius, rounded up.

    For noise with length g and first coordinate g u, :math:`\lVert b'-b_r\rVert^2 =
    g^2 + r^2 - 2gru`. Lengths are discretized, with the end of each step that has the larger
    probability; the last step counts as 1.
    """
    most = radius + _length_quantile(_NEGLIGIBLE, d)
    return _look_up(np.maximum(distances, 0.0), most, _distance_table(radius, d))


def _look_up(distances: Floats, most: float, table: Floats) -> Floats:
    """Decreasing probabilities from a table, each at the next shorter distance.

    Distances beyond ``most`` have the probability at ``most``, which is negligible.
    """
    grid = np.linspace(0.0, most, len(table))
    probabilities: Floats = table[np.searchsorted(grid, distances, side="right") - 1]
    return probabilities


# ---------------------------------------------------------------- tables, of public numbers


@lru_cache(maxsize=16)
def _distance_table(radius: float, d: int) -> Floats:
    """Table of :func:`distance_tail`."""
    distances = np.linspace(0.0, radius + _length_quantile(_NEGLIGIBLE, d), _TABLE_SIZE)
    shares = _probability_grid()
    ends = gamma.ppf(shares[1:-1], d)
    table, before = np.zeros(_TABLE_SIZE), _distance_probability(distances, radius, 0.0, d)
    for end, mass in zip(ends, np.diff(shares), strict=False):
        here = _distance_probability(distances, radius, float(end), d)
        # Between two ends it is smaller: it falls until the length reaches the point.
        table += mass * np.maximum(before, here)
        before = here
    return read_only(np.minimum(table + (1 - shares[-2]), 1.0))


def _distance_probability(distances: Floats, radius: float, norm: float, d: int) -> Floats:
    """Probability that a point of a norm, in a random direction, is at a distance."""
    if norm == 0:
        return (distances <= radius).astype(np.float64)
    cosine = (norm**2 + radius**2 - distances**2) / (2 * norm * radius)
    if d == 1:
        return (cosine >= -1) * 0.5 + (cosine >= 1) * 0.5
    position = np.clip((cosine + 1) / 2, 0.0, 1.0)
    probability: Floats = betainc((d - 1) / 2, (d - 1) / 2, position)
    return probability


@lru_cache(maxsize=16)
def _directional_table(d: int) -> Floats:
    """Tail probabilities of the length plus the first coordinate of noise."""
    distances = np.linspace(0.0, 2 * _length_quantile(_NEGLIGIBLE, d), _TABLE_SIZE)
    if d == 1:
        return read_only(np.where(distances > 0, 0.5 * gammaincc(1, distances / 2), 1.0))
    shares = _probability_grid()
    ends = 2 * beta.ppf(shares[1:], (d - 1) / 2, (d - 1) / 2)
    table = np.zeros(_TABLE_SIZE)
    for end, mass in zip(ends, np.diff(shares), strict=True):
        table += mass * gammaincc(d, distances / end)
    return read_only(np.minimum(table, 1.0))


@lru_cache(maxsize=64)
def _directional_quantile(d: int, failure: float) -> float:
    """Upper quantile of the length plus the absolute first coordinate of noise."""
    ends, masses = np.ones(1), np.ones(1)
    if d > 1:
        ends = np.sqrt(beta.ppf(_probability_grid()[1:], 0.5, (d - 1) / 2))
        masses = np.diff(_probability_grid())
    most = 2 * _length_quantile(failure, d) + 1.0
    root = brentq(lambda y: masses @ gammaincc(d, y / (1 + ends)) - failure, 0.0, most)
    return float(root) * (1 + 1e-9)


def _length_quantile(tail: float, d: int) -> float:
    """Upper quantile of the length of noise of scale 1."""
    return float(gamma.isf(tail, d))


@lru_cache(maxsize=1)
def _probability_grid() -> Floats:
    """Probabilities from 0 to 1 in equal steps; the last step is halved repeatedly."""
    body = np.arange(_STEPS) / _STEPS
    halved = 1 - 2.0 ** -np.arange(1, _HALVINGS) / _STEPS
    return read_only(np.concatenate([body, halved, [1.0]]))
