"""What is told of many people at once: the distribution, whom to review."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veracal._types import Array, Floats, Ints
from veracal.errors import DataError


@dataclass(frozen=True)
class Distribution:
    """Of one measure over people.

    Attributes
    ----------
    mean, deviation, minimum, median, maximum, p90, p95 : float
        Over people; the deviation is that of people, not the error of the mean.
    """

    mean: float
    deviation: float
    minimum: float
    median: float
    p90: float
    p95: float
    maximum: float

    @classmethod
    def of(cls, values: Floats) -> "Distribution":
        """Summarize one value for each person."""
        if not len(values):
            raise DataError("people", "at least one person", "nobody", "Name another group.")
        median, p90, p95 = np.quantile(values, [0.5, 0.9, 0.95]).tolist()
        return cls(
            float(values.mean()),
            float(values.std(ddof=1)) if len(values) > 1 else 0.0,
            float(values.min()),
            median,
            p90,
            p95,
            float(values.max()),
        )


def to_review(low: Floats, threshold: float) -> Ints:
    """People whose disagreement is above a threshold, whatever the runs left open.

    Parameters
    ----------
    low : array of shape (people,)
        Lower ends of the intervals of disagreement.
    threshold : float in [0, 1]

    Returns
    -------
    array of ints
        Their places, the least certain first.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"Expected threshold between 0 and 1, got threshold={threshold!r}.")
    places = np.flatnonzero(low > threshold)
    found: Ints = places[np.argsort(-low[places], kind="stable")]
    return found


def abstention(
    values: Floats, correct: Array | None = None, shares: Sequence[float] = (0, 0.1, 0.2, 0.5)
) -> list[dict[str, float]]:
    """What is left if those with the largest disagreement get no automatic decision.

    Parameters
    ----------
    values : array of shape (people,)
        Disagreement.
    correct : array of bool, optional
        Whether the deployed decision is right.
    shares : sequence of float
        Of people without a decision.

    Returns
    -------
    list of mapping
        "abstained", "disagreement" and, with ``correct``, "accuracy" of those who are left.
    """
    order, rows = np.argsort(values, kind="stable"), []
    for share in shares:
        if not 0 <= share < 1:
            raise ValueError(f"Expected shares between 0 and 1, got {share!r}.")
        kept = order[: max(1, len(values) - round(share * len(values)))]
        row = {"abstained": float(share), "disagreement": float(values[kept].mean())}
        if correct is not None:
            row["accuracy"] = float(np.asarray(correct)[kept].mean())
        rows.append(row)
    return rows
