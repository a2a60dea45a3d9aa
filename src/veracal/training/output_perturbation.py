"""Output perturbation: logistic regression released with noise on its weights."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from veracal import _checks
from veracal._types import Floats, Ints
from veracal.accounting import Budget, Event, Gaussian, Pure, Relation, Unit, noise_for
from veracal.mechanisms import rounded_gaussian, rounded_spherical
from veracal.training.newton import MAX_RESIDUAL, TOL, minimize
from veracal.training.perturbation import (
    ClippedRows,
    PerturbedClassifier,
    divide_epsilon,
    norm_bound,
)


def spherical_gamma(
    d: int, scale: float, *, rng: np.random.Generator, size: int | None = None
) -> Floats:
    r"""Vectors of density proportional to :math:`e^{-\lVert b \rVert / s}`.

    In polar coordinates :math:`db = r^{d-1} dr\, du`, so that the length has density
    proportional to :math:`r^{d-1} e^{-r/s}`, which is Gamma of shape d and scale s, and the
    direction is uniform on the sphere and independent of it (Chaudhuri, Monteleoni and
    Sarwate 2011, Section 4, https://www.jmlr.org/papers/v12/chaudhuri11a.html). A normal
    vector divided by its length is such a direction.

    Returns
    -------
    array of shape (size, d), or (d,) without a size

    Guarantees
    ----------
    The log density at two points differs by at most their distance divided by s: added to
    a vector of L2 sensitivity D, it is (D / s)-differentially private.
    """
    _checks.whole(d=d)
    _checks.positive(scale=scale)
    count = 1 if size is None else size
    directions = rng.standard_normal((count, d))
    lengths = np.linalg.norm(directions, axis=1, keepdims=True)
    directions[lengths[:, 0] == 0, 0] = 1.0  # a draw of zeros needs a direction, too
    lengths[lengths == 0] = 1.0
    vectors: Floats = directions / lengths * rng.gamma(d, scale, (count, 1))
    return vectors[0] if size is None else vectors


_UP = 1 + 1e-12
_GRID_BITS = 34  # the grid step is this many bits below the sensitivity
_MAX_WEIGHTS = 2**28  # of one binary model, up to which rounding adds a millionth
_ROUNDING = 2.0**-20  # relative increase of the sensitivity by rounding the weights


def sensitivity(C: float, R: float, relation: Relation) -> float:
    r"""L2 sensitivity of the minimizer to one row.

    .. math::

        \Delta_2 = (RC + 2\gamma C)(1 + 2^{-20}),
        \text{ or, if a record is replaced, } (2RC + 2\gamma C)(1 + 2^{-20})

    where C is the inverse of the penalty, and R bounds the norm of a row, the appended one
    included.

    Guarantees
    ----------
    The *sum* of losses with the penalty :math:`\frac1{2C} \lVert w \rVert^2` on all
    coordinates is 1/C-strongly convex. At the minimizer for one data set, the gradient
    for its neighbor is that of the rows in which they differ, of norm at most R or 2R; by
    strong convexity the minimizers are within C times that (Chaudhuri, Monteleoni and Sarwate
    2011, Lemma 7). A gradient of length :math:`\gamma = 10^{-5} R` at most, which is verified
    before anything is released, means that each of the two is within :math:`\gamma C` of its
    minimizer. None of this holds for an unpenalized intercept.

    The last factor covers rounding: a vector of d weights moves by at most
    :math:`\sqrt d\,h/2` when rounded to a grid of step h, which increases the distance between
    neighbors by at most :math:`\sqrt d\,h`, and :func:`grid_step` has
    :math:`h \le 2^{-34} (RC + 2\gamma C)` for :math:`d \le 2^{28}`.

    Examples
    --------
    >>> round(sensitivity(2.0, 1.0, "replace-one"), 3)
    4.0
    """
    distance = R if relation == "add-remove" else 2 * R
    return (distance + 2 * MAX_RESIDUAL * R) * C * (1 + _ROUNDING) * _UP


def grid_step(sensitivity: float) -> float:
    """Step of the public grid of the weights: a power of two, 2^-34 of the sensitivity.

    Examples
    --------
    >>> grid_step(1.5) == 2.0**-34
    True
    """
    # Relative to the power of two below the sensitivity without the increase by rounding.
    return math.ldexp(1.0, math.frexp(sensitivity / (1 + _ROUNDING) / _UP)[1] - 1 - _GRID_BITS)


@dataclass(frozen=True)
class OutputNoise:
    """The distribution of the noise on the weights of each binary model.

    A real vector, Gaussian or with Gamma-distributed length, rounded to the grid of the
    weights. Rounding moves it by less than :math:`2^{-21}` of the sensitivity in any direction.

    The attributes are those of a fitted :class:`OutputPerturbation`.
    """

    sensitivity: float
    noise_scale: float | None
    noise_std: float | None
    epsilon_per_class: float | None

    @property
    def step(self) -> float:
        """Step of the grid of the weights."""
        return grid_step(self.sensitivity)

    def release(self, exact: Floats, *, rng: np.random.Generator) -> Floats:
        """Round weights of shape (models, d) to the grid, and add exact noise to them.

        Guarantees
        ----------
        Integers are added to integers; the sum is converted to the nearest float afterwards.
        """
        d, step = exact.shape[1], self.step
        if d > _MAX_WEIGHTS:
            raise ValueError(f"Expected at most {_MAX_WEIGHTS} weights, got {d}.")
        released = np.empty_like(exact)
        for model, row in enumerate(exact.tolist()):
            if self.noise_scale is not None:
                units = rounded_spherical(self.noise_scale / step, d, rng=rng)
            else:
                assert self.noise_std is not None
                units = rounded_gaussian(self.noise_std / step, d, rng=rng)
            released[model] = [
                (round(w / step) + k) * step for w, k in zip(row, units, strict=True)
            ]
        return released

    def simulate(self, exact: Floats, count: int, *, rng: np.random.Generator) -> Floats:
        """Draws of :meth:`release`, of shape (count, models, d), in floats: *not private*."""
        models, d = exact.shape
        if self.noise_scale is not None:
            noise = spherical_gamma(d, self.noise_scale, rng=rng, size=count * models)
        else:
            assert self.noise_std is not None
            noise = rng.normal(0.0, self.noise_std, (count * models, d))
        units = np.rint(noise.reshape(count, models, d) / self.step)
        weights: Floats = (units + np.rint(exact / self.step)) * self.step
        return weights


@lru_cache(maxsize=256)
def gaussian_noise_multiplier(budget: Budget) -> float:
    """Smallest Gaussian noise multiplier that keeps a budget with a delta."""
    return noise_for(
        budget, lambda noise: Gaussian(noise, 1.0, budget.relation), tolerance=1e-6
    )


@dataclass(eq=False, repr=False)
class OutputPerturbation(PerturbedClassifier):
    r"""Logistic regression whose weights are released with noise.

    .. math::

        \operatorname*{argmin}_w \sum_i \ln(1 + e^{-s_i w \cdot x_i})
        + \frac1{2C} \lVert w \rVert^2 \; + \; b

    Rows longer than ``norm`` are clipped to it, a one is appended for the intercept, and all
    coordinates are penalized, so that one row moves the minimizer by at most
    :func:`sensitivity`. With ``delta=0`` the noise has density proportional to
    :math:`e^{-\varepsilon\lVert b \rVert / \Delta_2}` (Chaudhuri, Monteleoni and Sarwate 2011,
    Algorithm 1); otherwise it is Gaussian, with the standard deviation that epsilon and delta
    require (Balle and Wang 2018). The minimizer is rounded to a public grid, and the noise to
    the same grid. More than two classes are learned one against the rest: at epsilon / K each,
    or with Gaussian noise as one vector whose sensitivity is :math:`\sqrt K` times that of one
    model.

    Parameters
    ----------
    epsilon : float > 0
        Cost of one unit: one record, or all rows of ``unit``.
    delta : float in [0, 1)
    C : float > 0
        Inverse of the penalty, as in scikit-learn. The noise is proportional to it.
    norm, fit_intercept, classes, size, relation, unit, random_state
        As for :class:`ObjectivePerturbation`.

    Attributes
    ----------
    coef_, intercept_ : arrays
    sensitivity_ : float
        L2 sensitivity of the weights of one binary model to one row.
    noise_scale_ : float or None
        Scale of the Gamma distribution of the noise's length (shape d, intercept included), if
        the cost is pure.
    noise_std_ : float or None
        Standard deviation of the noise on each weight, if Gaussian.
    epsilon_per_class_ : float or None
        Epsilon of one row in one binary model, if the cost is pure.
    lambda_total_ : float
        The penalty 1 / C.
    norm_, norm_bound_ : float
        Bounds on the norm of rows, without and with the appended one.
    grid_step_ : float
        Step of the public grid on which the weights lie.

    Guarantees
    ----------
    A fit is (epsilon, delta)-differentially private for one unit under ``relation``. Weights
    are integers of a public grid before noise is added, and the noise is the nearest integer to
    a real number, sampled exactly (:mod:`veracal.mechanisms.rounded_noise`), so that the
    low-order bits of a release carry no information. The event of Gaussian noise states noise
    divided by sensitivity, which is known before the norm is.

    Examples
    --------
    >>> OutputPerturbation(0.5, relation="replace-one").event()
    Pure(epsilon=0.5, relation='replace-one')
    """

    delta: float = 0.0

    def _check_settings(self) -> None:
        _checks.fraction(delta=self.delta)
        if self.delta >= 1:
            raise ValueError(f"Expected delta below 1, got delta={self.delta!r}.")
        super()._check_settings()

    def _cost(self, size: int | None) -> Event | None:
        if self.delta == 0:
            return Pure(self._epsilon_per_row(), self.relation)
        return Gaussian(self._multiplier(), 1.0, self.relation)

    def _multiplier(self) -> float:
        """Noise divided by the sensitivity of one row."""
        budget = Budget(self.epsilon, self.delta, self.relation, self.unit or Unit())
        return gaussian_noise_multiplier(budget)

    def _penalty(self, norm: float) -> float:
        return 1 / self.C

    def noise(self, norm: float, k: int = 2) -> OutputNoise:
        """Distribution of the noise of each binary model, for rows of a norm and k classes."""
        models = k if k > 2 else 1
        row_sensitivity = sensitivity(
            self.C, norm_bound(norm, fit_intercept=self.fit_intercept), self.relation
        )
        if self.delta == 0:
            epsilon = divide_epsilon(self._epsilon_per_row(), models)
            return OutputNoise(row_sensitivity, row_sensitivity / epsilon * _UP, None, epsilon)
        std = self._multiplier() * math.sqrt(models) * row_sensitivity * _UP
        return OutputNoise(row_sensitivity, None, std, None)

    def exact(self, rows: Floats | ClippedRows, signs: Ints, norm: float) -> Floats:
        """Weights of each binary model without noise: *internal*, not to be released."""
        R = norm_bound(norm, fit_intercept=self.fit_intercept)
        return minimize(
            rows,
            signs,
            np.zeros((len(signs), rows.shape[1])),
            penalty=1 / self.C,
            tol=TOL * min(1.0, R),
            limit=MAX_RESIDUAL * R,
        )

    def _weights(
        self, rows: Floats | ClippedRows, signs: Ints, rng: np.random.Generator
    ) -> Floats:
        k = len(signs)
        noise = self.noise(self.norm_, k)
        self.lambda_total_, self.sensitivity_ = 1 / self.C, noise.sensitivity
        self.noise_scale_, self.noise_std_ = noise.noise_scale, noise.noise_std
        self.epsilon_per_class_, self.grid_step_ = noise.epsilon_per_class, noise.step
        return noise.release(self.exact(rows, signs, self.norm_), rng=rng)
