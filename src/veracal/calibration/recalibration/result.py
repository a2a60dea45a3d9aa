"""A recalibration in plain words, for people who decide.

The result of a recalibration: the map, what it promises to whom, and what it does.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from veracal.accounting import MICRO, Statement, rounded_up
from veracal.calibration.maps.base import CalibrationMap, Identity
from veracal.calibration.maps.parametric import Temperature, TwoTemperatures, UniformMixing
from veracal.calibration.private.guard import GuardResult, InferredGuardResult
from veracal.calibration.private.measurement import PrivateFigures
from veracal.calibration.recalibration.sources import BudgetDivision
from veracal.data import Estimate, Scores
from veracal.queries import Release

_NAMED = 5  # silent sources that are told one by one
_WHICH = {"temperature": "Temperature", "unsure": "Temperature of the unsure"}
_WHICH["sure"] = "Temperature of the sure"


def text_of(found: "Recalibration") -> str:
    """What was asked, what it cost, what came of it; a line for each."""
    return "\n".join(_lines(found))


def _lines(found: "Recalibration") -> Iterator[str]:
    """The lines."""
    yield f"Method: {found.method}. {map_words(found.map)}"
    yield _asked(found)
    yield from _silent(found)
    yield _cost(found)
    for name, estimate in found.temperatures.items():
        what = _WHICH.get(name, name)
        yield f"{what}: {_ends(estimate)}; the interval counts {found.counted}."
    if found.guarded is not None:
        yield found.guarded.text()
    yield from _figures(found.before, found.after)
    if found.statement is not None:
        yield from found.statement.summary().split("\n\n")
        if found.asked > 1:
            yield f"Covered: {'; '.join(found.statement.covers)}."


def map_words(map_: CalibrationMap) -> str:
    """A map in a sentence."""
    match map_:
        case Identity():
            return "No map: the scores stay as they are."
        case Temperature():
            return f"Logits are divided by {map_.value:.5g}."
        case UniformMixing():
            return (
                f"Logits are divided by {map_.value:.5g}, and {map_.doubt:.1%} of every "
                "probability is shared out equally."
            )
        case TwoTemperatures():
            ends = f"{1 / map_.unsure:.5g} (unsure) and {1 / map_.sure:.5g} (sure)"
            return f"Logits are divided by a number between {ends}."
        case _:
            return f"The scores go through a map of kind {map_.kind!r}."


def _asked(found: "Recalibration") -> str:
    """Which questions, and of how many."""
    if not found.releases:
        return "Nothing was asked."
    times = Counter(release.query for release in found.releases)
    told = ", ".join(name if n == 1 else f"{name} ({n} times)" for name, n in times.items())
    who = "one source" if found.asked == 1 else f"{found.asked} sources"
    return f"Asked of {who}: {told}."


def _silent(found: "Recalibration") -> Iterator[str]:
    """Who did not answer, if anybody."""
    silent = [(i, why) for i, why in enumerate(found.silences) if why is not None]
    if silent:
        yield (
            f"{found.answered} of {found.asked} sources answered everything; what is said here "
            "is about their records."
        )
    for i, why in silent[:_NAMED]:
        yield f"Source {i + 1} was silent: {why}."
    if len(silent) > _NAMED:
        yield f"So were {len(silent) - _NAMED} more."


def _cost(found: "Recalibration") -> str:
    """What it cost whom."""
    if not found.private:
        return "NOT private: nothing protects the records. Show this only if they are public."
    if found.statement is None:
        return "Cost: nothing."
    cost = f"epsilon {rounded_up(found.statement.epsilon, 6)}"
    if found.statement.delta:
        cost += f" at delta {rounded_up(found.statement.delta)}"
    budget = f"{rounded_up(found.spending.total / MICRO, 6)}: {found.spending.text()}"
    return f"Cost for one {found.statement.unit}: {cost}. The budget was {budget}."


def _figures(before: PrivateFigures | None, after: PrivateFigures | None) -> Iterator[str]:
    """Figures of both sides."""
    if before is None or after is None:
        yield "No figures before and after: none were asked for, or the budget had no room."
        return
    for name, words in (("accuracy", "Accuracy"), ("ece", "Calibration error")):
        sides = (getattr(before, name), getattr(after, name))
        yield f"{words} before: {_ends(sides[0])}; after: {_ends(sides[1])}."
    if before.ece_noise_bias:
        yield f"Noise raises the calibration errors by {before.ece_noise_bias:.2g} at most."


def _ends(found: Estimate) -> str:
    """A number and its interval."""
    if found.value is None:
        return "not told from the noise"
    if found.low is None or found.high is None:
        return f"{found.value:.4g}"
    return f"{found.value:.4g} ({found.level:.0%} interval {found.low:.4g} to {found.high:.4g})"


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
    map: CalibrationMap
    temperatures: Mapping[str, Estimate]
    counted: str
    guarded: GuardResult | InferredGuardResult | None
    before: PrivateFigures | None
    after: PrivateFigures | None
    spending: BudgetDivision
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
