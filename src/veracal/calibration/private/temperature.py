"""One private temperature."""

import math
from typing import Literal, Self

import numpy as np
from scipy import stats

from veracal import _checks
from veracal.accounting import MICRO, Event, Relation, Unit
from veracal.calibration.bins import Bins
from veracal.calibration.maps.parametric import Temperature
from veracal.calibration.private.gradient_descent import DescentPlan, descend
from veracal.calibration.private.root_search import Posterior, check_range, posterior, probed
from veracal.calibration.private.session import (
    PricedQuery,
    PrivateFitter,
    QuerySession,
    check_affordable,
    price,
    split,
)
from veracal.calibration.queries.binned import CorrectWrong
from veracal.calibration.queries.records import softplus
from veracal.calibration.queries.scalars import Gap, TemperatureGradient
from veracal.data import Estimate
from veracal.ledger import Item
from veracal.queries import Query, Source

Method = Literal["search", "descent"]
SHARES = (15, 12, 24, 49)  # of a search's epsilon: the counts, then three gaps
START = math.log(math.e - 1)  # the parameter of an inverse temperature of 1
COVERS = "the temperature, and every answer that led to it"


class PrivateTemperature(PrivateFitter):
    r"""A temperature fitted by noisy answers of whoever holds the records.

    ``"search"`` looks for where the mean confidence equals the accuracy. It asks for the
    numbers of right and wrong predictions, then three times for the gap between right
    predictions and sum of confidences (Luo et al. 2020, https://arxiv.org/abs/2008.09643),
    each time where the answers so far put the root
    (:mod:`veracal.calibration.private.root_search`). It costs pure epsilon, split
    :math:`15 : 12 : 24 : 49` over the four questions.

    ``"descent"`` is noisy gradient descent on the log likelihood as in Zhang et al. 2022
    (https://arxiv.org/abs/2210.08248): inverse temperature :math:`\log(1 + e^p)`, 100
    full-batch steps, slopes clipped at 10, a learning rate of 0.1 that falls to zero. It needs
    a delta, a declared number of records, and a source that answers with Gaussian noise.

    Parameters
    ----------
    method : {"search", "descent"}
    epsilon, micro_epsilon : float or int
        What one unit of the records pays for the fit; one of the two.
    delta : float, optional
        For descent.
    classes : int, optional
        Public number of classes, which makes a little less noise do under replace-one.
    inverses : pair of float
        Public range of inverse temperatures.
    size : int, optional
        For descent: *declared* number of records.
    clip, steps, learning_rate
        For descent.
    level : float
        Of the interval.

    Attributes
    ----------
    map_ : Temperature
    temperature_ : Estimate
        The temperature with an interval. For a search it counts the noise and the chance of
        which records there are, as far as the model of the search holds; for descent the noise
        alone. Its ``n`` is the noisy or the declared number of records.
    releases_ : tuple of Release
        Every answer.
    private_ : bool
        Whether all of them are protected.
    statement_ : Statement or None

    Guarantees
    ----------
    Everything learnt from the records passes :meth:`Source.answer` (or ``answer_gaussian``),
    which charges before it reads; what is made of the answers costs nothing more. The cost is
    :meth:`event`, known beforehand. The questions depend on nothing but earlier answers, so a
    fit that was interrupted asks the same ones again, which a source answers as before and for
    nothing. Under add-remove nothing is divided by the true number of records.

    Examples
    --------
    >>> from veracal.data import Scores
    >>> from veracal.queries import Public
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0.5, 1, size=4_000)
    >>> labels = (rng.uniform(size=4_000) < p).astype(int)
    >>> overconfident = Scores.from_logits(3 * np.log(p / (1 - p)), labels)
    >>> found = PrivateTemperature(epsilon=1.0).fit(Public(overconfident))
    >>> round(found.map_.value), found.private_
    (3, False)
    """

    keeps = True

    def __init__(
        self,
        method: Method = "search",
        *,
        epsilon: float | None = None,
        micro_epsilon: int | None = None,
        delta: float | None = None,
        classes: int | None = None,
        inverses: tuple[float, float] = (0.05, 20.0),
        size: int | None = None,
        clip: float = 10.0,
        steps: int = 100,
        learning_rate: float = 0.1,
        level: float = 0.95,
    ) -> None:
        self.method = method
        self.epsilon = epsilon
        self.micro_epsilon = micro_epsilon
        self.delta = delta
        self.classes = classes
        self.inverses = inverses
        self.size = size
        self.clip = clip
        self.steps = steps
        self.learning_rate = learning_rate
        self.level = level

    def event(self, relation: Relation = "add-remove", unit: Unit | None = None) -> Event:
        """Cost of one fit, known before any record is read."""
        if self._descends():
            return self._plan().event(self._slope(START, 0), relation, unit)
        return super().event(relation, unit)

    def items(
        self,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        part: str | None = None,
    ) -> list[Item]:
        """Lines of a plan, for a ledger that is opened for this fit."""
        if self._descends():
            return self._plan().items(self._slope(START, 0), relation, unit, part)
        return super().items(relation, unit, part)

    def fit(self, source: Source, *, request: str | None = None) -> Self:
        """Ask a source until the temperature is known.

        Parameters
        ----------
        source : Source
        request : str, optional
            Id of the fit, for a source that was asked before and should answer anew. Without
            one every question is its own id.
        """
        return (self._descend if self._descends() else self._search)(source, request)

    def _search(self, source: Source, request: str | None) -> Self:
        """Close in on where confidence and accuracy meet."""
        inquiry = QuerySession(source, request)
        inquiry.afford(self.items)
        found = probed(inquiry, self._asks(), check_range(self.inverses))
        wide = posterior(found.probes, found.setting, sampled=True)
        self.temperature_ = self._estimate(found.inverse, wide, found.n)
        return self._keep(Temperature(found.inverse), found.releases, source, covers=COVERS)

    def _estimate(self, inverse: float, wide: Posterior, n: int) -> Estimate:
        """The temperature and its interval, which holds it."""
        ends = [1 / wide.inverse((1 + sign * self.level) / 2) for sign in (1, -1)]
        value = 1 / inverse
        return Estimate(value, min(ends[0], value), max(ends[1], value), self.level, n)

    def _descend(self, source: Source, request: str | None) -> Self:
        """Follow noisy slopes."""
        check_affordable(source, self.items, request)
        plan = self._plan()
        made = descend(
            plan,
            source,
            np.array([START]),
            lambda p, step: self._slope(float(p[0]), step),
            request=request,
        )
        reach = float(stats.norm.ppf((1 + self.level) / 2)) * made.std
        p = float(made.parameters[0])
        inverse, low, high = (self._inside(softplus(p + d)) for d in (0.0, reach, -reach))
        self.temperature_ = Estimate(1 / inverse, 1 / low, 1 / high, self.level, int(plan.size))
        assert self.delta is not None
        return self._keep(
            Temperature(inverse), made.releases, source, covers=COVERS, delta=self.delta
        )

    def _asks(self) -> list[PricedQuery]:
        """The questions of a search, with places for temperatures that are not known yet."""
        parts = split(price(self.epsilon, self.micro_epsilon), SHARES)
        gap = Gap(classes=self.classes)
        return [
            PricedQuery(CorrectWrong(Bins(1)), parts[0]),
            *(PricedQuery(gap, part) for part in parts[1:]),
        ]

    def _plan(self) -> DescentPlan:
        """The steps of a descent."""
        if self.delta is None or self.size is None:
            raise ValueError(
                "Expected a delta and a declared size for descent, got "
                f"delta={self.delta!r}, size={self.size!r}. Declare both, or use 'search'."
            )
        epsilon = price(self.epsilon, self.micro_epsilon) / MICRO
        return DescentPlan(epsilon, self.delta, self.size, self.steps, self.learning_rate)

    def _slope(self, parameter: float, step: int) -> Query:
        """The question of one step."""
        return TemperatureGradient(parameter, self.clip, step)

    def _descends(self) -> bool:
        """Which method it is."""
        _checks.one_of(("search", "descent"), method=self.method)
        check_range(self.inverses)
        if not 0 < self.level < 1:
            raise ValueError(f"Expected level between 0 and 1, got level={self.level!r}.")
        return self.method == "descent"

    def _inside(self, inverse: float) -> float:
        """The inverse temperature of the range that is nearest."""
        low, high = check_range(self.inverses)
        return min(max(inverse, low), high)
