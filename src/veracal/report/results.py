"""results.json: everything that a report shows, as numbers and words that may be published."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from veracal.data.readers.strict_json import parse_json
from veracal.errors import DataError

FORMAT, VERSION = "veracal results", 2
_FIRST = 1  # without a federation; still written where there is none, for older readers
MOST = 64 * 2**20  # bytes of the file
# In JSON, of fields that are no mappings.
_KINDS = {"name": str, "made": str, "when": str, "measured": list, "not_measured": list}


@dataclass(frozen=True)
class Measured:
    """Figures of one state of the model on the test records.

    Attributes
    ----------
    when : str
        "before" or "after" the map, or what a later measurement was called.
    made : str
        Date, in ISO form.
    figures : mapping
        As :meth:`veracal.calibration.private.PrivateMeasurement.to_json` writes them.
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
        (:func:`veracal.federation.calibrator.running.record`).
    """

    name: str
    made: str
    data: Mapping[str, Any]
    guarantee: Mapping[str, Any]
    ledger: Mapping[str, Any]
    model: Mapping[str, Any]
    map: Mapping[str, Any]
    measured: tuple[Measured, ...]
    settings: Mapping[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict)
    not_measured: tuple[str, ...] = ()
    federation: Mapping[str, Any] | None = None

    def when(self, when: str) -> Measured | None:
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
            _check_fields(Measured, one, f"{where}: measured")
            _check_kinds(_KINDS, one, f"{where}: measured")
        return cls(
            **{
                **found,
                "measured": tuple(Measured(**one) for one in measured),
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
