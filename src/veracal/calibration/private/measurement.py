"""Which questions a private measurement asks, and what each of them costs.

Figures of calibration, made of noisy answers.

Calibration measured on private records, and released.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from veracal import _checks
from veracal._types import Floats, Frozen
from veracal.accounting import Event, Relation, Statement, Unit, rounded_up
from veracal.calibration.bins import Bins
from veracal.calibration.private.estimates import (
    Noisy,
    NoisyAbsolute,
    count_estimate,
    mean_estimate,
    noisy_numbers,
    share_estimate,
)
from veracal.calibration.private.session import (
    PricedQuery,
    QuerySession,
    composed,
    planned,
    price,
    split,
    stated,
    total_of,
    unit_of,
)
from veracal.calibration.queries.binned import (
    AbsoluteGaps,
    BinnedGap,
    BrierByGroup,
    CorrectWrong,
)
from veracal.calibration.queries.records import Groups
from veracal.data import Estimate
from veracal.ledger import Item
from veracal.queries import Brier, Query, Release, Source, is_multi_source

Figure = Literal["accuracy", "ece", "brier", "curve"]
FIGURES: tuple[Figure, ...] = get_args(Figure)
QUESTIONS = ("counts", "ece", "gaps", "bins", "brier")


@dataclass(frozen=True)
class MeasurementPlan:
    """Questions of a private measurement, fixed before the first of them is asked.

    Attributes
    ----------
    figures : tuple of str
    bins : Bins
    groups : Groups or None
    by_bins : bool
        Whether the calibration error is made of noisy sums by bin, as it must be where several
        sources answer, instead of one noisy number.
    asks : mapping of str to Ask
        What is asked, under names.
    """

    figures: tuple[Figure, ...]
    bins: Bins
    groups: Groups | None
    by_bins: bool
    asks: Mapping[str, PricedQuery]

    @property
    def micro_epsilon(self) -> int:
        """What one unit pays for all answers together, in millionths of epsilon."""
        return sum(ask.micro_epsilon for ask in self.asks.values())

    def event(self, relation: Relation = "add-remove", unit: Unit | None = None) -> Event:
        """Cost of the measurement, known before any record is read."""
        return composed(ask.event(relation, unit) for ask in self.asks.values())

    def items(
        self,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        part: str | None = None,
    ) -> list[Item]:
        """Lines of a plan, for a ledger that is opened for this measurement."""
        return planned(self.asks.values(), relation, unit, part)

    def text(self) -> str:
        """The split of the budget, for people."""
        lines = [
            f"  {rounded_up(ask.micro_epsilon / 1e6, 6):<9} {name} ({ask.query.name}, "
            f"{ask.query.entries} numbers)"
            for name, ask in self.asks.items()
        ]
        return "\n".join([f"epsilon = {rounded_up(self.micro_epsilon / 1e6, 6)}, for", *lines])


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
    """Split a budget over the questions of a measurement.

    Right and wrong predictions are always asked for: their sum is the number of records, which
    is private, too. Shares: 1 for these, 2 for the calibration error, 2 for the Brier score
    (which reaches to 2), 4 for a curve; by group the same again.

    Parameters
    ----------
    epsilon, micro_epsilon : float or int
        What one unit pays for everything; one of the two.
    figures : sequence of {"accuracy", "ece", "brier", "curve"}
    bins : int
    group : str, optional
        Attribute by which all figures are told apart, beside the overall ones.
    group_names : sequence of str
        Declared groups of it; they are public.
    by_bins : bool
        Ask for sums by bin instead of one number for the calibration error.

    Examples
    --------
    >>> plan = plan_measurement(epsilon=0.5, figures=["accuracy", "ece"])
    >>> {name: ask.micro_epsilon for name, ask in plan.asks.items()}
    {'counts': 166666, 'ece': 333333}
    """
    chosen = tuple(figures)
    if not chosen or isinstance(figures, str):
        raise ValueError(f"Expected one figure or more, got figures={figures!r}.")
    for figure in chosen:
        _checks.one_of(FIGURES, figures=figure)
    groups = None if group is None else Groups(group, tuple(group_names))
    made = Bins(bins)
    wanted: dict[str, tuple[Query, int]] = {}
    for told in (None,) if groups is None else (None, groups):
        wanted |= _questions(chosen, made, told, by_bins)
    parts = split(price(epsilon, micro_epsilon), [share for _, share in wanted.values()])
    asks = {
        name: PricedQuery(query, part)
        for (name, (query, _)), part in zip(wanted.items(), parts, strict=True)
    }
    return MeasurementPlan(chosen, made, groups, by_bins, Frozen(asks))


def _questions(
    figures: Sequence[Figure], bins: Bins, groups: Groups | None, by_bins: bool
) -> dict[str, tuple[Query, int]]:
    """Questions about all records, or about every group, with their shares."""
    found: dict[str, tuple[Query, int]] = {"counts": (CorrectWrong(Bins(1), groups=groups), 1)}
    curve, ece = "curve" in figures, "ece" in figures
    if ece and not by_bins:
        found["ece"] = AbsoluteGaps(bins, groups=groups), 2
    if curve or (ece and by_bins):  # the curve's gaps serve for both
        found["gaps"] = BinnedGap(bins, groups=groups), 2
    if curve:
        found["bins"] = CorrectWrong(bins, groups=groups), 2
    if "brier" in figures:
        found["brier"] = (Brier() if groups is None else BrierByGroup(groups)), 2
    suffix = "" if groups is None else f" by {groups.name}"
    return {f"{name}{suffix}": value for name, value in found.items()}


_GAUSSIAN = 2 / math.pi  # squared mean absolute value of a standard Gaussian


@dataclass(frozen=True)
class PrivateCurve:
    """A reliability curve from noisy sums by bin.

    Attributes
    ----------
    bins : Bins
    counts : tuple of Estimate
        Records in each bin.
    accuracies : tuple of Estimate
        Share of right predictions in each bin; None where too few are there to tell.
    confidences : tuple of float
        Mean confidence in each bin, kept within the bin; its center where it is not known.
    """

    bins: Bins
    counts: tuple[Estimate, ...]
    accuracies: tuple[Estimate, ...]
    confidences: tuple[float, ...]


@dataclass(frozen=True)
class PrivateFigures:
    """What was measured of all records, or of one group; None where it was not asked for.

    Attributes
    ----------
    count : Estimate
        Number of records.
    accuracy, ece, brier : Estimate or None
        Intervals hold the noise and the chance of which records there were. The calibration
        error is that of these many records in these bins: it is above zero even for a perfectly
        calibrated classifier, by ``ece_floor`` at most on average.
    ece_floor : float or None
        What a perfectly calibrated classifier shows with this many records, at most.
    ece_noise_bias : float or None
        By how much noise on every bin raises the calibration error, at most on average; 0
        where the one number was asked for.
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
        """Everything as what JSON can hold."""
        written = asdict(self)
        if self.curve is not None:
            written["curve"]["bins"] = self.curve.bins.count
        return written


