"""The result of a recalibration: the map, what it promises to whom, and what it does."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from veracal.calibration.maps import Map
from veracal.calibration.private import Guarded, Inferred, PrivateFigures
from veracal.calibration.recalibration.budget import Spending
from veracal.calibration.recalibration.text import text_of
from veracal.data import Estimate, Scores
from veracal.privacy import Release, Statement
from veracal.privacy.costs.pure import MICRO


@dataclass(frozen=True, eq=False)
class Recalibration:
    """A map that was fitted through noisy answers, and everything that was asked for it.

    Attributes
    ----------
    method : str
        What it was fitted by; never ``"auto"``, but what that stood for.
    map : Map
        The one to use: the identity, where the guard did not keep what was fitted.
    temperatures : mapping of str to Estimate
        Temperatures that were fitted, kept or not, with intervals: ``temperature``, or
        ``unsure`` and ``sure``; none of other maps.
    counted : str
        What their intervals count, in words.
    guarded : Guarded, Inferred or None
        What the guard decided, and why; None where there was none.
    before, after : PrivateFigures or None
        Accuracy and calibration error on the same records; None where the budget had no room.
    spending : Spending
        How the budget was divided.
    statement : Statement or None
        What all answers together promise; None where nothing was asked, or nothing protects.
    releases : tuple of Release
        Every answer, in the order in which it was given.
    silences : tuple of (str or None)
        For each source that was asked, why it was silent; None if it answered everything.
    private : bool
        Whether this may be shown: everything in it comes from protected answers, or from none.
    """

    method: str
    map: Map
    temperatures: Mapping[str, Estimate]
    counted: str
    guarded: Guarded | Inferred | None
    before: PrivateFigures | None
    after: PrivateFigures | None
    spending: Spending
    statement: Statement | None
    releases: tuple[Release, ...]
    silences: tuple[str | None, ...]
    private: bool

    @property
    def temperature(self) -> Estimate | None:
        """The one temperature that was fitted, if the method fits one."""
        return self.temperatures.get("temperature")

    @property
    def asked(self) -> int:
        """Number of sources that were asked."""
        return len(self.silences)

    @property
    def answered(self) -> int:
        """Number of those that answered everything."""
        return sum(why is None for why in self.silences)

    def transform(self, scores: Scores) -> Scores:
        """Map scores, which are only read and may be anybody's."""
        return self.map.transform(scores)

    def text(self) -> str:
        """Everything in plain words, for people who decide."""
        return text_of(self)

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        guard = self.guarded
        return {
            "method": self.method,
            "private": self.private,
            "map": self.map.to_json(),
            "temperatures": {name: asdict(found) for name, found in self.temperatures.items()},
            "guard": None if guard is None else guard.to_json(),
            "before": None if self.before is None else self.before.to_json(),
            "after": None if self.after is None else self.after.to_json(),
            "epsilon": {
                "map": self.spending.map / MICRO,
                "guard": self.spending.guard / MICRO,
                "measure": self.spending.measure / MICRO,
            },
            "statement": None if self.statement is None else self.statement.to_json(),
            "sources": {
                "asked": self.asked,
                "answered": self.answered,
                "silences": list(self.silences),
            },
            "questions": [release.query for release in self.releases],
        }
