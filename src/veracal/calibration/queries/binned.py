"""Queries by confidence bin and group: gaps, correct and wrong predictions, and totals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from veracal._types import Array, Frozen, Ints
from veracal.accounting import Relation
from veracal.calibration.bins import Bins
from veracal.calibration.queries.scalars import check_inverse, confidence_at, gap_at
from veracal.data import Scores
from veracal.errors import DataError
from veracal.mechanisms import MAX_TOTAL, Bounds, Grid
from veracal.queries import (
    CellSum,
    NonAdditive,
    SettingValue,
    brier_scores,
    labeled_scores,
)


@dataclass(frozen=True)
class Groups:
    """A group attribute with its declared values, by which answers are broken down.

    Every record is in exactly one group, so one record changes the answer of one group only.

    Parameters
    ----------
    name : str
        Name of the attribute.
    names : sequence of str
        Declared groups, in the order of the scores' declaration. They are public.
    """

    name: str
    names: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not len(self.names):
            raise ValueError(f"Expected declared groups of {self.name!r}, got {self.names!r}.")
        object.__setattr__(self, "names", tuple(self.names))

    @property
    def count(self) -> int:
        """Number of declared groups."""
        return len(self.names)

    @property
    def settings(self) -> dict[str, SettingValue]:
        """What identifies the groups in a query."""
        return {"group": self.name, "groups": repr(self.names)}

    def of(self, scores: Scores) -> Ints:
        """Index of each record's group."""
        column = scores.groups.get(self.name)
        if column is None or tuple(column.names) != self.names:
            raise DataError(
                f"{scores.name}: group {self.name!r}",
                f"groups declared as {self.names}",
                "no such attribute" if column is None else f"{tuple(column.names)}",
                "Name the groups as the scores declare them, in that order.",
            )
        return column.codes


class ByBin(CellSum):
    """Base class of sums by cells (bins and groups); each record is in exactly one cell."""

    bins: Bins
    inverse: float
    groups: Groups | None

    statistic: ClassVar[str]

    @property
    def name(self) -> str:
        """Name of the query, including whether it is by bin and by group."""
        by_bin = " by bin" if self.bins.count > 1 else ""
        return self.statistic + by_bin + ("" if self.groups is None else " by group")

    @property
    def entries(self) -> int:
        """Number of cells."""
        return self.bins.count * (1 if self.groups is None else self.groups.count)

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """Bins, temperature and groups."""
        settings = {"bins": self.bins.count, "inverse": self.inverse}
        if self.groups is None:
            return Frozen(settings)
        return Frozen({**settings, **self.groups.settings})

    def cells(self, records: Any) -> Array:
        """Index of each record's cell: bins within groups."""
        scores = labeled_scores(records)
        bins = self.bins.of(confidence_at(scores, self.inverse))
        if self.groups is None:
            return bins
        return self.groups.of(scores) * self.bins.count + bins


@dataclass(frozen=True)
class BinnedGap(ByBin):
    r"""Sums of :math:`1[\hat y = y] - \hat p_\beta` by bins of confidence.

    Luo et al. 2020 (https://arxiv.org/abs/2008.09643), ECE-T. One record changes one entry
    by at most 1; replacing a record changes the sums by less than 2, bounded by 2.

    Parameters
    ----------
    bins : Bins
    inverse : float
        The inverse temperature :math:`\beta`.
    groups : Groups, optional
        Separate bins for each group, in the order of the groups.
    bits : int
        Resolution of the grid.
    """

    bins: Bins = field(default_factory=Bins)
    inverse: float = 1.0
    groups: Groups | None = None
    bits: int = 20

    statistic = "gaps"
    low, high = -1, 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "inverse", check_inverse(self.inverse))
        _ = self.bounds

    def per_record(self, records: Any) -> Array:
        """Each record's gap."""
        return gap_at(records, self.inverse)


@dataclass(frozen=True)
class CorrectWrong(ByBin):
    """Numbers of correct and wrong predictions by bins of confidence.

    Correct and wrong predictions have half the sensitivity of correct and all predictions: each
    record changes one entry by 1. One bin gives the accuracy and the number of records.

    Parameters
    ----------
    bins : Bins
    inverse : float
        Inverse temperature of the confidence.
    groups : Groups, optional
        Separate bins for each group.

    Examples
    --------
    >>> from veracal.data import Scores
    >>> scores = Scores.from_logits([[0.0, 2.0], [3.0, 0.0], [9.0, 0.0]], [1, 1, 0])
    >>> CorrectWrong(Bins(1)).evaluate(scores)
    array([2, 1])
    """

    bins: Bins = field(default_factory=Bins)
    inverse: float = 1.0
    groups: Groups | None = None

    statistic = "correct and wrong"
    low, high, bits = 0, 1, 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "inverse", check_inverse(self.inverse))

    @property
    def entries(self) -> int:
        """Correct predictions at even indices, wrong ones at odd indices."""
        return 2 * super().entries

    def per_record(self, records: Any) -> Array:
        """One for each record."""
        return np.ones(len(records))

    def cells(self, records: Any) -> Array:
        """Index of each record's cell and outcome."""
        sides: Array = 2 * super().cells(records) + ~labeled_scores(records).correct
        return sides


