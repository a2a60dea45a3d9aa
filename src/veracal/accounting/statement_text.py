"""Why a fitted model may claim nothing.

The guarantee, in words and as JSON.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from veracal import _checks
from veracal.accounting.components import branches, mechanisms, without_sampling
from veracal.accounting.epsilon import delta_for, epsilon_for
from veracal.accounting.events import (
    AsReplaceOne,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Gaussian,
    Parallel,
    PoissonGaussian,
    Relation,
    Unit,
)
from veracal.accounting.pld import has_loss
from veracal.accounting.rdp import rdp_epsilon

REPEATABLE = "its random draws can be repeated: random_state was set"
UNFINISHED = "its fit did not end"


@dataclass(frozen=True)
class NotPrivate:
    """Stands where a :class:`~veracal.accounting.Statement` would, and promises nothing.

    Attributes
    ----------
    reasons : tuple of str
        What was read from the records, or left out, that a guarantee would have needed.
    """

    reasons: tuple[str, ...]

    @property
    def epsilon(self) -> float:
        """Infinite: no bound is claimed."""
        return math.inf

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        return {"private": False, "epsilon": None, "reasons": list(self.reasons)}

    def text(self) -> str:
        """The reasons as a paragraph for people who decide."""
        listed = "".join(f"\n  - {reason}" for reason in self.reasons)
        return f"This model is NOT differentially private, and nothing is promised:{listed}"


_TINY = 1e-10
_COUNTED = Decimal("1e-6")
_CURVE = tuple(10.0**-power for power in range(2, 11))
_NEIGHBORS = {
    "add-remove": "with or without any one {unit}",
    "replace-one": "with any one {unit} or with another in its place",
}
NOT_COVERED = (
    "whatever was computed from the records and not charged, such as figures marked internal",
    "settings that were chosen by trying them on the records",
    "facts declared public: the schema, sizes, bounds, sampling rates and numbers of steps",
    "the time an answer takes, and whoever controls the machine",
)
UNCHARGED = "not charged to a ledger; other fits of these records are not counted"


@dataclass(frozen=True)
class Statement:
    """What a release promises to whom.

    Attributes
    ----------
    epsilon, delta : float
        The guarantee; epsilon is an upper bound, rounded up.
    relation : {"add-remove", "replace-one"}
    unit : str
        Whom it protects.
    at_most : int
        Rows of one unit, all of them protected together.
    accountant : str
        How epsilon was computed.
    composition : str
        Whether costs were fixed beforehand or could adapt.
    sampler : str
        How batches were drawn.
    numerics : str
        Whether the noise is exact or idealized.
    renyi_epsilon : float or None
        A second, looser opinion, where there is one.
    epsilon_without_poisson : float or None
        If batches were not drawn as assumed but every record was used as often as expected at
        most: no amplification. None where nothing is sampled.
    advantage : float
        Most that any attacker's true positive rate exceeds the false positive rate, when
        guessing whether somebody took part.
    curve : tuple of (delta, epsilon)
        The same guarantee at other deltas. All of them hold at once.
    covers, not_covered : tuple of str
    ledger_total : str or None
        What everything that the same ledger pays for may cost together, in a sentence.
    """

    epsilon: float
    delta: float
    relation: Relation
    unit: str
    at_most: int
    accountant: str
    composition: str
    sampler: str
    numerics: str
    renyi_epsilon: float | None
    epsilon_without_poisson: float | None
    advantage: float
    curve: tuple[tuple[float, float], ...]
    covers: tuple[str, ...]
    not_covered: tuple[str, ...] = NOT_COVERED
    ledger_total: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold; an unbounded epsilon is written as null."""
        written = asdict(self)
        for name, value in written.items():
            if isinstance(value, float) and not math.isfinite(value):
                written[name] = None
        written["curve"] = [
            {"delta": d, "epsilon": e if math.isfinite(e) else None} for d, e in self.curve
        ]
        written["covers"], written["not_covered"] = list(self.covers), list(self.not_covered)
        return written

    def text(self) -> str:
        """The guarantee as paragraphs for people who decide."""
        return "\n\n".join(
            [self._promise(), self._meaning(), self._scope(), self._basis(), self._table()]
        )

    def summary(self) -> str:
        """Return the promise of this release, and the ledger's total where there is one."""
        total = () if self.ledger_total is None else (self.ledger_total,)
        return "\n\n".join([self._promise(), *total])

    def _promise(self) -> str:
        rows = "" if self.at_most == 1 else f" with at most {self.at_most} rows"
        pure = f"epsilon = {rounded_up(self.epsilon)}"
        cost = pure if self.delta == 0 else f"{pure}, delta = {rounded_up(self.delta, 3)}"
        bound = "That" if math.isfinite(self.epsilon) else "Nothing"
        return (
            f"This release is differentially private for one {self.unit}{rows}: {cost}. "
            f"{bound} bounds how well anybody who sees it can tell whether it was made "
            f"{_NEIGHBORS[self.relation].format(unit=self.unit)} ({self.relation})."
        )

    def _meaning(self) -> str:
        return (
            f"No test of whether a given {self.unit} took part finds those who did more than "
            f"{rounded_up(100 * self.advantage)} percentage points more often than it accuses "
            "those who did not."
        )

    def _scope(self) -> str:
        covered = "".join(f"\n  + {what}" for what in self.covers)
        left = "".join(f"\n  - {what}" for what in self.not_covered)
        total = "" if self.ledger_total is None else f"{self.ledger_total}\n\n"
        return f"{total}Covered:{covered}\nNot covered:{left}"

    def _basis(self) -> str:
        lines = [
            f"Accountant: {self.accountant}.",
            f"Costs: {self.composition}.",
            f"Batches: {self.sampler}.",
            f"Noise: {self.numerics}.",
        ]
        if self.renyi_epsilon is not None:
            lines.append(
                f"By Rényi divergences epsilon is at most {rounded_up(self.renyi_epsilon)}."
            )
        if self.epsilon_without_poisson is not None:
            lines.append(
                "If the batches had not been drawn at random, each record being used no more "
                "often than expected: epsilon = "
                f"{rounded_up(self.epsilon_without_poisson)}."
            )
        return "\n".join(lines)

    def _table(self) -> str:
        rows = [
            f"  {_power(delta):>9}   {rounded_up(epsilon)}" for delta, epsilon in self.curve
        ]
        return "\n".join(["      delta   epsilon", *rows])


