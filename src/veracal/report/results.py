"""Results of a run: everything that a report shows and that may be published.

A run builds :class:`Results` from its statement, its ledger, its calibration map and its
measurements; pages, tables and the model card read its attributes. ``results.json`` is written
by :meth:`Results.to_json` and read by :meth:`Results.from_json`, which accepts nothing but what
the former writes: a file may come from anywhere.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from veracal.accounting import Statement
from veracal.artifact import RecalibrationRecord, decode, encode, invalid
from veracal.calibration import (
    CalibrationMap,
    CalibrationResult,
    PrivateCurve,
    PrivateFigures,
    PrivateMeasurement,
    ReliabilityCurve,
)
from veracal.data import Estimate, Label, parse_json
from veracal.ledger import EpsilonDelta

FORMAT, VERSION = "veracal results", 1
MOST = 64 * 2**20  # bytes of the file
WIDE = 0.2  # an interval of shares that is wider than this supports no claim
FIGURES = ("accuracy", "ece", "brier")
STAGES = ("before", "after")

Curve = ReliabilityCurve | PrivateCurve


@dataclass(frozen=True)
class DataFacts:
    """Facts about the records that were declared before a record was read.

    Attributes
    ----------
    name : str
    classes : tuple of str or int
    features : int
    groups : mapping of str to tuple of str
        Names of the groups of each attribute.
    unit : str
        The unit of privacy.
    max_contributions : int
        Maximum number of rows of one unit.
    size : int or None
        Declared number of records.
    test : float
        Share of the records that is held out for measurement.
    """

    name: str
    classes: tuple[Label, ...]
    features: int
    groups: Mapping[str, tuple[str, ...]]
    unit: str
    max_contributions: int
    size: int | None
    test: float


@dataclass(frozen=True)
class LedgerLine:
    """A planned use of the budget, with the cost of all its planned times alone."""

    purpose: str
    partition: str | None
    times: int
    used: int
    epsilon: float
    delta: float


@dataclass(frozen=True)
class LedgerSummary:
    """What a report states about the ledger of a run.

    Attributes
    ----------
    name : str
    head : str
        Hash of the last entry.
    planned : tuple of LedgerLine
        Of this run.
    caps, spent : EpsilonDelta
        Of all runs of the ledger.
    runs : int
    note : str or None
        Whether the caps were raised, in words.
    """

    name: str
    head: str
    planned: tuple[LedgerLine, ...]
    caps: EpsilonDelta
    spent: EpsilonDelta
    runs: int
    note: str | None


@dataclass(frozen=True)
class MeasurementRecord:
    """Figures of one state of the model on the test records.

    Attributes
    ----------
    when : str
        "before" or "after" recalibration, or the name of a later measurement.
    date : str
        In ISO form.
    micro_epsilon : int
        Privacy cost.
    split : mapping of str to int or None
        Its division among the queries.
    overall : PrivateFigures
    group : str or None
        Attribute by which figures are broken down.
    groups : mapping of str to PrivateFigures
    """

    when: str
    date: str
    micro_epsilon: int
    split: Mapping[str, int | None]
    overall: PrivateFigures
    group: str | None = None
    groups: Mapping[str, PrivateFigures] = field(default_factory=dict)

    @classmethod
    def of(cls, measurement: PrivateMeasurement, when: str, date: str) -> "MeasurementRecord":
        """The part of a private measurement that a report shows."""
        if not measurement.private:
            raise ValueError(
                "Expected a private measurement, got exact figures: not for release."
            )
        plan = measurement.plan
        return cls(
            when,
            date,
            plan.micro_epsilon,
            {name: query.micro_epsilon for name, query in plan.queries.items()},
            measurement.overall,
            None if plan.groups is None else plan.groups.name,
            measurement.groups,
        )

    @property
    def epsilon(self) -> float:
        """Privacy cost of the measurement."""
        return self.micro_epsilon / 1_000_000

    @property
    def bins(self) -> "tuple[Bin, ...]":
        """Bins of the reliability curve by increasing confidence; empty without a curve."""
        curve = self.overall.curve
        return () if curve is None else drawable(curve).bins


@dataclass(frozen=True)
class Results:
    """What a run did, what it guarantees, and its figures.

    Everything in it is public or was charged. Anything else (the number of records under
    add-remove, group sizes, figures without noise) does not belong here.

    Attributes
    ----------
    name : str
    date : str
        In ISO form.
    data : DataFacts
    guarantee : Statement
        Of everything that the run released.
    ledger : LedgerSummary
    map : CalibrationMap
    measured : tuple of MeasurementRecord
        Before, after, and later ones in their order.
    settings : mapping
        Of the run, as JSON values.
    versions : mapping of str to str
        Of the libraries.
    not_measured : tuple of str
        What a decision maker may expect in the report, and will not find.
    recalibrations : tuple of RecalibrationRecord
        Recalibrations by institutions since the training, the latest last.
    """

    name: str
    date: str
    data: DataFacts
    guarantee: Statement
    ledger: LedgerSummary
    map: CalibrationMap
    measured: tuple[MeasurementRecord, ...]
    settings: Mapping[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict)
    not_measured: tuple[str, ...] = ()
    recalibrations: tuple[RecalibrationRecord, ...] = ()

    def when(self, when: str) -> MeasurementRecord | None:
        """The measurement of that name, if there is one."""
        return next((record for record in self.measured if record.when == when), None)

    def stages(self) -> dict[str, MeasurementRecord]:
        """The measurements before and after recalibration that exist."""
        records = {when: self.when(when) for when in STAGES}
        return {when: record for when, record in records.items() if record is not None}

    def curve(self, when: str) -> "tuple[Bin, ...]":
        """Bins of the released curve that can contain a record; empty without a curve.

        The largest of k probabilities is at least 1/k. Counts of lower bins are pure noise, and
        look like records that cannot exist.
        """
        record = self.when(when)
        least = 1 / len(self.data.classes) if self.data.classes else 0.0
        bins = () if record is None else record.bins
        return tuple(each for each in bins if each.high >= least - 1e-9)

    @property
    def group_names(self) -> tuple[str, ...]:
        """Groups of any measurement, in their order."""
        return tuple(dict.fromkeys(name for record in self.measured for name in record.groups))

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        content = {name: encode(value) for name, value in vars(self).items()}
        return {"format": FORMAT, "version": VERSION, **content}

    def to_bytes(self) -> bytes:
        """Content of results.json."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()

    @classmethod
    def from_json(cls, written: object, where: str = "results.json") -> "Results":
        """Check and convert the JSON values of :meth:`to_json`, from any source.

        Raises
        ------
        DataError
            For another format or version, a missing or unknown field, or a value of another
            type or outside of its range, by its path.
        """
        if not isinstance(written, dict) or written.get("format") != FORMAT:
            raise invalid(where, f"format {FORMAT!r}", "another")
        version = written.get("version")
        if type(version) is not int or version != VERSION:
            raise invalid(where, f"version {VERSION}", repr(version)[:80])
        content = {k: v for k, v in written.items() if k not in ("format", "version")}
        results: Results = decode(cls, content, where)
        return results

    @classmethod
    def from_bytes(cls, content: bytes, where: str = "results.json") -> "Results":
        """Parse an untrusted file; see :meth:`from_json`."""
        try:
            text = content.decode()
        except UnicodeDecodeError as cause:
            raise invalid(where, "text in UTF-8", "other bytes") from cause
        return cls.from_json(parse_json(text, where), where)


