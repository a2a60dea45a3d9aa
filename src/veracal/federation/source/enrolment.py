"""One enrolment on the disk: terms for one calibrator, records, and what was spent."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from veracal.artifact.folder import read_file
from veracal.data import Scores, load_scores
from veracal.data.files import placed
from veracal.data.labels import Label
from veracal.data.limits import no_surprises
from veracal.errors import DataError, VeracalError
from veracal.federation.protocol import fields as schema
from veracal.federation.protocol.envelopes import MOST_TERMS, EnvelopeError, parsed
from veracal.federation.protocol.terms import Terms
from veracal.federation.source.folder import ENROLLED, SourceFolder, is_mark
from veracal.federation.source.marks import MarkKey
from veracal.federation.source.refusals import Refusals
from veracal.privacy.ledger.book import Ledger
from veracal.privacy.ledger.chain import canonical

TERMS, PRIVATE, RECORDS, SPENT, REFUSALS, REVOKED = (
    "terms",
    "private.json",
    "records.npz",
    "spent.ledger",
    "refusals.log",
    "revoked",
)
UNIT = "unit"  # array of ids in records.npz
_MOST = 2**22  # bytes of private.json: it names classes, of which there may be thousands


class ChangedError(VeracalError):
    """The file that records come from is no longer the one that was enrolled."""


@dataclass(frozen=True)
class Origin:
    """A file as it was at enrolment.

    Attributes
    ----------
    path : str
    state : str
        Mark of its size and of the time it was last written to.
    content : str
        Mark of its bytes.

    Notes
    -----
    Marks are keyed (:mod:`~veracal.federation.source.marks`): neither they nor anything else
    here confirm a guess of what is in the file, its size included.
    """

    path: str
    state: str
    content: str

    @classmethod
    def of(cls, path: Path, marks: MarkKey) -> "Origin":
        """Look at a file."""
        place = path.absolute()
        with no_surprises(place):
            state = _state(place, marks)
        return cls(str(place), state, marks.of_file(place))

    def checked(self, marks: MarkKey) -> "Origin":
        """The same file as it is now, if its bytes are still the same.

        They are read again only if the size or the time of the file is another.

        Raises
        ------
        ChangedError
            In words for the owner.
        """
        place = Path(self.path)
        try:
            state = _state(place, marks)
            if state == self.state:
                return self
            if marks.of_file(place) == self.content:
                return replace(self, state=state)
        except (OSError, DataError) as cause:
            raise ChangedError(
                f"The data file {self.path} is gone or cannot be read: nothing is answered "
                "until it is back."
            ) from cause
        raise ChangedError(
            f"The data file {self.path} has changed since it was enrolled: nothing is "
            "answered. Revoke this enrolment and enroll again, or restore the file."
        )


@dataclass(frozen=True)
class Private:
    """What the owner alone knows of an enrolment.

    Attributes
    ----------
    classes : tuple of str or int
        How labels are written in the records.
    records : str
        Keyed mark of the records' file.
    has_units : bool
    data : Origin or None
        The file that the records come from.
    model : str or None
        Where the model lay.
    enrolled : str
        Day.
    seconds : float
        What the slowest question took, records read included.
    """

    classes: tuple[Label, ...]
    records: str
    has_units: bool
    data: Origin | None
    model: str | None
    enrolled: str
    seconds: float

    def save(self, path: Path) -> None:
        """Write a new file, for its owner's eyes only."""
        data = None if self.data is None else vars(self.data)
        body = {**vars(self), "classes": list(self.classes), "data": data}
        with placed(path) as file:
            file.write(canonical(body).encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> "Private":
        """Read the file of an enrolment."""
        try:
            told: dict[str, Any] = schema.closed(
                parsed(read_file(folder, PRIVATE, _MOST)), _CHECKS, PRIVATE
            )
            data = told["data"]
            origin = None if data is None else Origin(**schema.closed(data, _ORIGIN, "data"))
        except EnvelopeError as cause:
            raise _damaged(folder / PRIVATE, str(cause)) from cause
        return cls(**{**told, "classes": tuple(told["classes"]), "data": origin})


@dataclass(frozen=True)
class Enrolment:
    """An enrolment of a source.

    Attributes
    ----------
    path : path
    terms : Terms
    private : Private
    marks : MarkKey
        Of the source.
    """

    path: Path
    terms: Terms
    private: Private
    marks: MarkKey

    @property
    def ledger(self) -> Ledger:
        """What this calibrator has spent."""
        return Ledger(self.path / SPENT)

    @property
    def refusals(self) -> Refusals:
        """What was refused, and why."""
        return Refusals(self.path / REFUSALS)

    @property
    def is_revoked(self) -> bool:
        """Whether nothing is answered any more."""
        return (self.path / REVOKED).exists()

    def records(self) -> Scores:
        """The records, if they are those that were enrolled.

        Raises
        ------
        DataError
            If they are not.
        """
        path = self.path / RECORDS
        if self.marks.of_file(path) != self.private.records:
            raise _damaged(path, "other bytes than were enrolled")
        unit = UNIT if self.private.has_units else None
        return load_scores(path, classes=self.private.classes, unit=unit)


def read_enrolment(source: SourceFolder, mark: str) -> Enrolment:
    """Read an enrolment by its id, or by how its id begins.

    Raises
    ------
    DataError
        If there is none, if several begin so, or if its files were changed.
    """
    ids = source.enrolled()
    found = [each for each in ids if is_prefix(mark, each)]
    if len(found) != 1:
        raise DataError(
            str(source.path),
            f"one enrolment whose id begins with {mark[:40]!r}",
            f"{len(found)} of {len(ids)}",
            "Look at `veracal source status`.",
        )
    folder = source.path / ENROLLED / found[0]
    raw = read_file(folder, TERMS, MOST_TERMS)
    terms = Terms.unsealed(raw, str(folder / TERMS))
    if terms.key != source.public or terms.source != found[0]:
        raise _damaged(folder / TERMS, "terms of another source or enrolment")
    return Enrolment(folder, terms, Private.read(folder), source.marks)


def every_enrolment(source: SourceFolder) -> list[Enrolment]:
    """Every enrolment, the oldest first."""
    return [read_enrolment(source, mark) for mark in source.enrolled()]


def is_prefix(mark: str, whole: str) -> bool:
    """Whether an id begins so; nothing begins with nothing."""
    return bool(mark) and is_mark(whole) and whole.startswith(mark)


def _state(path: Path, marks: MarkKey) -> str:
    """Mark of the size and the time of a file."""
    found = path.stat()
    return marks.of_text(f"{found.st_size} {found.st_mtime_ns}")


def _damaged(path: Path, found: str) -> DataError:
    """Error for a file of an enrolment that is not as it was written."""
    return DataError(
        str(path),
        "the file as it was written at enrolment",
        found[:200],
        "Restore it, or revoke the enrolment and enroll again.",
    )


_ORIGIN: dict[str, schema.Check] = {
    "content": schema.hexadecimal(64),
    "path": lambda value: isinstance(value, str),
    "state": schema.hexadecimal(64),
}
_CHECKS: dict[str, schema.Check] = {
    "classes": lambda value: isinstance(value, list) and len(value) > 1,
    "data": schema.optional(schema.is_object),
    "enrolled": schema.text(10),
    "has_units": lambda value: isinstance(value, bool),
    "model": schema.optional(lambda value: isinstance(value, str)),
    "records": schema.hexadecimal(64),
    "seconds": schema.number(0.0, 1e9),
}