def statement(
    event: Event,
    delta: float,
    unit: Unit | None = None,
    *,
    covers: Sequence[str] = ("what the listed events release",),
    not_covered: Sequence[str] = (),
    composition: str = "fixed before the first release, and composed as one plan",
    exact_noise: bool = False,
    ledger_total: str | None = None,
) -> Statement:
    """State what an event promises.

    Parameters
    ----------
    event : Event
        Everything that was or will be released.
    delta : float in [0, 1)
    unit : Unit, optional
    covers : sequence of str
        What the guarantee is about, in words.
    not_covered : sequence of str
        What else it is not about, beside what is true of every statement.
    composition : str
        Whether costs were fixed beforehand or could adapt, in words.
    exact_noise : bool
        Whether noise of a continuous distribution was rounded to a public grid, added to
        integers and sampled exactly, which an event does not say.
    ledger_total : str, optional
        What everything that the same ledger pays for may cost together, in a sentence
        (:func:`veracal.ledger.ledger_total`).

    Examples
    --------
    >>> made = statement(Gaussian(noise=2.0), 1e-6)
    >>> round(made.epsilon, 3), made.unit, made.relation
    (2.254, 'record', 'add-remove')
    """
    _checks.fraction(delta=delta)
    unit = unit or Unit()
    leaves = set(mechanisms(event))
    unsampled = without_sampling(event, unit)
    return Statement(
        epsilon=epsilon_for(event, delta, unit),
        delta=float(delta),
        relation=event.relation,
        unit=unit.name,
        at_most=unit.at_most,
        accountant=_accountant(event, leaves, delta),
        composition=composition,
        sampler=_sampler(leaves),
        numerics=_numerics(leaves, exact_noise),
        renyi_epsilon=_second_opinion(event, delta, unit),
        epsilon_without_poisson=None if unsampled is None else epsilon_for(unsampled, delta),
        advantage=delta_for(event, 0.0, unit),
        curve=tuple((d, epsilon_for(event, d, unit)) for d in _CURVE),
        covers=tuple(covers),
        not_covered=(*not_covered, *NOT_COVERED),
        ledger_total=ledger_total,
    )


