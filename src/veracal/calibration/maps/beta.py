"""Maps between beta distributions of probabilities."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit

from veracal._types import Floats
from veracal.calibration.maps.base import (
    LEAST,
    Map,
    check_width,
    from_probabilities,
    parameters,
)
from veracal.calibration.maps.isotonic import shared
from veracal.data.scores import Scores


@dataclass(frozen=True, eq=False)
class Beta(Map):
    r"""Log-odds :math:`a \log p - b \log(1 - p) + c` for the probability p of a class.

    Kull, Silva Filho & Flach 2017 (https://proceedings.mlr.press/v54/kull17a.html), Section 4:
    what turns p into a calibrated probability if p follows one beta distribution on records of
    the class and another on the rest. It gives probabilities, whatever it is given. For more
    than two classes each is mapped against the rest, and rows are scaled to sum to one; of two
    classes only the second is mapped, and the first gets the rest.

    Both p and 1 - p are read as at least :math:`2^{-52}`: from log-odds of -inf there would be
    no way back. The prediction may change.

    Parameters
    ----------
    a, b : arrays of shape (1,) for two classes, (k,) for more
        Not negative, so that the map does not fall.
    c : array of the same shape

    Examples
    --------
    >>> map_ = Beta([1.0], [1.0], [0.0])
    >>> map_.transform(Scores.from_probabilities([[0.25, 0.75]])).values
    array([[0.25, 0.75]])
    """

    a: Floats
    b: Floats
    c: Floats

    kind: ClassVar[str] = "beta"

    def __post_init__(self) -> None:
        a = parameters(self.a, 1, name="a", low=0.0)
        b = parameters(self.b, 1, name="b", low=0.0)
        c = parameters(self.c, 1, name="c")
        if not len(a) == len(b) == len(c) or len(a) == 2:
            raise ValueError(
                "Expected a, b and c of one length, 1 for two classes and k for k >= 3, got "
                f"{len(a)}, {len(b)} and {len(c)}."
            )
        for name, value in {"a": a, "b": b, "c": c}.items():
            object.__setattr__(self, name, value)

    def _mapped(self, scores: Scores) -> Scores:
        """Probabilities."""
        check_width(scores, max(2, len(self.a)), self.kind)
        log_p, log_rest = log_parts(scores)
        log_odds = self.a * log_p - self.b * log_rest + self.c
        return from_probabilities(scores, shared(expit(log_odds)))


def log_parts(scores: Scores) -> tuple[Floats, Floats]:
    r"""Return :math:`\log p`, :math:`\log (1 - p)` of shape (n, 1) for two classes or (n, k).

    Neither is below :math:`\log 2^{-52}`.
    """
    least = np.log(LEAST)
    log_p = np.maximum(scores.log_probabilities, least)
    if scores.n_classes == 2:  # the other class's is exact where 1 - p would be rounded
        return log_p[:, 1:], log_p[:, :1]
    rest = 1 - scores.probabilities.astype(np.float64)
    return log_p, np.log(np.maximum(rest, LEAST))
