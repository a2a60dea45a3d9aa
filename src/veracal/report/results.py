"""results.json: everything that a report shows, as numbers and words that may be published.

Results are validated and parsed here, once. Tables, charts and text read typed figures; a value
that is not a finite number counts as not recorded.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from veracal.data import Estimate, parse_json
from veracal.errors import DataError

FORMAT, VERSION = "veracal results", 2
_FIRST = 1  # version of results without a federation
MOST = 64 * 2**20  # bytes of the file
# JSON types of the fields that are not mappings.
_KINDS = {"name": str, "date": str, "when": str, "measured": list, "not_measured": list}
WIDE = 0.2  # an interval of shares that is wider than this supports no claim
FIGURES = ("accuracy", "ece", "brier")


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
class FigureSet:
    """Figures of all records or of one group, as one measurement released them.

    Attributes
    ----------
    count, accuracy, ece, brier : Estimate or None
        None if the figure was not measured.
    ece_floor, ece_noise_bias : float or None
        Calibration error of a perfectly calibrated model, and what noise adds to it.
    curve : tuple of Bin
        Reliability curve by increasing confidence; empty if it was not measured.
    """

    count: Estimate | None
    accuracy: Estimate | None
    ece: Estimate | None
    brier: Estimate | None
    ece_floor: float | None
    ece_noise_bias: float | None
    curve: tuple[Bin, ...]

    @classmethod
    def from_json(cls, written: object) -> "FigureSet":
        """Parse the figures of :class:`veracal.calibration.PrivateMeasurement`."""
        entry = mapping(written)
        figures = {
            name: None if entry.get(name) is None else estimate(entry[name])
            for name in ("count", *FIGURES)
        }
        curve = mapping(entry.get("curve"))
        parts = [curve.get(name) for name in ("confidences", "counts", "accuracies")]
        columns = [part if isinstance(part, list | tuple) else [] for part in parts]
        size = min(map(len, columns))
        bins = tuple(
            Bin(b / size, (b + 1) / size, number(mean), estimate(count), estimate(accuracy))
            for b, (mean, count, accuracy) in enumerate(zip(*columns, strict=False))
        )
        floor, bias = number(entry.get("ece_floor")), number(entry.get("ece_noise_bias"))
        return cls(**figures, ece_floor=floor, ece_noise_bias=bias, curve=bins)


@dataclass(frozen=True)
class MeasurementRecord:
    """Figures of one state of the model on the test records.

    Attributes
    ----------
    when : str
        "before" or "after" recalibration, or the name of a later measurement.
    date : str
        In ISO form.
    figures : mapping
        As :meth:`veracal.calibration.PrivateMeasurement.to_json` writes them.
    """

    when: str
    date: str
    figures: Mapping[str, Any]

    @property
    def overall(self) -> FigureSet:
        """Figures of all records."""
        return FigureSet.from_json(mapping(self.figures).get("overall"))

    @property
    def groups(self) -> dict[str, FigureSet]:
        """Figures of each group."""
        written = mapping(mapping(self.figures).get("groups"))
        return {name: FigureSet.from_json(value) for name, value in written.items()}

    @property
    def epsilon(self) -> float | None:
        """Privacy cost of the measurement."""
        micro = number(mapping(self.figures).get("micro_epsilon"))
        return None if micro is None else micro / 1_000_000


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
    data : mapping
        Declared facts: name, classes, features, groups, unit, size, share for testing.
    guarantee : mapping
        The statement of everything released, and its text.
    ledger : mapping
        Name, head, and what was planned and used of each partition.
    model : mapping
        Kind and settings.
    map : mapping
        The calibration map as JSON.
    measured : tuple of MeasurementRecord
        Before, after, and later ones in their order.
    settings : mapping
        Of the run.
    versions : mapping
        Of the libraries.
    not_measured : tuple of str
        What a decision maker may expect in the report, and will not find.
    federation : mapping or None
        The institutions that recalibrated the model since, and the cost for each
        (:func:`veracal.federation.coordinator.pool.recalibration_record`).
    """

    name: str
    date: str
    data: Mapping[str, Any]
    guarantee: Mapping[str, Any]
    ledger: Mapping[str, Any]
    model: Mapping[str, Any]
    map: Mapping[str, Any]
    measured: tuple[MeasurementRecord, ...]
    settings: Mapping[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict)
    not_measured: tuple[str, ...] = ()
    federation: Mapping[str, Any] | None = None

    def when(self, when: str) -> MeasurementRecord | None:
        """The measurement of that name, if there is one."""
        return next((record for record in self.measured if record.when == when), None)

    def curve(self, when: str) -> tuple[Bin, ...]:
        """Bins of the released curve that can contain a record; empty without a curve.

        The largest of k probabilities is at least 1/k. Counts of lower bins are pure noise, and
        look like records that cannot exist.
        """
        record = self.when(when)
        least = 1 / len(self.classes) if self.classes else 0.0
        bins = () if record is None else record.overall.curve
        return tuple(each for each in bins if each.high >= least - 1e-9)

    @property
    def classes(self) -> list[Any]:
        """Declared classes; empty if they are not recorded."""
        return listing(self.data.get("classes"))

    @property
    def group_names(self) -> tuple[str, ...]:
        """Groups of any measurement, in their order."""
        return tuple(dict.fromkeys(name for record in self.measured for name in record.groups))

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        content = asdict(self)
        if self.federation is None:
            del content["federation"]
        version = _FIRST if self.federation is None else VERSION
        return {"format": FORMAT, "version": version, **content}

    def to_bytes(self) -> bytes:
        """Content of results.json."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()

    @classmethod
    def from_bytes(cls, content: bytes, where: str = "results.json") -> "Results":
        """Parse an untrusted file.

        Raises
        ------
        DataError
            For another format, a newer version, or a missing or unknown field.
        """
        try:
            written = parse_json(content.decode(), where)
        except UnicodeDecodeError as cause:
            raise _invalid(where, "text in UTF-8", "other bytes") from cause
        if not isinstance(written, dict) or written.pop("format", None) != FORMAT:
            raise _invalid(where, f"format {FORMAT!r}", "another")
        version = written.pop("version", None)
        if type(version) is not int or not _FIRST <= version <= VERSION:
            raise _invalid(where, f"version {_FIRST} or {VERSION}", repr(version)[:80])
        if version == _FIRST:
            if "federation" in written:
                raise _invalid(where, f"no federation in version {_FIRST}", "one")
            written = {**written, "federation": {}}
        _check_fields(cls, written, where)
        for record in written["measured"]:
            _check_fields(MeasurementRecord, record, f"{where}: measured")
        written["measured"] = tuple(MeasurementRecord(**each) for each in written["measured"])
        written["not_measured"] = tuple(written["not_measured"])
        if version == _FIRST:
            written["federation"] = None
        return cls(**written)


def _check_fields(kind: Any, written: Any, where: str) -> None:
    """Reject anything but exactly the fields of a record, with values of their types."""
    names = {known.name for known in fields(kind)}
    if not isinstance(written, dict) or set(written) != names:
        present = sorted(written) if isinstance(written, dict) else type(written).__name__
        raise _invalid(where, f"exactly {', '.join(sorted(names))}", repr(present)[:200])
    for name, value in written.items():
        expected = _KINDS.get(name, dict)
        if not isinstance(value, expected):
            raise _invalid(where, f"{name} as {expected.__name__}", type(value).__name__)


def _invalid(where: str, expected: str, actual: str) -> DataError:
    """The error for a file that is not a valid results.json."""
    return DataError(where, expected, actual, "Get the artifact again from its source.")


def number(value: object) -> float | None:
    """A finite number, or None.

    Examples
    --------
    >>> number(1), number(float("nan")), number("1"), number(True)
    (1.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if math.isfinite(converted) else None


def mapping(value: object) -> Mapping[str, Any]:
    """A mapping, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def listing(value: object) -> list[Any]:
    """A list, or an empty one; of a mapping its keys."""
    return list(value) if isinstance(value, list | tuple) else list(mapping(value))


def estimate(written: object) -> Estimate:
    """A figure with its interval; without a value if that is not recorded."""
    entry = mapping(written)
    value, low, high, level = (number(entry.get(k)) for k in ("value", "low", "high", "level"))
    if low is None or high is None or level is None:
        low = high = None
    return Estimate(value, low, high, level or 0.0, int(number(entry.get("n")) or 0))


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