def _accountant(event: Event, leaves: set[Event], delta: float) -> str:
    """How epsilon is computed."""
    if delta == 0:
        return "the exact sum of pure costs"
    wrapped = [one for branch in branches(event, Unit()) for one in branch if not has_loss(one)]
    if not wrapped and all(isinstance(leaf, Gaussian) for leaf in leaves):
        return "the exact curve of the Gaussian mechanism"
    words = "privacy-loss distributions, rounded up"
    if any(isinstance(one, AsReplaceOne) for one in wrapped):
        words += "; converted from add-remove as an (epsilon, delta) pair"
    if any(not isinstance(one, AsReplaceOne | Parallel) for one in wrapped):
        words += "; a search or integer vectors by Rényi divergences, as such a pair"
    return words if delta >= _TINY else f"{words}; by Rényi divergences where delta is tiny"


def _sampler(leaves: set[Event]) -> str:
    """How batches are drawn."""
    rates = sorted({leaf.rate for leaf in leaves if isinstance(leaf, PoissonGaussian)})
    if not rates:
        return "none are drawn; every record is used"
    chances = " or ".join(f"{rate:.6g}" for rate in rates)
    return f"Poisson: every row enters on its own with probability {chances}, in secret"


def _numerics(leaves: set[Event], exact_noise: bool) -> str:
    """Whether the noise is exact."""
    exact = [
        exact_noise or isinstance(leaf, DiscreteLaplace | DiscreteGaussian) for leaf in leaves
    ]
    if all(exact):
        return "exact, on integers of a public grid"
    real = "in floating point, taken for real numbers, from a cryptographic generator"
    return f"exact on a public grid for statistics, otherwise {real}" if any(exact) else real


def _second_opinion(event: Event, delta: float, unit: Unit) -> float | None:
    """Epsilon by Rényi divergences, where there is one."""
    try:
        found = rdp_epsilon(event, delta, unit)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def rounded_up(value: float, digits: int = 4) -> str:
    """Few digits, rounded up: neither a cost nor a noise may shrink by being printed.

    Examples
    --------
    >>> rounded_up(1.00001), rounded_up(0.05), rounded_up(2.1234e-9, 3)
    ('1.001', '0.05', '2.13e-09')
    """
    return _written(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 4) -> str:
    """Few digits, rounded down: what is left to spend may not grow by being printed.

    Examples
    --------
    >>> rounded_down(0.99999), rounded_down(0.05)
    ('0.9999', '0.05')
    """
    return _written(value, digits, ROUND_FLOOR)


def _written(value: float, digits: int, rounding: str) -> str:
    """A number of few digits; one that is tiny, with a power of ten."""
    if not math.isfinite(value):
        return "unbounded"
    if value == 0:
        return "0"
    rounded = _rounded(value, digits, rounding)
    # Nobody counts more zeros than these.
    return f"{rounded:f}" if abs(rounded) >= _COUNTED else f"{float(rounded):.{digits}g}"


def _power(delta: float) -> str:
    """One digit and a power of ten, rounded up."""
    return "0" if delta == 0 else f"{float(_rounded(delta, 1, ROUND_CEILING)):.0e}"


def _rounded(value: float, digits: int, rounding: str) -> Decimal:
    """The nearest decimal of so many digits on one side of a finite value."""
    exact = Decimal(repr(float(value)))
    step = Decimal(1).scaleb(exact.adjusted() + 1 - digits)
    return exact.quantize(step, rounding).normalize()
