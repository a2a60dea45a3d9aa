"""The records of an artifact, its manifest first, and one strict decoder of their JSON.

An artifact may come from anywhere. :func:`decode` converts its JSON to typed records and rejects
every value that :func:`encode` would not write.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from veracal._types import Frozen
from veracal.accounting import NotPrivate, Relation, Statement, format_up
from veracal.artifact.storage import invalid
from veracal.calibration import Bins, CalibrationMap, PrivateCurve, PrivateFigures, from_json
from veracal.data import Estimate, Label
from veracal.errors import DataError

_MAX_INTEGER = 2**53  # larger ones are not exact in every reader of JSON
_MAX_DEPTH = 20  # readers of nested values are recursive
_NAMES = {dict: "an object", list: "a list", str: "text", bool: "true or false"}


@dataclass(frozen=True)
class LedgerHead:
    """The last entry of a source's ledger that it signed: its number and its hash."""

    index: int
    hash: str


@dataclass(frozen=True)
class SourceCost:
    """What one source was charged for a recalibration.

    Its charge is at most the cost of every request, answered or not, as its ledger counts it.
    """

    name: str
    key: str  # fingerprint
    unit: str
    max_contributions: int
    relation: Relation
    epsilon: float
    delta: float
    answered: bool  # whether it answered every request
    why: str | None  # why not
    head: LedgerHead | None

    def text(self) -> str:
        """The cost in one line."""
        delta = f", delta {format_up(self.delta)}" if self.delta else ""
        cost = f"epsilon {format_up(self.epsilon, 6)}{delta}" if self.epsilon else "nothing"
        most = self.max_contributions
        unit = self.unit if most == 1 else f"{self.unit} of up to {most} records"
        outcome = "answered every query" if self.answered else f"dropped out: {self.why}"
        return f"{self.name} ({self.key}): {cost} for each {unit} ({self.relation}); {outcome}."


@dataclass(frozen=True)
class RecalibrationRecord:
    """A recalibration by institutions in a study, as the recalibrated artifact states it.

    Attributes
    ----------
    study : str
    made : str
        Date in ISO form.
    method : str
    map : CalibrationMap
        The identity if the artifact keeps the map that it had.
    guard : mapping or None
        Decision of the guard, as its ``to_json`` writes it.
    temperatures : mapping of str to Estimate
        Fitted temperatures, whether or not the map was kept.
    before, after : PrivateFigures or None
        Figures on the institutions' records, if they were measured.
    guarantee : Statement or None
        Of everything released; None for public records.
    sources : tuple of SourceCost
        The institutions, and what each of them was charged.
    """

    study: str
    made: str
    method: str
    map: CalibrationMap
    guard: Mapping[str, Any] | None
    temperatures: Mapping[str, Estimate]
    before: PrivateFigures | None
    after: PrivateFigures | None
    guarantee: Statement | None
    sources: tuple[SourceCost, ...]

    def text(self) -> str:
        """The full guarantee, and what every source was charged."""
        promise = "" if self.guarantee is None else f"{self.guarantee.text()}\n\n"
        lines = "\n".join(f"- {cost.text()}" for cost in self.sources)
        return (
            f"{promise}What each institution was charged for this, as its own ledger counts, "
            f"whether or not its answers were used:\n{lines}"
        )


@dataclass(frozen=True)
class Manifest:
    """Everything about a saved classifier except its weights.

    Attributes
    ----------
    features : int
        Numbers in a row of X.
    feature_names : tuple of str
        Empty if they have none.
    schema : str or None
        The declared schema of the table as TOML: how a table becomes rows of X.
    model : mapping
        Kind of the classifier and what else is needed to compute with its weights.
    map : CalibrationMap
        With classes in the order of the weights.
    guarantee : Statement or NotPrivate
    ledger : mapping or None
        Name and head of the charged ledger.
    versions : mapping
        Of the libraries.
    recalibrations : tuple of RecalibrationRecord
        Recalibrations by institutions since the training, the latest last.
    """

    name: str
    classes: tuple[Label, ...]
    features: int
    feature_names: tuple[str, ...]
    schema: str | None
    model: Mapping[str, Any]
    map: CalibrationMap
    guarantee: Statement | NotPrivate
    ledger: Mapping[str, str] | None = None
    versions: Mapping[str, str] = field(default_factory=Frozen)
    recalibrations: tuple[RecalibrationRecord, ...] = ()


# ------------------------------------------------------------------ JSON


