"""results.json: everything that a report shows, as numbers and words that may be published.

Figures of results.json, read with care: whatever is no finite number was not told.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from veracal.data import Estimate, parse_json
from veracal.errors import DataError

FORMAT, VERSION = "veracal results", 2
_FIRST = 1  # without a federation; still written where there is none, for older readers
MOST = 64 * 2**20  # bytes of the file
# In JSON, of fields that are no mappings.
_KINDS = {"name": str, "made": str, "when": str, "measured": list, "not_measured": list}


@dataclass(frozen=True)
class MeasurementRecord:
    """Figures of one state of the model on the test records.

    Attributes
    ----------
    when : str
        "before" or "after" the map, or what a later measurement was called.
    made : str
        Date, in ISO form.
    figures : mapping
        As :meth:`veracal.calibration.PrivateMeasurement.to_json` writes them.
    """

    when: str
    made: str
    figures: Mapping[str, Any]


@dataclass(frozen=True)
class Results:
    """What was done, what it promises, and what came out.

    Everything in it is public or was charged. What is neither (the number of records under
    add-remove, group sizes, plain figures of test records) has no place here.

    Attributes
    ----------
    name : str
    made : str
        Date, in ISO form.
    data : mapping
        What was declared: name, classes, features, groups, unit, size, share for testing.
    guarantee : mapping
        The statement of everything released, and its text.
    ledger : mapping
        Name, head, and what was planned and used of each part.
    model : mapping
        Kind and settings, and the map in words.
    map : mapping
        As the map writes itself.
    measured : tuple of Measured
        Before, after, and later ones in their order.
    settings : mapping
        Of the run.
    versions : mapping
        Of the libraries.
    not_measured : tuple of str
        What somebody who decides may expect, and will not find.
    federation : mapping or None
        Who has recalibrated it since, and what that cost whom
        (:func:`veracal.federation.coordinator.pool.record`).
    """

    name: str
    made: str
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
        return next((one for one in self.measured if one.when == when), None)

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        told = asdict(self)
        if self.federation is None:
            del told["federation"]
        version = _FIRST if self.federation is None else VERSION
        return {"format": FORMAT, "version": version, **told}

    def to_bytes(self) -> bytes:
        """The file."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()

    @classmethod
    def from_bytes(cls, content: bytes, where: str = "results.json") -> "Results":
        """Read a file that anybody may have written.

        Raises
        ------
        DataError
            For another format, a newer version, a field that is missing or unknown.
        """
        try:
            found = parse_json(content.decode(), where)
        except UnicodeDecodeError as cause:
            raise _not_ours(where, "text in UTF-8", "other bytes") from cause
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise _not_ours(where, f"format {FORMAT!r}", "another")
        version = found.pop("version", None)
        if type(version) is not int or not _FIRST <= version <= VERSION:
            raise _not_ours(where, f"version {_FIRST} or {VERSION}", repr(version)[:80])
        if version == _FIRST:
            _check_lacks(found, "federation", where)
            found = {**found, "federation": {}}
        _check_fields(cls, found, where)
        _check_kinds(_KINDS, found, where)
        measured = found.pop("measured")
        for one in measured:
            _check_fields(MeasurementRecord, one, f"{where}: measured")
            _check_kinds(_KINDS, one, f"{where}: measured")
        return cls(
            **{
                **found,
                "measured": tuple(MeasurementRecord(**one) for one in measured),
                "not_measured": tuple(found["not_measured"]),
                "federation": found["federation"] if version > _FIRST else None,
            }
        )


def _check_fields(kind: Any, found: Any, where: str) -> None:
    """Refuse anything but exactly the fields of a record."""
    names = {known.name for known in fields(kind)}
    if not isinstance(found, dict) or set(found) != names:
        told = sorted(found) if isinstance(found, dict) else type(found).__name__
        raise _not_ours(where, f"exactly {', '.join(sorted(names))}", repr(told)[:200])


def _check_lacks(found: Any, name: str, where: str) -> None:
    """Refuse a field that came with a later version."""
    if isinstance(found, dict) and name in found:
        raise _not_ours(where, f"no {name} in version {_FIRST}", "one")


def _check_kinds(kinds: Mapping[str, type], found: Mapping[str, Any], where: str) -> None:
    """Refuse a field that holds another kind of thing than it should."""
    for name, value in found.items():
        if not isinstance(value, kinds.get(name, dict)):
            expected = kinds.get(name, dict).__name__
            raise _not_ours(where, f"{name} as {expected}", type(value).__name__)


def _not_ours(where: str, expected: str, found: str) -> DataError:
    """Error for a file that is no results.json of ours."""
    return DataError(where, expected, found, "Get the artifact again from whoever made it.")


