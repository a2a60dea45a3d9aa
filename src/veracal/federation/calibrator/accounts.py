"""What a source can still pay, as far as a calibrator knows: its terms minus what was asked.

A source's own ledger decides. This is kept by the same rule, so that nothing is asked of a
source that could not answer everything.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

from veracal.errors import BudgetError
from veracal.federation.protocol.terms import Terms
from veracal.privacy import Item, epsilon_for, micro_epsilon, pure_epsilon
from veracal.privacy.costs.pure import MICRO
from veracal.privacy.costs.statement import rounded_down, rounded_up
from veracal.privacy.events import Event
from veracal.privacy.ledger.kinds import Renyi, Sums, best_order
from veracal.privacy.ledger.units import Cost

_MOST_ITEMS = 10**6


class Account:
    """A source's budget for this calibrator, by the rule that its ledger goes by.

    Parameters
    ----------
    terms : Terms
    """

    def __init__(self, terms: Terms) -> None:
        self.terms, self.budget = terms, terms.budget
        self._most_each = terms.most_each

    @cached_property
    def rule(self) -> Sums | Renyi:
        """How costs add up."""
        return Sums() if self.budget.pure else Renyi(best_order(self.budget))

    def spent(self, events: Iterable[Event]) -> Cost:
        """What events cost together."""
        found = Cost(0)
        for event in events:
            found = found + self.rule.cost(event, self.budget, None)
        return found

    def privacy(self, events: Iterable[Event]) -> tuple[float, float]:
        """Epsilon and delta that events amount to."""
        return self.rule.privacy(self.spent(events), self.budget)

    def left(self, events: Iterable[Event]) -> tuple[float, float]:
        """Epsilon and delta that are left after events."""
        return self.rule.left(self.spent(events), self.budget)

    def require(self, items: Sequence[Item], before: Sequence[Event]) -> None:
        """Refuse items that do not fit into what is left.

        Parameters
        ----------
        items : sequence of Item
        before : sequence of Event
            What was charged already, or may have been.

        Raises
        ------
        BudgetError
            Nothing was asked.
        """
        for item in items:
            self._check_each(item)
        events = [item.event for item in items for _ in range(min(item.times, _MOST_ITEMS))]
        if (self.spent(before) + self.spent(events)).within(self.rule.total(self.budget)):
            return
        asked, left = self.privacy(events)[0], self.left(before)[0]
        raise BudgetError(
            f"{self.terms.name} is asked for epsilon={rounded_up(asked, 6)}, but "
            f"{rounded_down(left, 6)} of {self.budget.epsilon:g} is left, as far as the book "
            "knows; it was not asked. Ask for less, or ask its owner to enroll again with a "
            "larger budget."
        )

    def _check_each(self, item: Item) -> None:
        """Refuse an answer that costs more than the source allows for one."""
        cost = pure_epsilon(item.event, self.budget.unit)
        if cost is None and self.budget.pure:
            raise BudgetError(
                f"{self.terms.name} answers with Laplace noise alone (delta = 0), but "
                f"{item.purpose!r} needs Gaussian noise; it was not asked. Use a method "
                "without a delta, or ask its owner to enroll again with one."
            )
        each = self._each(item.event)
        if each > self._most_each:
            raise BudgetError(
                f"{self.terms.name} allows epsilon={self._most_each / MICRO:g} for one answer, "
                f"but {item.purpose!r} costs {rounded_up(each / MICRO, 6)}; it was not asked. "
                "Ask for less, or ask its owner to enroll again with a larger --most-each."
            )

    def _each(self, event: Event) -> float:
        """What one answer costs by itself, in millionths of epsilon."""
        if pure_epsilon(event, self.budget.unit) is not None:
            return micro_epsilon(event, self.budget.unit)
        return epsilon_for(event, self.budget.delta, self.budget.unit) * MICRO
