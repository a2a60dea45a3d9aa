"""Right predictions and all of them, by bins of confidence."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from veracal._types import Ints
from veracal.calibration.bins import Bins
from veracal.calibration.queries.binned import CorrectWrong
from veracal.calibration.queries.records import check_inverse
from veracal.privacy.answers.grid import Bounds, Grid
from veracal.privacy.answers.queries import Setting
from veracal.privacy.budget import Relation


@dataclass(frozen=True)
class CorrectTotal:
    r"""Numbers of right predictions and of all predictions by bins of confidence.

    This is what Luo et al. 2020 (https://arxiv.org/abs/2008.09643, App. C.2.3) ask for. It
    says the same as :class:`~veracal.calibration.queries.CorrectWrong`, at twice the
    sensitivity: use that one, and this one to compare.

    Parameters
    ----------
    bins : Bins
    inverse : float
        Bins are of the confidence at this inverse temperature.

    Guarantees
    ----------
    A right prediction is counted twice, in one bin, so a record that is added or removed moves
    the answer by 2 in the L1 and by :math:`\sqrt 2` in the L2 norm. One that is replaced by a
    record of another bin moves four entries by 1 each: 4 in the L1 and 2 in the L2 norm. Both
    happen, so no less would do; with a single bin replacing moves less, and the same is stated.

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
        """Right ones at even, all at odd places."""
        return 2 * self.bins.count

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Bins and temperature."""
        return self._sides.settings

    def sensitivity(self, relation: Relation) -> int:
        """Most that the counts move in the L1 norm: two for each record."""
        return 2 * Bounds(-1, 1).sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """Most that they move in the L2 norm: two entries by 1, or four."""
        entries = self.sensitivity(relation)
        return 2.0 if entries == 4 else math.nextafter(math.sqrt(entries), math.inf)

    def evaluate(self, records: Any) -> Ints:
        """The counts."""
        counts = self._sides.evaluate(records)
        counts[1::2] += counts[0::2]
        return counts

    @property
    def _sides(self) -> CorrectWrong:
        """The same as right and wrong ones."""
        return CorrectWrong(self.bins, self.inverse)
