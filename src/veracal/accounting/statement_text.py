"""The privacy statement of a release, as text and as JSON, and why a model may have none."""

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

REPEATABLE = "its random draws can be reproduced: random_state was set"
UNFINISHED = "its fit did not finish"


@dataclass(frozen=True)
class NotPrivate:
    """Replaces a :class:`~veracal.accounting.Statement` where there is no guarantee.

    Attributes
    ----------
    reasons : tuple of str
        Why there is no guarantee: for instance, what was inferred from the records.
    """

    reasons: tuple[str, ...]

    @property
    def epsilon(self) -> float:
        """Infinite: no bound is claimed."""
        return math.inf

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        return {"private": False, "epsilon": None, "reasons": list(self.reasons)}

    def text(self) -> str:
        """The reasons as a paragraph for decision makers."""
        listed = "".join(f"\n  - {reason}" for reason in self.reasons)
        return f"This model is NOT differentially private. It has no guarantee because:{listed}"


_SMALL_DELTA = 1e-10
_MIN_FIXED_POINT = Decimal("1e-6")
_CURVE = tuple(10.0**-power for power in range(2, 11))
_NEIGHBORS = {
    "add-remove": "with or without any one {unit}",
    "replace-one": "with any one {unit} or with another in its place",
}
NOT_COVERED = (
    "results computed from the records that were not charged, such as figures marked internal",
    "settings that were chosen by trying them on the records",
    "facts declared public: the schema, sizes, bounds, sampling rates and numbers of steps",
    "the time that an answer takes, and attackers who control the machine",
)
UNCHARGED = "not charged to a ledger; other fits of these records are not counted"


