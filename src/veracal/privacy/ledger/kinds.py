r"""How the costs of a ledger add up, in whole numbers, all rounded up.

Which rule is sound depends on who chooses the next cost. If all costs are known before the
first release, they may be composed by privacy-loss distributions, which is tight
(:mod:`veracal.privacy.ledger.plan`). If the next cost may depend on earlier answers, the rule
must be a *filter*, sound for costs chosen adaptively: sums of epsilon (:class:`Sums`,
:class:`Pairs`), or of Rényi divergence at one order fixed beforehand (:class:`Renyi`; Feldman
and Zrnic 2021, https://arxiv.org/abs/2008.11193). Composing the privacy-loss distributions of
adaptively chosen events, and stopping at the budget, is no filter: which list gets composed
then depends on the records, and the bound fails (https://arxiv.org/abs/2602.06756,
https://arxiv.org/abs/2602.15815).

A ledger has *accounts*, each with a total that is never exceeded. For a filter an account is
a part of the records; for a plan, or a run (:mod:`veracal.privacy.ledger.runs`), it is an item,
counted in uses. Within a run, whose list is fixed before its first release, costs compose as in
a plan; the runs of one ledger compose by its filter.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

from scipy import optimize

from veracal import _checks
from veracal.errors import BudgetError
from veracal.privacy.budget import Budget
from veracal.privacy.costs.accounting import epsilon_for
from veracal.privacy.costs.pure import MICRO, micro_epsilon, pure_epsilon
from veracal.privacy.costs.renyi import MOST_ORDER, rdp_at
from veracal.privacy.costs.statement import rounded_up
from veracal.privacy.events import Approximate, Event
from veracal.privacy.ledger.plan import Planned
from veracal.privacy.ledger.units import (
    ATTO,
    NANO,
    SLACK,
    Cost,
    as_written,
    decimal,
    not_free,
    storable,
    whole_budget,
    whole_cost,
)


@dataclass(frozen=True)
class Sums:
    """Pure epsilons, added up as integers.

    Guarantees
    ----------
    If costs chosen in any way, earlier answers included, sum to at most the total, then all
    answers together are epsilon-differentially private (Dwork et al. 2006; a filter by Rogers
    et al. 2016).
    """

    kind: ClassVar[Literal["pure", "open"]] = "pure"
    measure: ClassVar[str] = "epsilon"

    @property
    def words(self) -> str:
        """How costs add up, for people."""
        return "pure: epsilons are added up in whole millionths, each rounded up"

    def total(self, budget: Budget) -> Cost:
        """What one part may spend: the budget as it is written, in micro-epsilon."""
        if not budget.pure:
            raise ValueError(
                f"Expected delta=0 for a pure ledger, got delta={budget.delta!r}. A budget "
                "with a delta needs an open ledger or a plan."
            )
        return Cost(whole_budget(budget.epsilon, MICRO, "epsilon"))

    def cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of an event for one unit, rounded up."""
        _no_delta(delta)
        return not_free(Cost(micro_epsilon(event, budget.unit)))

    def run_cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of the whole list of a run, composed as one event."""
        return self.cost(event, budget, None)

    def privacy(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta that what was spent amounts to."""
        return spent.amount / MICRO, 0.0

    def left(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta that may still be spent."""
        return self.privacy(self.total(budget) - spent, budget)

    def figure(self, cost: Cost) -> str:
        """A cost, for people."""
        return decimal(cost.amount, MICRO)

    def to_json(self) -> dict[str, Any]:
        """Settings of the rule."""
        return {"kind": "pure"}


@dataclass(frozen=True)
class Pairs:
    """Epsilons and deltas, each added up.

    Guarantees
    ----------
    If (epsilon_i, delta_i) chosen in any way sum to at most (epsilon, delta), then all answers
    together are (epsilon, delta)-differentially private (Rogers et al. 2016).
    """

    kind: ClassVar[Literal["pure", "open"]] = "open"
    measure: ClassVar[str] = "(epsilon, delta)"

    @property
    def words(self) -> str:
        """How costs add up, for people."""
        return "open: epsilons and deltas are added up, each rounded up"

    def total(self, budget: Budget) -> Cost:
        """What one part may spend: the budget as it is written."""
        delta = math.floor(as_written(budget.delta) * ATTO)
        return Cost(whole_budget(budget.epsilon, MICRO, "epsilon"), delta)

    def cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of a pure or promised event, or of any at the delta that the caller names."""
        if isinstance(event, Approximate) and budget.unit.at_most == 1 and delta is None:
            # A promise as somebody wrote it, such as another ledger's whole budget.
            amount = math.ceil(as_written(event.epsilon) * MICRO)
            return not_free(Cost(amount, math.ceil(as_written(event.delta) * ATTO)))
        if delta is None:
            if pure_epsilon(event, budget.unit) is None:
                raise ValueError(
                    "Expected the delta at which to charge an event that is not pure, got "
                    "delta=None. Deltas add up too: name a part of the ledger's."
                )
            return not_free(Cost(micro_epsilon(event, budget.unit)))
        _checks.fraction(delta=delta)
        epsilon = epsilon_for(event, float(delta), budget.unit)
        return not_free(Cost(whole_cost(epsilon, MICRO), math.ceil(as_written(delta) * ATTO)))

    def run_cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Cost of the whole list of a run, composed as one event.

        Without a delta a pure list costs its exact epsilon. At a delta any list costs its
        epsilon there by PLD, as the accountant states it, so that a list whose noise was made
        for epsilon at that delta costs no more than epsilon as it is written.
        """
        exact = pure_epsilon(event, budget.unit)
        if delta is None and exact is not None:
            return not_free(Cost(math.ceil(exact * MICRO)))
        if delta is None or delta <= 0:
            raise ValueError(
                "A run whose list is not pure needs the delta at which it is charged; got "
                f"delta={delta!r}. Deltas add up over runs: name a part of the ledger's."
            )
        # In whole units, rounded down, so that a run at the ledger's own delta fits into it.
        units = math.floor(as_written(delta) * ATTO)
        charged = units / ATTO
        if Fraction(charged) > Fraction(units, ATTO):
            charged = math.nextafter(charged, 0.0)
        epsilon = epsilon_for(event, charged, budget.unit)
        if not math.isfinite(epsilon):
            raise BudgetError(
                "The run has no finite cost at its delta; nothing was charged and no record "
                "was read. Add noise, or name a larger delta."
            )
        amount = math.ceil(as_written(epsilon) * MICRO)
        return not_free(Cost(amount, units))

    def privacy(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta that what was spent amounts to."""
        return spent.amount / MICRO, spent.delta / ATTO

    def left(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta that may still be spent."""
        return self.privacy(self.total(budget) - spent, budget)

    def figure(self, cost: Cost) -> str:
        """A cost, for people."""
        return f"({decimal(cost.amount, MICRO)}, {rounded_up(cost.delta / ATTO)})"

    def to_json(self) -> dict[str, Any]:
        """Settings of the rule."""
        return {"kind": "open", "composition": "addition"}


@dataclass(frozen=True)
class Renyi:
    r"""Rényi divergences at one order, added up.

    A total R of divergence at order a gives, for every delta,

    .. math:: \varepsilon = R + \log\frac{a - 1}{a} - \frac{\log\delta + \log a}{a - 1}

    (Canonne, Kamath and Steinke 2020, Proposition 12), so the total is what the budget leaves
    for R.

    Guarantees
    ----------
    The order is fixed before the first charge, and the divergences, chosen in any way, sum to
    at most R; all answers together then keep the budget (Feldman and Zrnic 2021).
    """

    order: float
    kind: ClassVar[Literal["pure", "open"]] = "open"

    def __post_init__(self) -> None:
        _checks.positive(order=self.order)
        if not 1 < self.order <= MOST_ORDER:
            raise ValueError(
                f"Expected an order above 1, at most {MOST_ORDER}, got order={self.order!r}."
            )
        object.__setattr__(self, "order", float(self.order))

    @property
    def words(self) -> str:
        """How costs add up, for people."""
        return f"open: Rényi divergences of order {self.order:g} are added up, each rounded up"

    def total(self, budget: Budget) -> Cost:
        """What one part may spend, in nano-units of divergence."""
        left = budget.epsilon - conversion(self.order, budget.delta)
        units = math.floor(Fraction(left * (1 - SLACK)) * NANO) if left > 0 else 0
        if units < 1:
            raise ValueError(
                f"Expected a budget that Rényi divergence of order {self.order:g} can serve, "
                f"got epsilon={budget.epsilon!r} with delta={budget.delta!r}. Allow a larger "
                'delta, or add up by composition="addition".'
            )
        return Cost(storable(units))

    def cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Divergence of an event for one unit, rounded up."""
        _no_delta(delta)
        return not_free(Cost(whole_cost(rdp_at(event, self.order, budget.unit), NANO)))

    def run_cost(self, event: Event, budget: Budget, delta: float | None) -> Cost:
        """Divergence of the whole list of a run, composed as one event."""
        return self.cost(event, budget, None)

    def privacy(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon and delta that what was spent amounts to."""
        if spent.amount == 0:
            return 0.0, 0.0
        epsilon = spent.amount / NANO + conversion(self.order, budget.delta)
        return max(epsilon, 0.0), budget.delta

    def left(self, spent: Cost, budget: Budget) -> tuple[float, float]:
        """Epsilon that may still be spent, at the same delta."""
        return max(0.0, budget.epsilon - self.privacy(spent, budget)[0]), budget.delta

    @property
    def measure(self) -> str:
        """What is added up."""
        return f"Rényi divergence of order {self.order:g}"

    def figure(self, cost: Cost) -> str:
        """A cost, for people."""
        return decimal(cost.amount, NANO)

    def to_json(self) -> dict[str, Any]:
        """Settings of the rule."""
        return {"kind": "open", "composition": "rdp", "order": self.order}


Rule = Sums | Pairs | Renyi | Planned


def conversion(order: float, delta: float) -> float:
    """What turning Rényi divergence into epsilon adds, at one order."""
    if delta <= 0:
        return math.inf
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def best_order(budget: Budget) -> float:
    r"""Order at which a budget affords the most Gaussian noise events.

    The divergence of a Gaussian event grows in proportion to the order, so this maximizes
    :math:`(\varepsilon - \mathrm{conversion}(a, \delta)) / a`.

    Examples
    --------
    >>> best_order(Budget(1.0, 1e-5))
    17.81
    """
    if budget.pure:
        raise ValueError(
            "Expected a budget with a delta for a ledger of Rényi divergences, got delta=0."
        )

    def waste(log: float) -> float:
        order = 1 + math.exp(log)
        return (conversion(order, budget.delta) - budget.epsilon) / order

    found = optimize.minimize_scalar(
        waste, bounds=(-7, math.log(MOST_ORDER - 2)), method="bounded"
    )
    return max(1.001, float(f"{1 + math.exp(found.x):.4g}"))


def _no_delta(delta: float | None) -> None:
    """Refuse a delta where costs have none."""
    if delta is not None:
        raise ValueError(
            f"Expected no delta, got delta={delta!r}: only an open ledger that adds up pairs "
            "charges an event at a delta."
        )
