"""Caps of a ledger: the filter of its opening, and one more for each extension.

The caps on epsilon and delta are fixed when a ledger is opened. An extension adds a *filter*:
the same rule (for Rényi divergences the same order, which is not chosen again) with caps of its
own. Each charge fits wholly into one filter, the first with room for it, and the totals add.
"""

from dataclasses import dataclass
from sqlite3 import Connection

from veracal import _checks
from veracal.privacy.budget import Budget
from veracal.privacy.ledger import tables
from veracal.privacy.ledger.opening import SEPARATOR, Opening
from veracal.privacy.ledger.plan import Planned
from veracal.privacy.ledger.units import Cost, as_written

RAISED_AFTER_RELEASES = "cap raised after releases"
RAISED_BEFORE_RELEASES = "cap raised before any release"


@dataclass(frozen=True)
class Extension:
    """A raise of the caps.

    Attributes
    ----------
    filter : int
        Number of the filter that it added; the opening's is 1.
    epsilon, delta : float
        By how much the caps were raised.
    index : int
        Of its entry.
    after_releases : bool
        Whether anything may have been released before: then the raise may depend on it, and
        the sum of the caps is no promise that was made beforehand.
    """

    filter: int
    epsilon: float
    delta: float
    index: int
    after_releases: bool


@dataclass(frozen=True)
class Caps:
    """What a ledger may spend, by the filters that it has.

    Guarantees
    ----------
    The totals of all filters sum to at most what the rule grants for the sum of the caps. For
    pairs and pure epsilons these are the sums themselves. Rényi divergences at one order add,
    so filter k gets what the order leaves for the caps up to k, less what it left for those
    up to k - 1: all charges together keep the sum of the epsilons at the sum of the deltas.
    """

    opening: Opening
    extensions: tuple[Extension, ...] = ()

    @classmethod
    def read(cls, connection: Connection) -> "Caps":
        """Read the caps of a ledger as they are now."""
        caps = cls(Opening.from_text(tables.opening(connection)[0]))
        for entry in tables.adding(connection):
            if entry.extension is not None:
                released = tables.released_before(connection, entry.index)
                caps = caps.extended(*entry.extension, entry.index, after_releases=released)
        return caps

    def extended(
        self, epsilon: float, delta: float, index: int, *, after_releases: bool
    ) -> "Caps":
        """The caps with one filter more, if the rule can serve it."""
        if isinstance(self.opening.rule, Planned):
            raise ValueError(
                "A ledger of kind 'plan' cannot be extended: its list is fixed and was charged "
                "as a whole. Open a ledger of kind 'pure' or 'open'."
            )
        _checks.positive(epsilon=epsilon)
        _checks.fraction(delta=delta)
        number = len(self.extensions) + 2
        new = Extension(number, float(epsilon), float(delta), index, after_releases)
        caps = Caps(self.opening, (*self.extensions, new))
        if caps.total(number).amount < 1:
            raise ValueError(f"epsilon is too small for a filter; got epsilon={epsilon!r}.")
        return caps

    @property
    def filters(self) -> range:
        """Numbers of the filters; none for a plan, which was spent when it was opened."""
        last = 0 if isinstance(self.opening.rule, Planned) else len(self.extensions) + 1
        return range(1, last + 1)

    @property
    def budget(self) -> Budget:
        """The sum of all caps."""
        return self._up_to(len(self.extensions) + 1)

    def _up_to(self, number: int) -> Budget:
        """The sum of the caps of the first filters."""
        first, more = self.opening.budget, self.extensions[: number - 1]
        if not more:
            return first
        epsilon = sum((as_written(one.epsilon) for one in more), as_written(first.epsilon))
        delta = sum((as_written(one.delta) for one in more), as_written(first.delta))
        return Budget(float(epsilon), float(delta), first.relation, first.unit)

    def total(self, number: int) -> Cost:
        """What each part may spend from a filter."""
        rule = self.opening.rule
        assert not isinstance(rule, Planned)
        whole = rule.total(self._up_to(number))
        return whole if number == 1 else whole - rule.total(self._up_to(number - 1))

    def accounts(self, number: int) -> dict[str, Cost]:
        """Accounts of a filter, one for each part, and their totals."""
        total = self.total(number)
        return {account_of(part, number): total for part in self.opening.parts}

    @property
    def note(self) -> str | None:
        """What every statement about an extended ledger has to say; None for others."""
        if not self.extensions:
            return None
        after = any(one.after_releases for one in self.extensions)
        return RAISED_AFTER_RELEASES if after else RAISED_BEFORE_RELEASES


def account_of(part: str, number: int) -> str:
    """Name of the account that a part has in a filter."""
    return part if number == 1 else f"{number}{SEPARATOR}{part}"