def encode(value: Any) -> Any:
    """JSON values of a record, or of records in a mapping or a sequence."""
    if hasattr(value, "to_json"):
        value = value.to_json()
    if is_dataclass(value):
        return {known.name: encode(getattr(value, known.name)) for known in fields(value)}
    if isinstance(value, Mapping):
        return {name: encode(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [encode(each) for each in value]
    return value


def decode(kind: Any, written: Any, where: str) -> Any:
    """Convert untrusted JSON values to a type.

    Parameters
    ----------
    kind : type
        A record (a dataclass), a tuple of one type, a mapping of str, a choice of types or of
        words, a scalar, or ``Any`` for JSON values as they are.
    written : object
    where : str
        Path of the value in the file, for errors.

    Raises
    ------
    DataError
        For a missing or unknown field, a value of another type, a number that is not finite
        (null, where the type allows None), one outside of its range, or values nested too deeply.
    """
    try:
        return _decode(kind, written, where)
    except RecursionError as cause:
        raise invalid(where, "values that are not nested deeply", "deeper ones") from cause


def _decode(kind: Any, written: Any, where: str) -> Any:
    """Convert values that may be nested too deeply for Python's stack."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return _check_depth(written, where)
    if kind is float:
        return number(written, where)
    if kind in _DECODERS:
        try:
            return _DECODERS[kind](written, where)
        except DataError:
            raise
        except (TypeError, ValueError) as cause:
            raise invalid(where, "values in their ranges", str(cause)[:200]) from cause
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**decode_fields(kind, written, where))
    if origin in (Union, UnionType):
        if written is None and NoneType in arguments:
            return None
        kinds = [each for each in arguments if each is not NoneType]
        return _decode(
            next((each for each in kinds if each is type(written)), kinds[0]), written, where
        )
    if origin is Literal:
        if not isinstance(written, str) or written not in arguments:
            raise invalid(where, f"one of {', '.join(arguments)}", repr(written)[:80])
        return written
    if origin is tuple:
        items = _expect(list, written, where)
        return tuple(_decode(arguments[0], one, f"{where}[{i}]") for i, one in enumerate(items))
    if origin is Mapping:
        entries = _expect(dict, written, where).items()
        return {
            key: _decode(arguments[1], one, f"{where}: {key!r:.60}") for key, one in entries
        }
    return _expect(kind, written, where)


def decode_fields(kind: Any, written: Any, where: str, **types: Any) -> dict[str, Any]:
    """Decode exactly the fields of a record, some of them by other types than its own."""
    content, hints = _expect(dict, written, where), {**_hints(kind), **types}
    if set(content) != set(hints):
        raise invalid(where, f"exactly {', '.join(hints)}", repr(sorted(content))[:200])
    return {
        name: _decode(hint, content[name], f"{where}: {name}") for name, hint in hints.items()
    }


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The types of the fields of a record."""
    hints = get_type_hints(kind)
    return {known.name: hints[known.name] for known in fields(kind)}


def _check_depth(written: Any, where: str, left: int = _MAX_DEPTH) -> Any:
    """JSON values as they are, unless they are nested deeper than any that a run writes."""
    if not left:
        raise invalid(where, f"values nested at most {_MAX_DEPTH} deep", "deeper ones")
    inner = written.values() if isinstance(written, dict) else written
    for each in inner if isinstance(written, dict | list) else ():
        _check_depth(each, where, left - 1)
    return written


def number(written: object, where: str) -> float:
    """A finite number; True and False are none."""
    if isinstance(written, bool) or not isinstance(written, int | float):
        raise invalid(where, "a number", repr(written)[:80])
    if not -sys.float_info.max <= written <= sys.float_info.max:  # nor is NaN
        raise invalid(where, "a finite number", repr(written)[:80])
    return float(written)


def _whole(written: object, where: str) -> int:
    """An integer that every reader of JSON represents exactly."""
    if type(written) is not int or abs(written) > _MAX_INTEGER:
        raise invalid(where, "an integer", repr(written)[:80])
    return written


def _label(written: object, where: str) -> Label:
    """A class: text, or an integer of 64 bits, as labels are stored."""
    if isinstance(written, str):
        return written
    if type(written) is not int or not -(2**63) <= written < 2**63:
        raise invalid(where, "text or an integer of 64 bits", repr(written)[:80])
    return written


def _expect(kind: Any, written: Any, where: str) -> Any:
    """A value of a JSON type."""
    if not isinstance(written, kind):
        raise invalid(where, _NAMES[kind], type(written).__name__)
    return written


@dataclass(frozen=True)
class _CurvePoint:
    """An entry of a statement's curve; an unbounded epsilon is null."""

    delta: float
    epsilon: float | None


def _statement(written: Any, where: str) -> Statement:
    """Decode :meth:`veracal.accounting.Statement.to_json`."""
    types = {"epsilon": float | None, "curve": tuple[_CurvePoint, ...]}
    values = decode_fields(Statement, written, where, **types)
    if values["epsilon"] is None:
        values["epsilon"] = math.inf
    values["curve"] = tuple(
        (one.delta, math.inf if one.epsilon is None else one.epsilon) for one in values["curve"]
    )
    statement = Statement(**values)
    costs = (statement.epsilon, statement.delta, statement.advantage)
    if min(costs) < 0 or max(costs[1:]) > 1 or statement.max_contributions < 1:
        raise ValueError("a cost that is out of range")
    return statement


def _curve(written: Any, where: str) -> PrivateCurve:
    """Decode the curve of :meth:`veracal.calibration.PrivateFigures.to_json`."""
    values = decode_fields(PrivateCurve, written, where, bins=int)
    curve = PrivateCurve(**{**values, "bins": Bins(values["bins"])})
    if {len(curve.counts), len(curve.accuracies), len(curve.confidences)} != {curve.bins.count}:
        raise ValueError("lists of other lengths than the number of bins")
    return curve


def _guarantee(written: Any, where: str) -> Statement | NotPrivate:
    """Decode a statement, or the reasons why there is none."""
    if not isinstance(written, dict) or "reasons" not in written:
        return _statement(written, where)
    none = NotPrivate(decode(tuple[str, ...], written["reasons"], f"{where}: reasons"))
    if written != none.to_json():
        raise invalid(
            where, f"exactly {', '.join(none.to_json())}", repr(sorted(written))[:200]
        )
    return none


_DECODERS: Mapping[Any, Callable[[Any, str], Any]] = {
    int: _whole,
    Label: _label,
    CalibrationMap: from_json,
    PrivateCurve: _curve,
    Statement: _statement,
    Statement | NotPrivate: _guarantee,
}
