"""Means of the weights of many steps, which cost nothing: all of them are released."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats


@dataclass(frozen=True)
class Moving:
    r"""A moving average of the weights: :math:`m \leftarrow \beta m + (1 - \beta) w`.

    It is divided by the sum of its factors, :math:`1 - \beta^{t}`, so that early steps of a
    short run do not pull it to zero (De et al. 2022, https://arxiv.org/abs/2204.13650, use such
    averages for DP-SGD).

    Attributes
    ----------
    decay : float in (0, 1)
        The factor :math:`\beta`.
    """

    decay: float = 0.99

    def __post_init__(self) -> None:
        _checks.positive(decay=self.decay)
        if not self.decay < 1:
            raise ValueError(f"Expected decay below 1, got decay={self.decay!r}.")


Average = float | Moving


def check_average(average: object) -> None:
    """Refuse what says not how weights are averaged."""
    if not isinstance(average, Moving):
        _checks.fraction(average=average)  # type: ignore[arg-type]


class Averaged:
    """The mean so far.

    Parameters
    ----------
    average : float in [0, 1] or Moving
        Share of the last steps that are averaged with equal weight, or a moving average.
    steps : int
        How many there will be.
    """

    def __init__(self, average: Average, steps: int) -> None:
        self._moving = average if isinstance(average, Moving) else None
        share = 0.0 if isinstance(average, Moving) else float(average)
        self._from = 0 if self._moving else steps - int(np.ceil(share * steps))
        self._sum: Floats | None = None
        self._weight = 0.0

    def add(self, number: int, weights: Floats) -> None:
        """Take in the weights after a step, counted from 0."""
        if number < self._from:
            return
        added: Any = weights.astype(np.float64)
        if self._moving is None:
            self._sum = self._added(added)
            self._weight += 1
            return
        decay = self._moving.decay
        added *= 1 - decay
        if self._sum is not None:
            self._sum *= decay
        self._sum = self._added(added)
        self._weight = decay * self._weight + 1 - decay

    def _added(self, added: Floats) -> Floats:
        """The sum with one more, in the place of one of the two: there may be very many."""
        if self._sum is not None:
            added += self._sum
        return added

    def mean(self, last: Floats) -> Floats:
        """The mean, or the last weights if nothing was averaged."""
        if self._sum is None:
            return last
        mean: Floats = (self._sum / self._weight).astype(last.dtype)
        return mean

    def kept(self) -> dict[str, Array]:
        """What it takes to go on later."""
        if self._sum is None:
            return {}
        return {"sum": self._sum, "weight": np.array([self._weight])}

    def go_on(self, kept: Mapping[str, Array]) -> None:
        """Go on from what was kept."""
        if kept:
            self._sum, self._weight = np.array(kept["sum"]), float(kept["weight"][0])
