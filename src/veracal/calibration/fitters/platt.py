"""The affine map of logits under which labels are likeliest."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

from veracal import _checks
from veracal._types import Floats, Ints
from veracal.calibration.fitters.base import MapFitter
from veracal.calibration.maps import Identity, Map, Platt
from veracal.calibration.maps.base import LARGEST, MOST_NUMBERS
from veracal.calibration.maps.platt import Form, readable_logits
from veracal.calibration.metrics.proper import nll
from veracal.data.scores import Scores
from veracal.errors import DataError

_OPTIONS = {"maxiter": 2_000, "maxfun": 10_000, "ftol": 1e-14, "gtol": 1e-9, "maxcor": 30}


class PlattScaling(MapFitter):
    r"""Platt scaling of the logits by maximum likelihood, **not private**.

    Minimizes over W and b the convex

    .. math::
        -\frac1n \sum_i \log \mathrm{softmax}(W z_i + b)_{y_i}
        + \frac{\lambda}{2} \lVert \theta - \theta_0 \rVert^2 ,

    where :math:`\theta` are W and b for logits centered and scaled to a mean absolute value
    of 1, and :math:`\theta_0` is the identity. The ridge is there to choose among the many
    (W, b) that give the same probabilities and to stay finite on records that a plane can
    separate; it is too small to be seen otherwise. Guo et al. 2017
    (https://arxiv.org/abs/1706.04599), Section 4.2, solved by L-BFGS. Labels are taken as
    they are: Platt's own smoothing of the targets, which scikit-learn uses for its 'sigmoid',
    is not applied.

    Parameters
    ----------
    form : 'scalar', 'vector' or 'matrix'
        Whether W is a number, a diagonal or a matrix: 1, k or k² weights beside k of b. A
        matrix for many classes needs many records.
    ridge : float, default=1e-6
        The number :math:`\lambda`.

    Guarantees
    ----------
    The negative log-likelihood never rises on the records of the fit. A vector or a matrix
    fitted on logits refuses probabilities, and the other way round.

    Examples
    --------
    >>> scores = Scores.from_logits([-1.0, -1.0, 1.0, 1.0], [0, 0, 0, 1])
    >>> fitter = PlattScaling().fit(scores)
    >>> fitter.transform(scores).probabilities[-1].round(2)
    array([0.5, 0.5])
    """

    def __init__(self, form: Form = "vector", *, ridge: float = 1e-6) -> None:
        self.form = form
        self.ridge = ridge

    def _fitted(self, scores: Scores) -> Map:
        _checks.one_of(("scalar", "vector", "matrix"), form=self.form)
        _checks.positive(ridge=self.ridge)
        k = scores.n_classes
        if self.form == "matrix" and k * k > MOST_NUMBERS:
            raise DataError(
                scores.name,
                f"at most {int(MOST_NUMBERS**0.5):,} classes for a matrix",
                f"{k:,}",
                "Use form='vector', or a temperature.",
            )
        z = readable_logits(scores)
        center = z.mean(axis=0)
        z -= center
        scale = float(np.abs(z).mean()) or 1.0
        z /= scale
        problem = _Problem(z, scores.known_labels, self.form, self.ridge, scale, center)
        return problem.solution(None if self.form == "scalar" else scores.kind)

    def _loss(self, mapped: Scores, given: Scores) -> float:
        return nll(mapped)


@dataclass(frozen=True)
class _Problem:
    """Multinomial regression on centered and scaled logits, from the identity on."""

    z: Floats
    labels: Ints
    form: Form
    ridge: float
    scale: float
    center: Floats

    @cached_property
    def start(self) -> Floats:
        """The identity, in the units of the problem."""
        k = len(self.center)
        diagonal = np.ones(1 if self.form == "scalar" else k)
        weights = np.diag(diagonal).ravel() if self.form == "matrix" else diagonal
        return np.concatenate([self.scale * weights, self.center])

    def solution(self, reads: str | None) -> Map:
        """The best map, in the units of the logits; the identity if none is finite."""
        with np.errstate(all="ignore"):  # absurd logits: the guard of the fit judges the result
            found = minimize(
                self.loss, self.start, jac=True, method="L-BFGS-B", options=_OPTIONS
            ).x
            weights, bias = self.parts(found)
            weights = weights / self.scale
            bias = bias - self.applied(weights, self.center[None])[0]
            parameters = np.concatenate([np.ravel(weights), bias])
        if not (np.abs(parameters) <= LARGEST).all():
            return Identity()
        return Platt(weights, bias, reads)  # type: ignore[arg-type]

    def loss(self, theta: Floats) -> tuple[float, Floats]:
        """Penalized mean negative log-likelihood, with its gradient."""
        weights, bias = self.parts(theta)
        n = len(self.labels)
        log_p = log_softmax(self.applied(weights, self.z) + bias, axis=1)
        value = -log_p[np.arange(n), self.labels].mean()
        residual = np.exp(log_p)
        residual[np.arange(n), self.labels] -= 1
        residual /= n
        away = theta - self.start
        gradient = np.concatenate([np.ravel(self.pulled(residual)), residual.sum(axis=0)])
        return (
            float(value + self.ridge / 2 * (away @ away)),
            gradient + self.ridge * away,
        )

    def parts(self, theta: Floats) -> tuple[Floats, Floats]:
        """Weights, in the shape of their form, and bias."""
        k = len(self.center)
        shape = {"scalar": (), "vector": (k,), "matrix": (k, k)}[self.form]
        return theta[:-k].reshape(shape), theta[-k:]

    def applied(self, weights: Floats, z: Floats) -> Floats:
        """Weights times rows of logits."""
        result: Floats = z @ weights.T if self.form == "matrix" else z * weights
        return result

    def pulled(self, residual: Floats) -> Floats:
        """Gradient in the weights."""
        if self.form == "matrix":
            result: Floats = residual.T @ self.z
        elif self.form == "vector":
            result = np.einsum("ij,ij->j", residual, self.z)
        else:
            result = np.einsum("ij,ij->", residual, self.z)
        return result
