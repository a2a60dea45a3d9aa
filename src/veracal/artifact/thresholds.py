r"""Where a map of calibration puts the decision.

Before a map, two classes are told apart by whether the logit z of the second is above 0. After
it that is another number c, or the same, or no single one.
"""

import math

import numpy as np

from veracal._types import Floats
from veracal.calibration.maps import Map
from veracal.calibration.maps.base import Identity
from veracal.calibration.maps.beta import Beta
from veracal.calibration.maps.binned import Binned
from veracal.calibration.maps.doubt import Doubt
from veracal.calibration.maps.isotonic import Isotonic
from veracal.calibration.maps.platt import Platt
from veracal.calibration.maps.temperature import Temperature
from veracal.calibration.maps.two_temperatures import TwoTemperatures
from veracal.data import Scores
from veracal.errors import DataError

_FAR = 800.0  # logits beyond have probabilities that are 0 and 1, for all that float64 can say


def decision_threshold(map_: Map, classes: int) -> float:
    """The logit that decides between two classes after a map; 0 where no decision changes.

    Parameters
    ----------
    map_ : Map
        Of logits.
    classes : int

    Returns
    -------
    float
        Infinite where the map decides for one class, whatever the logit. More than two classes
        have no threshold, and 0 says that the largest logit stays the largest.

    Raises
    ------
    DataError
        If the map may change decisions in another way.

    Notes
    -----
    *Temperature*, *two temperatures* and *doubt* change no prediction, by their guarantee.
    *Top-label* maps keep it if every confidence of 1 / K or more becomes one above 1 / K. Of
    two classes, a *Platt* map compares :math:`az + b` with 0; *beta* maps and *one-vs-rest*
    curves do not fall, so that there is one place where they cross one half, which is found
    to the last bit.

    Examples
    --------
    >>> decision_threshold(Platt(2.0, [0.0, 1.0]), 2)
    -0.5
    """
    keeps = Identity | Temperature | TwoTemperatures | Doubt
    if isinstance(map_, keeps) or _keeps_top(map_, classes):
        return 0.0
    if isinstance(map_, Platt):
        if classes == 2:
            (start,), (end,) = (np.diff(_logits(map_, z)) for z in (0.0, 1.0))
            slope = float(end - start)
            return -float(start) / slope if slope else math.inf
        if map_.form == "scalar" and map_.weights > 0 and not np.ptp(map_.bias):
            return 0.0
    rises = isinstance(map_, Beta) or (isinstance(map_, Isotonic) and map_.form != "top-label")
    if classes == 2 and rises:
        return _crossing(map_)
    raise DataError(
        "arbitrariness",
        "a map that keeps decisions, or moves one threshold between two classes",
        f"a {map_.kind} map of {classes} classes, which may change them otherwise",
        "Ask for it without a map, or run 'veracal audit'.",
    )


def _logits(map_: Platt, logit: float) -> Floats:
    """What the map makes of a logit of the second of two classes."""
    given = np.array([0.0, logit])
    weights = np.asarray(map_.weights)
    found: Floats = (weights @ given if weights.ndim == 2 else weights * given) + map_.bias
    return found


def _keeps_top(map_: Map, classes: int) -> bool:
    """Whether a map of the confidence gives every predicted class more than an equal share."""
    share = 1 / classes
    if isinstance(map_, Binned):
        # Ties have a share exactly; no run gets there, and they may be in the bin before.
        first = int(map_.bins.of(np.array([np.nextafter(share, 1.0)]))[0])
        return bool((map_.accuracies[first:] > share).all())
    if isinstance(map_, Isotonic) and map_.form == "top-label":
        return bool(np.interp(share, map_.inputs[0], map_.outputs[0]) > share)
    return False


def _crossing(map_: Map) -> float:
    """The largest logit at which a map that does not fall decides for the first class."""

    def second(logit: float) -> bool:
        scores = map_.transform(Scores.from_logits(np.array([[0.0, logit]])))
        return bool(scores.predictions[0] == 1)

    low, high = -_FAR, _FAR
    if second(low) or not second(high):
        return math.inf  # one class, for everybody
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if second(middle) else (middle, high)
    return low