@dataclass(frozen=True)
class Statement:
    """The privacy guarantee of a release.

    Attributes
    ----------
    epsilon, delta : float
        The guarantee; epsilon is an upper bound, rounded up.
    relation : {"add-remove", "replace-one"}
    unit : str
        The unit of privacy.
    max_contributions : int
        Maximum number of rows of one unit, which are protected together.
    accountant : str
        How epsilon was computed.
    composition : str
        Whether costs were fixed beforehand or could adapt to earlier answers.
    sampler : str
        How batches were drawn.
    numerics : str
        Whether the noise is exact or idealized.
    renyi_epsilon : float or None
        Epsilon by Rényi divergences, a looser bound, where available.
    epsilon_without_poisson : float or None
        Epsilon without amplification: batches were not drawn as assumed, but no record was
        used more often than expected. None if nothing is sampled.
    advantage : float
        Upper bound on the true positive rate minus the false positive rate of any membership
        inference attack.
    curve : tuple of (delta, epsilon)
        The same guarantee at other values of delta. All of them hold simultaneously.
    covers, not_covered : tuple of str
    ledger_total : str or None
        A sentence about the total cost of everything charged to the same ledger.
    """

    epsilon: float
    delta: float
    relation: Relation
    unit: str
    max_contributions: int
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
        """Convert to a JSON object, in which an unbounded epsilon is null."""
        result = asdict(self)
        for name, value in result.items():
            if isinstance(value, float) and not math.isfinite(value):
                result[name] = None
        result["curve"] = [
            {"delta": d, "epsilon": e if math.isfinite(e) else None} for d, e in self.curve
        ]
        result["covers"], result["not_covered"] = list(self.covers), list(self.not_covered)
        return result

    def text(self) -> str:
        """The guarantee as paragraphs for decision makers."""
        meaning = (
            f"For any test of whether a given {self.unit} is in the data, the true positive rate "
            f"exceeds the false positive rate by at most {format_up(100 * self.advantage)} "
            "percentage points."
        )
        covered = "".join(f"\n  + {item}" for item in self.covers)
        excluded = "".join(f"\n  - {item}" for item in self.not_covered)
        total = "" if self.ledger_total is None else f"{self.ledger_total}\n\n"
        scope = f"{total}Covered:{covered}\nNot covered:{excluded}"
        basis = [
            f"Accountant: {self.accountant}.",
            f"Costs: {self.composition}.",
            f"Batches: {self.sampler}.",
            f"Noise: {self.numerics}.",
        ]
        if self.renyi_epsilon is not None:
            basis.append(
                f"By Rényi divergences epsilon is at most {format_up(self.renyi_epsilon)}."
            )
        if self.epsilon_without_poisson is not None:
            basis.append(
                "Without amplification by sampling (batches not drawn at random, no record used "
                "more often than expected), epsilon = "
                f"{format_up(self.epsilon_without_poisson)}."
            )
        table = ["      delta   epsilon"]
        for delta, epsilon in self.curve:
            power = f"{float(_round_decimal(delta, 1, ROUND_CEILING)):.0e}"
            table.append(f"  {power:>9}   {format_up(epsilon)}")
        return "\n\n".join(
            [self._guarantee(), meaning, scope, "\n".join(basis), "\n".join(table)]
        )

    def summary(self) -> str:
        """The guarantee of this release, and the ledger's total if there is one."""
        total = () if self.ledger_total is None else (self.ledger_total,)
        return "\n\n".join([self._guarantee(), *total])

    def _guarantee(self) -> str:
        most = self.max_contributions
        rows = "" if most == 1 else f" with at most {most} rows"
        pure = f"epsilon = {format_up(self.epsilon)}"
        cost = pure if self.delta == 0 else f"{pure}, delta = {format_up(self.delta, 3)}"
        bound = "That" if math.isfinite(self.epsilon) else "Nothing"
        return (
            f"This release is differentially private for one {self.unit}{rows}: {cost}. "
            f"{bound} bounds how well an observer of the release can tell whether it was "
            f"computed {_NEIGHBORS[self.relation].format(unit=self.unit)} ({self.relation})."
        )


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
    """Compute the privacy statement of an event.

    Parameters
    ----------
    event : Event
        Everything that was or will be released.
    delta : float in [0, 1)
    unit : Unit, optional
    covers : sequence of str
        Descriptions of what the guarantee covers.
    not_covered : sequence of str
        Further exclusions, beside those of every statement.
    composition : str
        Describes whether costs were fixed beforehand or could adapt to earlier answers.
    exact_noise : bool
        Whether noise of a continuous distribution was rounded to a public grid, added to
        integers and sampled exactly. An event does not contain this.
    ledger_total : str, optional
        A sentence about the total cost of everything charged to the same ledger
        (:func:`veracal.ledger.ledger_total`).

    Examples
    --------
    >>> guarantee = statement(Gaussian(noise=2.0), 1e-6)
    >>> round(guarantee.epsilon, 3), guarantee.unit, guarantee.relation
    (2.254, 'record', 'add-remove')
    """
    _checks.fraction(delta=delta)
    unit = unit or Unit()
    leaves = set(mechanisms(event))
    unsampled = without_sampling(event, unit)
    rates = sorted({leaf.rate for leaf in leaves if isinstance(leaf, PoissonGaussian)})
    sampler = "none are drawn; every record is used"
    if rates:
        probabilities = " or ".join(f"{rate:.6g}" for rate in rates)
        sampler = (
            f"Poisson, secret: every row enters independently with probability {probabilities}"
        )
    discrete = [isinstance(leaf, DiscreteLaplace | DiscreteGaussian) for leaf in leaves]
    numerics = "in floating point, treated as real numbers, from a cryptographic generator"
    if exact_noise or all(discrete):
        numerics = "exact, on integers of a public grid"
    elif any(discrete):
        numerics = f"exact on a public grid for statistics, otherwise {numerics}"
    try:
        by_renyi = rdp_epsilon(event, delta, unit)
    except ValueError:  # there is no such bound
        by_renyi = math.inf
    return Statement(
        epsilon=epsilon_for(event, delta, unit),
        delta=float(delta),
        relation=event.relation,
        unit=unit.name,
        max_contributions=unit.max_contributions,
        accountant=_accountant(event, leaves, delta),
        composition=composition,
        sampler=sampler,
        numerics=numerics,
        renyi_epsilon=by_renyi if math.isfinite(by_renyi) else None,
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
    text = "privacy-loss distributions, rounded up"
    if any(isinstance(one, AsReplaceOne) for one in wrapped):
        text += "; converted from add-remove as an (epsilon, delta) pair"
    if any(not isinstance(one, AsReplaceOne | Parallel) for one in wrapped):
        text += "; a search or integer vectors by Rényi divergences, as such a pair"
    return (
        text if delta >= _SMALL_DELTA else f"{text}; by Rényi divergences where delta is tiny"
    )


def format_up(value: float, digits: int = 4) -> str:
    """Format a number with few digits, rounded up, so that text never understates a cost.

    Examples
    --------
    >>> format_up(1.00001), format_up(0.05), format_up(2.1234e-9, 3)
    ('1.001', '0.05', '2.13e-09')
    """
    return _format(value, digits, ROUND_CEILING)


def format_down(value: float, digits: int = 4) -> str:
    """Format a number with few digits, rounded down, so that text never overstates a balance.

    Examples
    --------
    >>> format_down(0.99999), format_down(0.05)
    ('0.9999', '0.05')
    """
    return _format(value, digits, ROUND_FLOOR)


def _format(value: float, digits: int, rounding: str) -> str:
    """Format a number with few digits; a tiny one in scientific notation."""
    if not math.isfinite(value):
        return "unbounded"
    if value == 0:
        return "0"
    rounded = _round_decimal(value, digits, rounding)
    # More leading zeros than these are hard to read.
    return (
        f"{rounded:f}" if abs(rounded) >= _MIN_FIXED_POINT else f"{float(rounded):.{digits}g}"
    )


def _round_decimal(value: float, digits: int, rounding: str) -> Decimal:
    """Round a finite value to a decimal of so many digits, in the direction of ``rounding``."""
    exact = Decimal(repr(float(value)))
    step = Decimal(1).scaleb(exact.adjusted() + 1 - digits)
    return exact.quantize(step, rounding).normalize()
