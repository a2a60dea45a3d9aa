"""The beta map under which labels are likeliest."""

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from veracal import _checks
from veracal._types import Array, Floats
from veracal.calibration.fitters.base import MapFitter
from veracal.calibration.maps import Beta
from veracal.calibration.maps.beta import log_parts
from veracal.calibration.metrics.proper import nll
from veracal.data.scores import Scores
from veracal.errors import DataError

_MOST_CLASSES = 1_000  # each is a fit of its own
_START = np.array([1.0, 1.0, 0.0])  # the identity
_BOUNDS = [(0.0, 1e6), (0.0, 1e6), (-1e6, 1e6)]
_OPTIONS = {"maxiter": 2_000, "maxfun": 10_000, "ftol": 1e-15, "gtol": 1e-10}


class BetaCalibration(MapFitter):
    r"""Beta calibration by maximum likelihood, **not private**.

    For each class against the rest, minimizes over :math:`a, b \ge 0` and c the mean log loss
    of log-odds :math:`a \log p - b \log(1-p) + c` (Kull, Silva Filho & Flach 2017,
    https://proceedings.mlr.press/v54/kull17a.html), which is convex, by L-BFGS with bounds.
    The bounds are kept by the solver, where the paper fits again without a coefficient that
    came out negative; both arrive at the same minimum. A ridge towards the identity, too small
    to be seen otherwise, keeps the numbers finite on records that a threshold can separate.

    Of two classes the second is fitted; of more, each one, up to 1,000.

    Parameters
    ----------
    ridge : float, default=1e-6

    Guarantees
    ----------
    The negative log-likelihood never rises on the records of the fit. For three classes or
    more, scaling rows to sum to one is not proved to keep it; where it would not, the identity
    is kept.

    Examples
    --------
    >>> scores = Scores.from_probabilities([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 0])
    >>> BetaCalibration().fit_transform(scores).values[0].round(4)
    array([0.25, 0.75])
    """

    def __init__(self, *, ridge: float = 1e-6) -> None:
        self.ridge = ridge

    def _fitted(self, scores: Scores) -> Beta:
        _checks.positive(ridge=self.ridge)
        if scores.n_classes > _MOST_CLASSES:
            raise DataError(
                scores.name,
                f"at most {_MOST_CLASSES:,} classes for a beta map",
                f"{scores.n_classes:,}",
                "Use a temperature.",
            )
        log_p, log_rest = log_parts(scores)
        first = 1 if scores.n_classes == 2 else 0
        fits = [
            _fit_one(log_p[:, j], log_rest[:, j], scores.known_labels == first + j, self.ridge)
            for j in range(log_p.shape[1])
        ]
        return Beta(*np.array(fits).T)

    def _loss(self, mapped: Scores, given: Scores) -> float:
        return nll(mapped)


def _fit_one(log_p: Floats, log_rest: Floats, hits: Array, ridge: float) -> Floats:
    """Parameters a, b and c of one class."""
    features = np.stack([log_p, -log_rest, np.ones_like(log_p)], axis=1)
    sign = np.where(hits, 1.0, -1.0)

    def loss(theta: Floats) -> tuple[float, Floats]:
        margins = sign * (features @ theta)
        away = theta - _START
        gradient = -((sign * expit(-margins)) @ features) / len(sign)
        value = -log_expit(margins).mean() + ridge / 2 * (away @ away)
        return float(value), gradient + ridge * away

    found: Floats = minimize(
        loss, _START, jac=True, method="L-BFGS-B", bounds=_BOUNDS, options=_OPTIONS
    ).x
    return found
