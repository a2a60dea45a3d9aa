"""Calibration of more records than fit into memory, in one pass."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from veracal._types import Floats
from veracal.calibration.bins import Bins
from veracal.calibration.curves import Interval, ReliabilityCurve, curve_of
from veracal.calibration.metrics.binned import largest_gap
from veracal.calibration.metrics.proper import (
    brier_blocks,
    nll_blocks,
    top_label_brier_blocks,
    total,
)
from veracal.calibration.metrics.top_label import top_label_blocks
from veracal.calibration.metrics.totals import BinTotals, two_sum
from veracal.data.scores import Scores
from veracal.errors import DataError


@dataclass(frozen=True, eq=False)
class StreamTotals:
    """What has been counted so far; totals of blocks add up with ``+``.

    Make them with :func:`stream_totals` or :meth:`of`. Their size depends on the number of
    bins alone, and figures equal those of the whole to 1e-12, in whatever blocks it came.

    Attributes
    ----------
    kind : 'logits' or 'probabilities'
    classes : tuple of str or int
    totals : BinTotals
        By bin of the top label.
    sums, rests : arrays of shape (3,)
        Sums of the Brier score, the top-label Brier score and the negative log-likelihood,
        and what rounding took from them.
    """

    kind: str
    classes: tuple[str | int, ...]
    totals: BinTotals
    sums: Floats
    rests: Floats

    @classmethod
    def of(cls, scores: Scores, bins: int = 15) -> "StreamTotals":
        """Totals of one block of labeled scores, which may be empty."""
        totals = BinTotals.of(top_label_blocks(scores), Bins(bins))
        each = brier_blocks(scores), top_label_brier_blocks(scores), nll_blocks(scores)
        sums = np.array([total(blocks) for blocks in each])
        return cls(scores.kind, scores.classes, totals, sums, np.zeros(len(sums)))

    def __add__(self, other: "StreamTotals") -> "StreamTotals":
        if (self.kind, self.classes) != (other.kind, other.classes):
            raise DataError(
                "stream",
                f"{self.kind} for {len(self.classes)} classes in every block",
                f"{other.kind} for {len(other.classes)}, or other classes",
                "Measure them apart.",
            )
        with np.errstate(invalid="ignore", over="ignore"):  # infinite sums lose nothing
            sums, lost = two_sum(self.sums, other.sums)
        rests = self.rests + other.rests + np.where(np.isfinite(lost), lost, 0)
        return StreamTotals(self.kind, self.classes, self.totals + other.totals, sums, rests)

    @property
    def n(self) -> int:
        """Records so far."""
        return self.totals.n

    @property
    def accuracy(self) -> float:
        """Share of right predictions."""
        return int(self._held.happened.sum()) / self.n

    @property
    def ece(self) -> float:
        """Top-label expected calibration error."""
        return float(np.abs(self._held.gaps).sum() / self.n)

    @property
    def mce(self) -> float:
        """Top-label maximum calibration error."""
        return largest_gap(self._held)

    @property
    def over_confidence(self) -> float:
        """Part of the ECE from bins whose confidence exceeds their accuracy."""
        return float(np.maximum(self._held.gaps, 0).sum() / self.n)

    @property
    def under_confidence(self) -> float:
        """Part of the ECE from bins whose accuracy exceeds their confidence."""
        return float(np.maximum(-self._held.gaps, 0).sum() / self.n)

    @property
    def confidence_gap(self) -> float:
        """Mean confidence minus accuracy."""
        return float(self._held.gaps.sum() / self.n)

    @property
    def brier(self) -> float:
        """Multiclass Brier score."""
        return self._mean(0)

    @property
    def top_label_brier(self) -> float:
        """Top-label Brier score."""
        return self._mean(1)

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood; infinite where a label had probability 0."""
        return self._mean(2)

    def curve(self, *, level: float = 0.95, interval: Interval = "wilson") -> ReliabilityCurve:
        """Top-label reliability curve; see :func:`~veracal.calibration.curves.curve`."""
        return curve_of(self._held, "top label", level=level, interval=interval)

    @property
    def _held(self) -> BinTotals:
        """Totals of at least one record."""
        if not self.n:
            raise DataError(
                "stream", "at least one record", "none", "A mean over nobody has no value."
            )
        return self.totals

    def _mean(self, i: int) -> float:
        """Mean of a sum over the records."""
        return max(0.0, float(self.sums[i] + self.rests[i]) / self._held.n)  # not -0


def stream_totals(blocks: Iterable[Scores], bins: int = 15) -> StreamTotals:
    """Add up labeled scores that come in blocks, each looked at once and forgotten.

    Parameters
    ----------
    blocks : iterable of Scores
        Such as :func:`~veracal.data.scan_scores` gives, of one kind and one set of classes.
    bins : int
        Number of bins, those of :func:`~veracal.calibration.metrics.ece`.

    Examples
    --------
    >>> halves = [Scores.from_probabilities([[0.2, 0.8]], [label]) for label in (0, 1)]
    >>> round(stream_totals(halves).ece, 3)
    0.3
    """
    found = None
    for block in blocks:
        part = StreamTotals.of(block, bins)
        found = part if found is None else found + part
    if found is None:
        raise DataError("stream", "at least one block", "none", "Name a file with records.")
    return found
