"""What there is to draw of a reliability curve, whoever made it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Union

from veracal.calibration.curves import ReliabilityBin, ReliabilityCurve

if TYPE_CHECKING:
    from veracal.calibration.private import PrivateCurve

Curve = Union[ReliabilityCurve, "PrivateCurve"]


@dataclass(frozen=True)
class Drawable:
    """Bins of a curve, in one form for exact and for noisy numbers.

    Attributes
    ----------
    bins : tuple of ReliabilityBin
        In a noisy curve with a noisy number of records, 0 where the noise made it negative.
    of : 'top label' or 'second class'
    n : int
    ece : float or None
        None for a noisy curve, whose calibration error is measured better by itself.
    released : bool
        Whether the curve was made of noisy answers, and not of the records.
    """

    bins: tuple[ReliabilityBin, ...]
    of: Literal["top label", "second class"]
    n: int
    ece: float | None
    released: bool

    @property
    def counts(self) -> tuple[int, ...]:
        """Records in each bin."""
        return tuple(each.n for each in self.bins)


def drawable(curve: Curve) -> Drawable:
    """What there is to draw of a curve."""
    if isinstance(curve, ReliabilityCurve):
        return Drawable(curve.bins, curve.of, curve.n, curve.ece, released=False)
    edges = curve.bins.edges.tolist()
    bins = tuple(
        ReliabilityBin(
            edges[b],
            edges[b + 1],
            count.n,
            curve.confidences[b],
            accuracy.value,
            accuracy.low,
            accuracy.high,
        )
        for b, (count, accuracy) in enumerate(zip(curve.counts, curve.accuracies, strict=True))
    )
    return Drawable(bins, "top label", sum(each.n for each in bins), None, released=True)
