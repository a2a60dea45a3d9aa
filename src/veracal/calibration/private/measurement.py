"""Private measurement of calibration: planned queries, estimates, and the released result."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from veracal import _checks
from veracal.accounting import Statement, Unit, format_up
from veracal.calibration.bins import Bins
from veracal.calibration.private.estimates import (
    NoisyAbsolute,
    NoisyValue,
    count_estimate,
    mean_estimate,
    noisy_values,
    share_estimate,
)
from veracal.calibration.private.session import (
    PlannedQueries,
    QuerySession,
    combined_statement,
    divide_over_queries,
    ledger_total_of,
    micro_epsilon_of,
    unit_of,
)
from veracal.calibration.queries.binned import (
    AbsoluteGaps,
    BinnedGap,
    BrierByGroup,
    CorrectWrong,
    Groups,
)
from veracal.data import Estimate
from veracal.queries import Brier, MultiSource, Query, QueryRequest, Release, Source

Figure = Literal["accuracy", "ece", "brier", "curve"]
FIGURES: tuple[Figure, ...] = get_args(Figure)
QUERIES = ("counts", "ece", "gaps", "bins", "brier")


@dataclass(frozen=True)
class MeasurementPlan(PlannedQueries):
    """Queries of a private measurement, fixed before the first of them.

    Attributes
    ----------
    figures : tuple of str
    bins : Bins
    groups : Groups or None
    by_bins : bool
        Whether the calibration error is computed from noisy sums by bin, as required for
        several sources, instead of one noisy number.
    queries : mapping of str to QueryRequest
        The queries by name.
    """

    figures: tuple[Figure, ...]
    bins: Bins
    groups: Groups | None
    by_bins: bool
    queries: Mapping[str, QueryRequest]

    @property
    def micro_epsilon(self) -> int:
        """Cost of all answers for each privacy unit, in millionths of epsilon."""
        return sum(query.micro_epsilon or 0 for query in self.queries.values())

    def _plan(self, unit: Unit) -> list[tuple[QueryRequest, int]]:
        return [(request, 1) for request in self.queries.values()]

    def text(self) -> str:
        """The division of the budget in words."""
        lines = [
            f"  {format_up((query.micro_epsilon or 0) / 1e6, 6):<9} {name} "
            f"({query.query.name}, {query.query.entries} numbers)"
            for name, query in self.queries.items()
        ]
        return "\n".join([f"epsilon = {format_up(self.micro_epsilon / 1e6, 6)}, for", *lines])


def plan_measurement(
    *,
    epsilon: float | None = None,
    micro_epsilon: int | None = None,
    figures: Sequence[Figure] = ("accuracy", "ece", "brier"),
    bins: int = 15,
    group: str | None = None,
    group_names: Sequence[str] = (),
    by_bins: bool = False,
) -> MeasurementPlan:
    """Divide a budget over the queries of a measurement.

    Correct and wrong predictions are always queried, because their sum is the number of
    records, which is private. Shares: 1 for these, 2 for the calibration error, 2 for the
    Brier score (whose range is 2), 4 for a curve; the same again by group.

    Parameters
    ----------
    epsilon, micro_epsilon : float or int
        Total cost for each privacy unit; one of the two.
    figures : sequence of {"accuracy", "ece", "brier", "curve"}
    group : str, optional
        Attribute by which all figures are broken down, in addition to the overall ones.
    group_names : sequence of str
        Its declared groups, which are public.
    by_bins : bool
        Query sums by bin instead of one number for the calibration error.

    Examples
    --------
    >>> plan = plan_measurement(epsilon=0.5, figures=["accuracy", "ece"])
    >>> {name: query.micro_epsilon for name, query in plan.queries.items()}
    {'counts': 166666, 'ece': 333333}
    """
    chosen = tuple(figures)
    if not chosen or isinstance(figures, str):
        raise ValueError(f"Expected one figure or more, got figures={figures!r}.")
    for figure in chosen:
        _checks.one_of(FIGURES, figures=figure)
    groups = None if group is None else Groups(group, tuple(group_names))
    edges, curve, ece = Bins(bins), "curve" in chosen, "ece" in chosen
    shares: dict[str, tuple[Query, int]] = {}
    for within in (None,) if groups is None else (None, groups):
        suffix = "" if within is None else f" by {within.name}"
        shares["counts" + suffix] = CorrectWrong(Bins(1), groups=within), 1
        if ece and not by_bins:
            shares["ece" + suffix] = AbsoluteGaps(edges, groups=within), 2
        if curve or (ece and by_bins):  # one query serves both
            shares["gaps" + suffix] = BinnedGap(edges, groups=within), 2
        if curve:
            shares["bins" + suffix] = CorrectWrong(edges, groups=within), 2
        if "brier" in chosen:
            brier = Brier() if within is None else BrierByGroup(within)
            shares["brier" + suffix] = brier, 2
    total = micro_epsilon_of(epsilon, micro_epsilon)
    return MeasurementPlan(chosen, edges, groups, by_bins, divide_over_queries(total, shares))


_GAUSSIAN = 2 / math.pi  # squared mean absolute value of a standard Gaussian


@dataclass(frozen=True)
class PrivateCurve:
    """A reliability curve from noisy sums by bin.

    Attributes
    ----------
    bins : Bins
    counts : tuple of Estimate
        Number of records in each bin.
    accuracies : tuple of Estimate
        Share of correct predictions in each bin; None for too few records.
    confidences : tuple of float
        Mean confidence in each bin, clipped to the bin; its center if the accuracy is None.
    """

    bins: Bins
    counts: tuple[Estimate, ...]
    accuracies: tuple[Estimate, ...]
    confidences: tuple[float, ...]


@dataclass(frozen=True)
class PrivateFigures:
    """Figures of all records or of one group; None if not measured.

    Attributes
    ----------
    count : Estimate
        Number of records.
    accuracy, ece, brier : Estimate or None
        Intervals cover noise and sampling. The calibration error has the bias of binned
        estimates: for a perfectly calibrated classifier it is ``ece_floor`` at most on average.
    ece_floor : float or None
        Upper bound on the mean calibration error of a perfectly calibrated classifier.
    ece_noise_bias : float or None
        Upper bound on the mean increase of the calibration error by noise on every bin; 0 if
        one number was queried.
    curve : PrivateCurve or None
    """

    count: Estimate
    accuracy: Estimate | None = None
    ece: Estimate | None = None
    brier: Estimate | None = None
    ece_floor: float | None = None
    ece_noise_bias: float | None = None
    curve: PrivateCurve | None = None

    def to_json(self) -> dict[str, Any]:
        """All attributes as JSON values."""
        data = asdict(self)
        if self.curve is not None:
            data["curve"]["bins"] = self.curve.bins.count
        return data


def private_figures(
    plan: MeasurementPlan, answers: Mapping[str, Sequence[NoisyValue]], level: float
) -> PrivateFigures:
    """Figures from the answers about some records.

    Parameters
    ----------
    answers : mapping of str to list of NoisyValue
        Noisy values by the names of the plan.
    """
    correct, wrong = answers["counts"]
    count = count_estimate(correct, wrong, level)
    ece = bias = None
    if "ece" in plan.figures:
        total, bias = (
            absolute_gap_total(answers["gaps"]) if plan.by_bins else (answers["ece"][0], 0.0)
        )
        ece = mean_estimate(total, correct, wrong, level, most=1.0, spread=_ece_spread)
        bias /= max(correct.value + wrong.value, 1.0)
    brier = answers.get("brier")
    return PrivateFigures(
        count=count,
        accuracy=share_estimate(correct, wrong, level) if "accuracy" in plan.figures else None,
        ece=ece,
        brier=mean_estimate(brier[0], correct, wrong, level, most=2.0) if brier else None,
        ece_floor=None if ece is None else ece_floor(plan.bins.count, count.n),
        ece_noise_bias=bias,
        curve=_curve(plan.bins, answers, level) if "curve" in plan.figures else None,
    )


def _ece_spread(low: float, high: float, most: float) -> float:
    r"""Upper bound on n times the variance of the calibration error, approximately.

    Removing a record changes :math:`\sum_b |S_b|` by at most its own :math:`|g|`, so the
    variance is at most :math:`n E g^2` (Efron and Stein 1981). In a bin :math:`E g^2` is at
    most a quarter (the variance of the outcome) plus the square of the bin's gap, which
    averages to less than the calibration error.
    """
    return min(0.25 + high, most)


def absolute_gap_total(gaps: Sequence[NoisyValue]) -> tuple[NoisyValue, float]:
    r"""Sum of absolute noisy sums, and an upper bound on its mean bias by noise.

    Noise of scale s increases :math:`|S|` by :math:`s e^{-|S|/s}` on average, at most by the
    mean absolute noise (at S = 0). That of one Laplace noise is its standard
    deviation divided by :math:`\sqrt 2`; that of a sum of several is at most
    :math:`\sqrt{2/\pi}` of it, as of a Gaussian.
    """
    bias = sum(
        gap.std * (math.sqrt(0.5 if len(gap.noises) == 1 else _GAUSSIAN)) for gap in gaps
    )
    noises = tuple(noise for gap in gaps for noise in gap.noises)
    std = math.sqrt(sum(gap.std**2 for gap in gaps))
    total = sum(abs(gap.value) for gap in gaps)
    return NoisyAbsolute(total, std, noises, gaps[0].step), bias


def ece_floor(bins: int, n: int) -> float:
    r"""Upper bound on the mean calibration error of a perfectly calibrated classifier.

    In a bin with :math:`n_b` records :math:`E|S_b| \le \sqrt{n_b / 4}`; the sum over
    bins is largest for equal counts: :math:`\tfrac12 \sqrt{B / n}`.

    Examples
    --------
    >>> ece_floor(15, 1_500)
    0.05
    """
    return min(0.5 * math.sqrt(bins / n), 1.0) if n > 0 else 1.0


def _curve(
    bins: Bins, answers: Mapping[str, Sequence[NoisyValue]], level: float
) -> PrivateCurve:
    """A reliability curve; mean confidences are clipped to their bins."""
    counts, gaps = answers["bins"], answers["gaps"]
    pairs = list(zip(counts[0::2], counts[1::2], strict=True))
    accuracies = tuple(share_estimate(correct, wrong, level) for correct, wrong in pairs)
    confidences = []
    for b, (correct, wrong) in enumerate(pairs):
        edges = bins.edges[b : b + 2]
        if accuracies[b].value is None:
            confidences.append(float(edges.mean()))
        else:
            mean = (correct.value - gaps[b].value) / (correct.value + wrong.value)
            confidences.append(float(np.clip(mean, *edges)))
    return PrivateCurve(
        bins,
        tuple(count_estimate(correct, wrong, level) for correct, wrong in pairs),
        accuracies,
        tuple(confidences),
    )


COVERS = "all figures of the measurement and the answers used for them"


@dataclass(frozen=True)
class PrivateMeasurement:
    """A private measurement of calibration that may be published.

    Attributes
    ----------
    overall : PrivateFigures
    groups : mapping of group name to PrivateFigures
    plan : MeasurementPlan
        The queries and the division of the budget.
    releases : mapping of str to Release
        The answers.
    unit : Unit
        Privacy unit.
    ledger_total : str or None
        Total of the ledger that was charged, in words; None if it is not known here.
    """

    overall: PrivateFigures
    groups: Mapping[str, PrivateFigures]
    plan: MeasurementPlan
    releases: Mapping[str, Release]
    unit: Unit
    ledger_total: str | None = None

    @property
    def private(self) -> bool:
        """Whether all answers are protected by noise."""
        return all(release.private for release in self.releases.values())

    @property
    def statement(self) -> Statement | None:
        """The privacy guarantee of the measurement; None for public records."""
        return combined_statement(
            tuple(self.releases.values()),
            self.unit,
            covers=COVERS,
            ledger_total=self.ledger_total,
        )

    def to_json(self) -> dict[str, Any]:
        """All figures and costs as JSON values."""
        return {
            "private": self.private,
            "micro_epsilon": self.plan.micro_epsilon,
            "split": {name: query.micro_epsilon for name, query in self.plan.queries.items()},
            "overall": self.overall.to_json(),
            "groups": {name: figures.to_json() for name, figures in self.groups.items()},
        }


def measure_private(
    source: Source,
    *,
    epsilon: float | None = None,
    micro_epsilon: int | None = None,
    figures: Sequence[Figure] = ("accuracy", "ece", "brier"),
    bins: int = 15,
    group: str | None = None,
    group_names: Sequence[str] = (),
    level: float = 0.95,
    request: str | None = None,
) -> PrivateMeasurement:
    r"""Measure accuracy and calibration of private records with noise, for publication.

    The calibration error (top label, bins of equal width) is :math:`\sum_b |S_b| / n`, with
    :math:`S_b` the sum of correctness minus confidence in bin b. A single source answers the
    one number :math:`\sum_b |S_b|`. It does not add up over sources, so a
    :class:`~veracal.queries.Pool` answers every :math:`S_b`, whose noise increases the figure;
    ``ece_noise_bias`` bounds the increase.

    Parameters
    ----------
    epsilon, micro_epsilon : float or int
        What one unit of the records pays for everything; one of the two. It is divided
        by :func:`plan_measurement`.
    figures : sequence of {"accuracy", "ece", "brier", "curve"}
    group, group_names
        Attribute by which figures are broken down, and its declared groups.
    level : float
        Confidence level of the intervals.
    request : str, optional
        Request id of the measurement, for fresh answers. Without one every query is its own id,
        and repeating the measurement returns the same answers at no cost.

    Guarantees
    ----------
    All figures are computed from answers of the source, charged before a record is read. One
    record changes one entry of each answer (two if it is replaced) by at most 1 (by 2 for the
    Brier score). Numbers of records and of group members are noisy. No figure is NaN, whatever
    the noise: see :mod:`veracal.calibration.private.estimates`.
    """
    _checks.open_fraction(level=level)
    plan = plan_measurement(
        epsilon=epsilon,
        micro_epsilon=micro_epsilon,
        figures=figures,
        bins=bins,
        group=group,
        group_names=group_names,
        by_bins=isinstance(source, MultiSource),
    )
    return measure_planned(source, plan, level=level, request=request)


def measure_planned(
    source: Source, plan: MeasurementPlan, *, level: float = 0.95, request: str | None = None
) -> PrivateMeasurement:
    """Query a source according to a plan; see :func:`measure_private`."""
    session = QuerySession(source, request)
    session.check_affordable(plan.items)
    group = None if plan.groups is None else plan.groups.name
    # Groups first: if the records lack them, the error is raised before anything is charged.
    order = sorted(plan.queries, key=lambda name: not name.endswith(f" by {group}"))
    for name in order:
        session.ask(plan.queries[name], name)
    answers = dict(zip(order, session.answers, strict=True))  # all of the same sources
    releases = {name: answers[name] for name in plan.queries}

    def figures(suffix: str, i: int, n_groups: int) -> PrivateFigures:
        """Figures of one of several groups: an equal part of each answer, in order."""
        parts = dict[str, list[NoisyValue]]()
        for name in QUERIES:
            if name + suffix in releases:
                values = noisy_values(releases[name + suffix])
                size = len(values) // n_groups
                parts[name] = values[i * size : (i + 1) * size]
        return private_figures(plan, parts, level)

    names = () if plan.groups is None else plan.groups.names
    by_group = {name: figures(f" by {group}", i, len(names)) for i, name in enumerate(names)}
    return PrivateMeasurement(
        figures("", 0, 1), by_group, plan, releases, unit_of(source), ledger_total_of(source)
    )