@dataclass(frozen=True)
class ExactFigures:
    """Figures of one stage on the test records, without noise: internal.

    Attributes
    ----------
    overall : CalibrationResult
    groups : mapping of str to mapping of str to Estimate
        Figures of each group.
    """

    overall: CalibrationResult
    groups: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)


@dataclass(frozen=True)
class UnreleasedFigures:
    """What only the data holder may see, for :func:`veracal.report.render`.

    Attributes
    ----------
    records, classes : mapping of str to int
        Number of records of each partition and class.
    groups : mapping of str to mapping of str to int
        Number of records of each group, by attribute.
    stages : mapping of str to ExactFigures
        "before" and "after" recalibration.
    losses : tuple of float
        Training loss at equally spaced points; empty if the model was not trained just now.
    """

    records: Mapping[str, int] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    stages: Mapping[str, ExactFigures] = field(default_factory=dict)
    losses: tuple[float, ...] = ()


# ------------------------------------------------------------------ reliability curves


@dataclass(frozen=True)
class Bin:
    """One bin of a reliability curve.

    Attributes
    ----------
    low, high : float
        Ends of confidence.
    confidence : float or None
        Mean confidence in the bin.
    count, accuracy : Estimate
    """

    low: float
    high: float
    confidence: float | None
    count: Estimate
    accuracy: Estimate


