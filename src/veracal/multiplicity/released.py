r"""How arbitrary decisions are, told from one released model: post-processing, at no cost.

The noise of a mechanism is public, and a released model shows one draw of it around what the
records say. How likely a second run on the *same* records decides otherwise is then bounded, or
estimated, without a look at the records.

What none of this tells: what other records would have led to (nobody is drawn again), or other
settings; anything of a model that was chosen among several runs by its results, or whose noise
depends on the records. All people share the noise of one model, so that an average over people
is not more certain than one of them.

Rows x carry a 1 for the intercept wherever that is one of the noisy coordinates.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, ndtr, ndtri
from scipy.stats import chi, gamma

from veracal import _checks
from veracal._types import Floats
from veracal.errors import DataError

_NODES = 2_000  # quantiles over which a law is averaged


def gaussian_disagreement(weights: ArrayLike, X: ArrayLike, noise_std: float) -> Floats:
    r"""Disagreement where the weights *without noise* are known (paper 004, Prop. 2).

    With :math:`t = w\cdot x / (\sigma\lVert x\rVert)` a run decides for the second class with
    probability :math:`\Phi(t)`, and :math:`\mu = 4\,\Phi(t)\,\Phi(-t)`. A row of zeros is never
    decided for it, so that its disagreement is 0.

    Notes
    -----
    A function of weights that nobody may see: *internal*, an oracle for the other ways.
    """
    t = _distances(weights, X) / noise_std
    return np.where(_lengths(X) > 0, 4 * ndtr(t) * ndtr(-t), 0.0)


@dataclass(frozen=True, eq=False)
class Arbitrariness:
    """What a released model tells of each person's decision.

    Attributes
    ----------
    low, high : array of shape (n,)
        Interval of the disagreement.
    flip : array of shape (n,) or None
        Estimate of how likely another run contradicts the released decision.
    level : float
        Of the intervals.
    holds_for : str
        Of whom all of them hold at once.
    """

    low: Floats
    high: Floats
    flip: Floats | None
    level: float
    holds_for: str

    @property
    def told(self) -> float:
        """Share of people of whom the interval says anything at all."""
        return float(np.mean((self.low > 0) | (self.high < 1)))


def gaussian_arbitrariness(
    weights: ArrayLike,
    X: ArrayLike,
    noise_std: float,
    *,
    level: float = 0.95,
    people: int | None = 1,
) -> Arbitrariness:
    r"""Disagreement and flips after Gaussian output perturbation, from the released weights.

    The distance :math:`Z = w\cdot x/(\sigma\lVert x\rVert)` is normal around the true t with
    variance 1, so that with :math:`h(a) = 4\,\Phi(a)\,\Phi(-a)`

    .. math:: h\bigl(|Z| + z_{1-\beta}\bigr) \le \mu \le
        h\bigl((|Z| - z_{1-\alpha/2})_+\bigr),

    each end with its own probability, here half of what the level leaves. (With
    :math:`z_{1-\alpha}` the upper end would fail too often at t = 0.) The estimate of a flip is
    :math:`\Phi(-\kappa|Z|/\sqrt{1+\kappa})`, with :math:`\kappa = \tau^2/(\tau^2+\sigma^2)` and
    :math:`\tau^2` what the size of the weights exceeds the noise by. Without that shrinking
    (:math:`\kappa = 1`) the most arbitrary decisions would be called safer than they are.

    Parameters
    ----------
    weights : array of shape (d,)
        As released.
    X : array of shape (n, d)
    noise_std : float > 0
        Of each weight, a public number.
    level : float in (0, 1)
    people : int or None
        Of how many, fixed beforehand, all intervals hold together. None: of everybody at once,
        also of people chosen after the release.

    Guarantees
    ----------
    Post-processing of the released weights. For any records, intervals hold with probability
    ``level`` over the noise of the release. The estimate of a flip promises nothing.
    """
    _checks.positive(noise_std=noise_std)
    w = _vector(weights)
    far = np.abs(_distances(w, X)) / noise_std
    spare = 1 - _level(level)
    if people is None:
        reach_low = reach_high = float(chi.ppf(1 - spare, len(w)))
    else:
        _checks.whole(people=people)
        tail = spare / (2 * people)  # half for either end
        reach_low, reach_high = float(ndtri(1 - tail)), float(ndtri(1 - tail / 2))
    zero = _lengths(X) == 0
    spread = max(0.0, float(w @ w) / len(w) - noise_std**2)
    kappa = spread / (spread + noise_std**2)
    return Arbitrariness(
        np.where(zero, 0.0, _spread_of(far + reach_low)),
        np.where(zero, 0.0, _spread_of(np.maximum(far - reach_high, 0.0))),
        np.where(zero, 0.0, ndtr(-kappa * far / np.sqrt(1 + kappa))),
        level,
        "everybody" if people is None else f"{people} people named beforehand",
    )


def objective_certificate(
    weights: ArrayLike,
    X: ArrayLike,
    *,
    penalty: float,
    noise_scale: float,
    residual: float = 0.0,
    level: float = 0.95,
) -> Arbitrariness:
    r"""Bound on the disagreement after objective perturbation, from the released weights.

    The gradient of the objective without noise is strongly monotone with the penalty
    :math:`\lambda`, and at the released weights it is minus the noise b, whose law is public.
    Two runs therefore differ by at most :math:`\lVert b - b'\rVert/\lambda`. With
    :math:`M = |w\cdot x|/\lVert x\rVert` and r the quantile of :math:`\lVert b\rVert` at the
    level, another run flips a decision with probability at most
    :math:`U = P(\lVert b' - b_r\rVert \ge \lambda M)`, where :math:`\lVert b_r\rVert = r`
    (Anderson 1955), so that :math:`\mu \le 4U(1-U)` where U is below one half.

    Parameters
    ----------
    weights : array of shape (d,)
        As released, intercept included.
    X : array of shape (n, d)
        Rows as they were trained on: clipped, with a 1 for the intercept.
    penalty : float > 0
        The whole coefficient :math:`\lambda` of the penalty.
    noise_scale : float > 0
        Scale s of the norm of the noise, :math:`\lVert b\rVert \sim \mathrm{Gamma}(d, s)`.
    residual : float
        Norm of the gradient at which the solver stopped.
    level : float in (0, 1)

    Guarantees
    ----------
    Post-processing of the released weights. With probability ``level`` over the noise of the
    release, for any records, all bounds hold at once, of people chosen later, too. It is no
    statement about the weights that were seen, and there is no useful lower bound.
    """
    _checks.positive(penalty=penalty, noise_scale=noise_scale)
    w = _vector(weights)
    radius = float(gamma.ppf(_level(level), len(w), scale=noise_scale))
    far = np.maximum(penalty * np.abs(_distances(w, X)) - 2 * residual, 0.0)
    flips = _beyond(far, radius, len(w), noise_scale)
    flips = np.where(_lengths(X) == 0, 0.0, flips)
    high = np.where(flips < 0.5, 4 * flips * (1 - flips), 1.0)
    return Arbitrariness(np.zeros_like(high), high, None, level, "everybody")


def _beyond(distances: Floats, radius: float, dimension: int, scale: float) -> Floats:
    r"""Probability that noise is so far from a point at a radius, rounded up.

    Of noise with norm g and first coordinate g u, :math:`\lVert b'-b_r\rVert^2 =
    g^2 + r^2 - 2gru`. Norms are averaged over equally likely steps of their law, each step
    taken at whichever of its ends makes the probability larger; of the last one, all of it.
    """
    shares = np.arange(1, _NODES) / _NODES
    ends = np.concatenate([[0.0], gamma.ppf(shares, dimension, scale=scale)])
    found, before = np.zeros(len(distances)), _outside(distances, radius, 0.0, dimension)
    for norm in ends[1:]:
        here = _outside(distances, radius, norm, dimension)
        # In between it is smaller: it falls as far as the norm nears the point, then rises.
        found += np.maximum(before, here)
        before = here
    return np.minimum((found + 1) / _NODES, 1.0)


def _outside(distances: Floats, radius: float, norm: float, dimension: int) -> Floats:
    """Probability that a point of a norm, in a direction by chance, is so far from another."""
    if norm == 0:
        return (distances <= radius).astype(np.float64)
    cosine = (norm**2 + radius**2 - distances**2) / (2 * norm * radius)
    if dimension == 1:
        return (cosine >= -1) * 0.5 + (cosine >= 1) * 0.5
    place = np.clip((cosine + 1) / 2, 0.0, 1.0)
    found: Floats = betainc((dimension - 1) / 2, (dimension - 1) / 2, place)
    return found


def _spread_of(a: Floats) -> Floats:
    """h(a), the disagreement at a distance."""
    found: Floats = 4 * ndtr(a) * ndtr(-a)
    return found


def _distances(weights: ArrayLike, X: ArrayLike) -> Floats:
    """Signed distances of rows from the plane, in units of a weight; 0 for rows of zeros."""
    w, rows = _vector(weights), np.asarray(X, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != len(w):
        raise DataError(
            "X",
            f"rows of {len(w)} numbers, one for each weight",
            f"the shape {rows.shape}",
            "Append a 1 to each row if there is an intercept.",
        )
    lengths = _lengths(rows)
    return np.divide(rows @ w, lengths, out=np.zeros(len(rows)), where=lengths > 0)


def _lengths(X: ArrayLike) -> Floats:
    """Euclidean norms of rows."""
    found: Floats = np.linalg.norm(np.asarray(X, dtype=np.float64), axis=1)
    return found


def _vector(weights: ArrayLike) -> Floats:
    """Weights of one model of two classes."""
    found = np.asarray(weights, dtype=np.float64)
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        raise DataError(
            "weights",
            "one finite number for each feature, of a model of two classes",
            f"the shape {found.shape}",
            "Give coefficients and intercept as one vector.",
        )
    return found


def _level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"Expected level between 0 and 1, got level={level!r}.")
    return level