def figures_of(
    plan: MeasurementPlan, answers: Mapping[str, Sequence[Noisy]], level: float
) -> PrivateFigures:
    """Figures from the answers about some records.

    Parameters
    ----------
    plan : MeasurementPlan
    answers : mapping of str to list of Noisy
        Under the names of the plan.
    level : float
    """
    correct, wrong = answers["counts"]
    count = count_estimate(correct, wrong, level)
    ece, bias = _ece(plan, answers, level)
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


def _ece(
    plan: MeasurementPlan, answers: Mapping[str, Sequence[Noisy]], level: float
) -> tuple[Estimate | None, float | None]:
    """Calibration error, and what noise adds to it."""
    if "ece" not in plan.figures:
        return None, None
    correct, wrong = answers["counts"]
    total, bias = absolute_total(answers["gaps"]) if plan.by_bins else (answers["ece"][0], 0.0)
    made = mean_estimate(total, correct, wrong, level, most=1.0, spread=_ece_spread)
    return made, bias / max(correct.value + wrong.value, 1.0)


def _ece_spread(low: float, high: float, most: float) -> float:
    r"""Variance of n times the calibration error, divided by n, at most about.

    Leaving a record out moves :math:`\sum_b |S_b|` by at most its own :math:`|g|`, so the
    variance is at most :math:`n E g^2` (Efron and Stein 1981). In a bin :math:`E g^2` is at
    most a quarter, for being right or not, and the square of the bin's gap, which averages to
    less than the calibration error.
    """
    return min(0.25 + high, most)