@dataclass(frozen=True)
class CurveData:
    """A reliability curve in one form for exact and for noisy numbers.

    Attributes
    ----------
    bins : tuple of Bin
        By increasing confidence. Counts of a noisy curve are noisy.
    of : 'top label' or 'second class'
    n : int
        Records; of a noisy curve about so many.
    ece : float or None
        None for a noisy curve, whose calibration error is measured more precisely on its own.
    released : bool
        Whether the curve was computed from noisy answers instead of the records.
    """

    bins: tuple[Bin, ...]
    of: Literal["top label", "second class"]
    n: int
    ece: float | None
    released: bool


def drawable(curve: Curve) -> CurveData:
    """Convert a curve to the data of a diagram."""
    if isinstance(curve, ReliabilityCurve):
        bins = tuple(
            Bin(
                each.low,
                each.high,
                each.confidence,
                Estimate(each.n, None, None, 0.0, each.n),
                Estimate(
                    each.accuracy, each.accuracy_low, each.accuracy_high, curve.level, each.n
                ),
            )
            for each in curve.bins
        )
        return CurveData(bins, curve.of, curve.n, curve.ece, released=False)
    bins = tuple(
        Bin(b / curve.bins.count, (b + 1) / curve.bins.count, *columns)
        for b, columns in enumerate(
            zip(curve.confidences, curve.counts, curve.accuracies, strict=True)
        )
    )
    n = sum(each.count.n for each in bins)
    return CurveData(bins, "top label", n, None, released=True)


def is_wide(figure: Estimate | None) -> bool:
    """Whether the interval of a share is too wide, or missing, to support a claim."""
    if figure is None or figure.value is None or figure.low is None or figure.high is None:
        return True
    return figure.high - figure.low > WIDE


def gap(figures: Mapping[str, Estimate]) -> Estimate | None:
    r"""Largest difference of a figure between groups.

    If the interval of each group contains its true value, :math:`l_g \le x_g \le h_g`, then

    .. math:: \max(0, \max_g l_g - \min_g h_g) \le \max_g x_g - \min_g x_g
              \le \max_g h_g - \min_g l_g.

    Returns
    -------
    Estimate or None
        At a level of :math:`1 - m(1 - \text{level})` for m groups, by the union bound; None
        with fewer than two groups with a figure.
    """
    known = [e for e in figures.values() if None not in (e.value, e.low, e.high)]
    if len(known) < 2:
        return None
    values, lows, highs = zip(*((e.value, e.low, e.high) for e in known), strict=True)
    level = max(0.0, 1 - sum(1 - e.level for e in known))
    return Estimate(
        max(values) - min(values),
        max(0.0, max(lows) - min(highs)),
        max(highs) - min(lows),
        level,
        sum(e.n for e in known),
    )