@dataclass(frozen=True)
class AbsoluteGaps(BinnedGap, NonAdditive):
    r"""The number :math:`\sum_b |S_b|`, n times the calibration error, for each group.

    :math:`S_b` is the sum of :math:`1[\hat y = y] - \hat p_\beta` in bin b. Noise on this one
    number is unbiased; noise on every :math:`S_b` increases the absolute values (by 0.046 at
    1,000 records and an epsilon of 0.2).

    It is not a sum over records: answers of several sources do not add up to the answer of all,
    so a :class:`~veracal.queries.Pool` rejects it. Use :class:`BinnedGap` there.

    Parameters
    ----------
    bins, inverse, groups, bits
        As of :class:`BinnedGap`.

    Guarantees
    ----------
    :math:`\bigl|\sum_b |S_b| - \sum_b |S'_b|\bigr| \le \sum_b |S_b - S'_b|`, so one record
    changes the answer at most as much as the sums: by at most 1 if it is added or removed, and
    by less than 2 (bounded by 2) if it is replaced. With groups a record is in one of them, and
    the same holds for all entries together in the L1 norm.
    """

    statistic = "absolute gaps"

    @property
    def entries(self) -> int:
        """One entry for each group."""
        return 1 if self.groups is None else self.groups.count

    def sensitivity_l2(self, relation: Relation) -> float:
        """Equal to the L1 sensitivity, because the changes of two bins add up in one number."""
        return float(self.sensitivity(relation))

    def evaluate(self, records: Any) -> Ints:
        """The sum of the absolute sums in grid units."""
        gaps = BinnedGap(self.bins, self.inverse, self.groups, self.bits).evaluate(records)
        sums = np.abs(gaps.astype(object)).reshape(self.entries, -1)
        # Clipped like every total; clipping does not increase differences.
        totals = [min(int(total), MAX_TOTAL) for total in sums.sum(axis=1)]
        return np.array(totals, dtype=np.int64)


@dataclass(frozen=True)
class BrierByGroup(CellSum):
    r"""Sums of the Brier score by group; see :class:`~veracal.queries.Brier` for all records.

    Parameters
    ----------
    groups : Groups
    bits : int
        Resolution of the grid.
    """

    groups: Groups
    bits: int = 20

    name = "brier by group"
    low, high = 0, 2

    @property
    def entries(self) -> int:
        """One entry for each group."""
        return self.groups.count

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """The groups."""
        return Frozen(self.groups.settings)

    def per_record(self, records: Any) -> Array:
        """The error of each record."""
        return brier_scores(records)

    def cells(self, records: Any) -> Array:
        """The group of each record."""
        return self.groups.of(records)


@dataclass(frozen=True)
class CorrectTotal:
    r"""Numbers of correct predictions and of all predictions by bins of confidence.

    The query of Luo et al. 2020 (https://arxiv.org/abs/2008.09643, App. C.2.3).
    :class:`~veracal.calibration.CorrectWrong` has the same information at half the
    sensitivity; this query is for comparison with the paper.

    Parameters
    ----------
    bins : Bins
    inverse : float
        Inverse temperature of the confidence.

    Guarantees
    ----------
    A correct prediction is counted twice in one bin, so adding or removing a record changes the
    answer by 2 in the L1 and by :math:`\sqrt 2` in the L2 norm. Replacing it by a record of
    another bin changes four entries by 1 each: 4 in the L1 and 2 in the L2 norm. Both bounds
    are attained; with a single bin the same bounds are used although replacing changes less.

    Examples
    --------
    >>> from veracal.data import Scores
    >>> scores = Scores.from_logits([[0.0, 2.0], [3.0, 0.0], [9.0, 0.0]], [1, 1, 0])
    >>> CorrectTotal(Bins(1)).evaluate(scores)
    array([2, 3])
    """

    bins: Bins = field(default_factory=Bins)
    inverse: float = 1.0

    name = "correct and total by bin"
    grid = Grid(0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inverse", check_inverse(self.inverse))

    @property
    def entries(self) -> int:
        """Correct predictions at even indices, all predictions at odd indices."""
        return 2 * self.bins.count

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """Bins and temperature."""
        return CorrectWrong(self.bins, self.inverse).settings

    def sensitivity(self, relation: Relation) -> int:
        """Sensitivity in the L1 norm: two for each record."""
        return 2 * Bounds(-1, 1).sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """Sensitivity in the L2 norm: two entries by 1, or four."""
        entries = self.sensitivity(relation)
        return 2.0 if entries == 4 else math.nextafter(math.sqrt(entries), math.inf)

    def evaluate(self, records: Any) -> Ints:
        """The counts."""
        counts = CorrectWrong(self.bins, self.inverse).evaluate(records)
        counts[1::2] += counts[0::2]
        return counts