WIDE = 0.2  # an interval of shares that is wider than this answers no question
FIGURES = ("accuracy", "ece", "brier")


@dataclass(frozen=True)
class Bin:
    """One bin of a released reliability curve.

    Attributes
    ----------
    low, high : float
        Ends of confidence.
    confidence : float or None
        Its mean in the bin.
    count, accuracy : Estimate
    """

    low: float
    high: float
    confidence: float | None
    count: Estimate
    accuracy: Estimate


def number(found: object) -> float | None:
    """A finite number, or None.

    Examples
    --------
    >>> number(1), number(float("nan")), number("1"), number(True)
    (1.0, None, None, None)
    """
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        value = float(found)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def mapping(found: object) -> Mapping[str, Any]:
    """A mapping, or an empty one."""
    return found if isinstance(found, Mapping) else {}


def estimate(found: object) -> Estimate:
    """A figure as it was written; without a value where it was not told."""
    entry = mapping(found)
    value, low, high, level = (number(entry.get(k)) for k in ("value", "low", "high", "level"))
    if low is None or high is None or level is None:
        low = high = None
    return Estimate(value, low, high, level or 0.0, int(number(entry.get("n")) or 0))


def figure(
    measured: MeasurementRecord | None, name: str, group: str | None = None
) -> Estimate | None:
    """A figure of all records or of a group, or None where it was not asked for."""
    if measured is None:
        return None
    found = mapping(measured.figures)
    where = found.get("overall") if group is None else mapping(found.get("groups")).get(group)
    entry = mapping(where).get(name)
    return None if entry is None else estimate(entry)


def single(measured: MeasurementRecord | None, name: str) -> float | None:
    """A number of all records that has no interval."""
    found = {} if measured is None else mapping(measured.figures)
    return number(mapping(found.get("overall")).get(name))


def cost(measured: MeasurementRecord) -> float | None:
    """Epsilon of one measurement."""
    micro = number(mapping(measured.figures).get("micro_epsilon"))
    return None if micro is None else micro / 1_000_000


def curve(measured: MeasurementRecord | None) -> tuple[Bin, ...]:
    """Bins of the released curve, from the least sure; none where there is no curve."""
    found = {} if measured is None else mapping(measured.figures)
    entry = mapping(mapping(found.get("overall")).get("curve"))
    parts = [entry.get(name) for name in ("confidences", "counts", "accuracies")]
    columns = [part if isinstance(part, list | tuple) else [] for part in parts]
    count = min(len(column) for column in columns)
    return tuple(
        Bin(b / count, (b + 1) / count, number(mean), estimate(n), estimate(right))
        for b, (mean, n, right) in enumerate(zip(*columns, strict=False))
    )


def possible(results: Results, when: str) -> tuple[Bin, ...]:
    """Bins of a released curve in which a record can be at all.

    The surest of k classes has a probability of 1/k at least. What is counted below is noise,
    and looks like records that cannot be.
    """
    classes = results.data.get("classes")
    least = 1 / len(classes) if isinstance(classes, list | tuple) and classes else 0.0
    return tuple(each for each in curve(results.when(when)) if each.high >= least - 1e-9)


def group_names(results: Results) -> tuple[str, ...]:
    """Groups that were told apart in any measurement, in their order."""
    names: dict[str, None] = {}
    for one in results.measured:
        names.update(dict.fromkeys(mapping(mapping(one.figures).get("groups"))))
    return tuple(names)


def is_wide(found: Estimate | None) -> bool:
    """Whether too little is known of a share to say anything about it."""
    if found is None or found.value is None or found.low is None or found.high is None:
        return True
    return found.high - found.low > WIDE


def gap(found: Mapping[str, Estimate]) -> Estimate | None:
    r"""Largest difference of a figure between groups.

    If the interval of each group holds its figure, :math:`l_g \le x_g \le h_g`, then

    .. math:: \max(0, \max_g l_g - \min_g h_g) \le \max_g x_g - \min_g x_g
              \le \max_g h_g - \min_g l_g.

    Returns
    -------
    Estimate or None
        At a level of :math:`1 - m(1 - \text{level})` for m groups, by the union bound; None for
        fewer than two groups of which there is a figure.
    """
    told = [e for e in found.values() if None not in (e.value, e.low, e.high)]
    if len(told) < 2:
        return None
    values, lows, highs = zip(*((e.value, e.low, e.high) for e in told), strict=True)
    level = max(0.0, 1 - sum(1 - e.level for e in told))
    return Estimate(
        max(values) - min(values),
        max(0.0, max(lows) - min(highs)),
        max(highs) - min(lows),
        level,
        sum(e.n for e in told),
    )
