"""Calibration measured on private records, and released."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veracal.calibration.private.asking import stated, total_of, unit_of
from veracal.calibration.private.figures import PrivateFigures, figures_of
from veracal.calibration.private.inquiry import Inquiry
from veracal.calibration.private.noises import Noisy, noisy_numbers
from veracal.calibration.private.planning import (
    QUESTIONS,
    Figure,
    MeasurementPlan,
    plan_measurement,
)
from veracal.privacy import Release, Source, Statement, Unit
from veracal.privacy.answers.pooling import is_several

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
    a :class:`~veracal.privacy.Pool` is asked for every :math:`S_b`, whose noises raise the
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
        by_bins=is_several(source),
    )
    return measure_planned(source, plan, level=level, request=request)


def measure_planned(
    source: Source, plan: MeasurementPlan, *, level: float = 0.95, request: str | None = None
) -> PrivateMeasurement:
    """Ask the questions of a plan; see :func:`measure_private`."""
    inquiry = Inquiry(source, request)
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