def absolute_total(gaps: Sequence[Noisy]) -> tuple[Noisy, float]:
    r"""Sum of absolute noisy sums, and by how much noise raises it, at most on average.

    A noise of scale s raises :math:`|S|` by :math:`s e^{-|S|/s}` on average, which is most
    where S is zero: the mean absolute noise. That of one Laplace noise is its standard
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
    r"""Calibration error that a perfectly calibrated classifier shows, at most on average.

    In a bin with :math:`n_b` records :math:`E|S_b| \le \sqrt{n_b / 4}`; over all bins that is
    most with equal numbers: :math:`\tfrac12 \sqrt{B / n}`.

    Examples
    --------
    >>> ece_floor(15, 1_500)
    0.05
    """
    return min(0.5 * math.sqrt(bins / n), 1.0) if n > 0 else 1.0


def _curve(bins: Bins, answers: Mapping[str, Sequence[Noisy]], level: float) -> PrivateCurve:
    """A reliability curve."""
    sides, gaps = answers["bins"], answers["gaps"]
    pairs = list(zip(sides[0::2], sides[1::2], strict=True))
    accuracies = tuple(share_estimate(right, wrong, level) for right, wrong in pairs)
    return PrivateCurve(
        bins,
        tuple(count_estimate(right, wrong, level) for right, wrong in pairs),
        accuracies,
        tuple(
            _confidence(bins.edges[b : b + 2], accuracy, pairs[b], gaps[b])
            for b, accuracy in enumerate(accuracies)
        ),
    )


def _confidence(
    edges: Floats, accuracy: Estimate, pair: tuple[Noisy, Noisy], gap: Noisy
) -> float:
    """Mean confidence of a bin, which lies within it."""
    if accuracy.value is None:
        return float(edges.mean())
    right, wrong = pair
    mean = (right.value - gap.value) / (right.value + wrong.value)
    return float(np.clip(mean, *edges))


COVERS = "all figures of the measurement, and the answers they were made of"


@dataclass(frozen=True)
class PrivateMeasurement:
    """Figures of calibration that may be shown.

    Attributes
    ----------
    overall : PrivateFigures
    groups : mapping of group name to PrivateFigures
    plan : MeasurementPlan
        What was asked, and how the budget was split.
    releases : mapping of str to Release
        The answers.
    unit : Unit
        Whom they protect.
    ledger_total : str or None
        Total of the ledger that paid, in a sentence; None where it is not known here.
    """

    overall: PrivateFigures
    groups: Mapping[str, PrivateFigures]
    plan: MeasurementPlan
    releases: Mapping[str, Release]
    unit: Unit
    ledger_total: str | None = None

    @property
    def private(self) -> bool:
        """Whether all answers are protected."""
        return all(release.private for release in self.releases.values())

    @property
    def statement(self) -> Statement | None:
        """What the measurement promises; None where nothing protects it."""
        return stated(
            tuple(self.releases.values()),
            self.unit,
            covers=COVERS,
            ledger_total=self.ledger_total,
        )

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        return {
            "private": self.private,
            "micro_epsilon": self.plan.micro_epsilon,
            "split": {name: ask.micro_epsilon for name, ask in self.plan.asks.items()},
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
    r"""Measure accuracy and calibration of private records, with noise, to be shown.

    The calibration error (top label, bins of equal width) is :math:`\sum_b |S_b| / n`, with
    :math:`S_b` the sum of right or not minus confidence in bin b. One source is asked for the
    one number :math:`\sum_b |S_b|`. Of several sources that number is not the sum of theirs, so
    a :class:`~veracal.queries.Pool` is asked for every :math:`S_b`, whose noises raise the
    figure; ``ece_noise_bias`` says by how much.

    Parameters
    ----------
    source : Source
    epsilon, micro_epsilon : float or int
        What one unit of the records pays for everything; one of the two. It is split as
        :func:`plan_measurement` says.
    figures : sequence of {"accuracy", "ece", "brier", "curve"}
    bins : int
    group, group_names
        Attribute by which to tell figures apart, and its declared groups.
    level : float
        Of the intervals.
    request : str, optional
        Id of the measurement, to ask anew. Without one every question is its own id, and asking
        again repeats the answers for nothing.

    Guarantees
    ----------
    Everything is made of answers of the source, charged before a record is read. One record
    moves one entry of each answer (two if it is replaced), by at most 1 (by 2 for the Brier
    score). Numbers of records are asked for with noise, of groups, too. Whatever the noise
    does, no figure is NaN: see :mod:`veracal.calibration.private.estimates`.
    """
    if not 0 < level < 1:
        raise ValueError(f"Expected level between 0 and 1, got level={level!r}.")
    plan = plan_measurement(
        epsilon=epsilon,
        micro_epsilon=micro_epsilon,
        figures=figures,
        bins=bins,
        group=group,
        group_names=group_names,
        by_bins=is_multi_source(source),
    )
    return measure_planned(source, plan, level=level, request=request)


def measure_planned(
    source: Source, plan: MeasurementPlan, *, level: float = 0.95, request: str | None = None
) -> PrivateMeasurement:
    """Ask the questions of a plan; see :func:`measure_private`."""
    inquiry = QuerySession(source, request)
    inquiry.afford(plan.items)
    group = None if plan.groups is None else plan.groups.name
    # Of groups first: if the records have none such, that is told before anything is charged.
    order = sorted(plan.asks, key=lambda name: not name.endswith(f" by {group}"))
    for name in order:
        inquiry.ask(plan.asks[name], name)
    given = dict(zip(order, inquiry.answers, strict=True))  # all of them of the same sources
    releases = {name: given[name] for name in plan.asks}
    names = () if plan.groups is None else plan.groups.names
    told = {
        name: figures_of(plan, _answers(releases, f" by {group}", len(names), i), level)
        for i, name in enumerate(names)
    }
    overall = figures_of(plan, _answers(releases, "", 1, 0), level)
    return PrivateMeasurement(overall, told, plan, releases, unit_of(source), total_of(source))


def _answers(
    releases: Mapping[str, Release], suffix: str, parts: int, i: int
) -> dict[str, list[Noisy]]:
    """The answers about one of several groups: an equal share of each, in order."""
    found = {}
    for name in QUESTIONS:
        if (release := releases.get(f"{name}{suffix}")) is not None:
            numbers = noisy_numbers(release)
            each = len(numbers) // parts
            found[name] = numbers[i * each : (i + 1) * each]
    return found
