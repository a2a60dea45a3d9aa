"""One enrollment on the disk: terms for one coordinator, records, and what was spent.

What a source was asked, what left it and what that cost, read back from its books.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from veracal.accounting import MICRO, DiscreteLaplace, epsilon_for, event_from_json
from veracal.artifact import read_file
from veracal.data import Label, Scores, load_scores, no_surprises, placed
from veracal.errors import DataError, VeracalError
from veracal.federation.protocol import envelopes as schema
from veracal.federation.protocol.envelopes import MAX_TERMS_BYTES, EnvelopeError, parse_object
from veracal.federation.protocol.queries import build_query
from veracal.federation.protocol.terms import Terms
from veracal.federation.source.folder import (
    TEMPORARY_PREFIX,
    ENROLLED,
    ClosedLedgerError,
    FileMarkKey,
    RefusalLog,
    SourceFolder,
    is_enrollment_id,
)
from veracal.ledger import Amount, Cost, Ledger, canonical, digest
from veracal.mechanisms import discrete_gaussian_std, discrete_laplace_std

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


class DataChangedError(VeracalError):
    """The file that records come from is no longer the one that was enrolled."""


@dataclass(frozen=True)
class RecordFile:
    """A file as it was at enrollment.

    Attributes
    ----------
    path : str
    state : str
        Mark of its size and of the time it was last written to.
    content : str
        Mark of its bytes.

    Notes
    -----
    Marks are keyed (:mod:`~veracal.federation.source.folder`): neither they nor anything else
    here confirm a guess of what is in the file, its size included.
    """

    path: str
    state: str
    content: str

    @classmethod
    def of(cls, path: Path, marks: FileMarkKey) -> "RecordFile":
        """Look at a file."""
        place = path.absolute()
        with no_surprises(place):
            state = _state(place, marks)
        return cls(str(place), state, marks.of_file(place))

    def checked(self, marks: FileMarkKey) -> "RecordFile":
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
            raise DataChangedError(
                f"The data file {self.path} is gone or cannot be read: nothing is answered "
                "until it is back."
            ) from cause
        raise DataChangedError(
            f"The data file {self.path} has changed since it was enrolled: nothing is "
            "answered. Revoke this enrollment and enroll again, or restore the file."
        )


@dataclass(frozen=True)
class OwnerSettings:
    """What the owner alone knows of an enrollment.

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
        What the slowest query took, records read included.
    """

    classes: tuple[Label, ...]
    records: str
    has_units: bool
    data: RecordFile | None
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
    def read(cls, folder: Path) -> "OwnerSettings":
        """Read the file of an enrollment."""
        try:
            told: dict[str, Any] = schema.check_fields(
                parse_object(read_file(folder, PRIVATE, _MOST)), _CHECKS, PRIVATE
            )
            data = told["data"]
            origin = (
                None
                if data is None
                else RecordFile(**schema.check_fields(data, _ORIGIN, "data"))
            )
        except EnvelopeError as cause:
            raise _damaged_error(folder / PRIVATE, str(cause)) from cause
        return cls(**{**told, "classes": tuple(told["classes"]), "data": origin})


@dataclass(frozen=True)
class Enrollment:
    """An enrollment of a source.

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
    private: OwnerSettings
    marks: FileMarkKey

    @property
    def ledger(self) -> Ledger:
        """What this coordinator has spent."""
        return Ledger(self.path / SPENT)

    @property
    def refusals(self) -> RefusalLog:
        """What was refused, and why."""
        return RefusalLog(self.path / REFUSALS)

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
            raise _damaged_error(path, "other bytes than were enrolled")
        unit = UNIT if self.private.has_units else None
        return load_scores(path, classes=self.private.classes, unit=unit)


def read_enrollment(source: SourceFolder, mark: str) -> Enrollment:
    """Read an enrollment by its id, or by how its id begins.

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
            f"one enrollment whose id begins with {mark[:40]!r}",
            f"{len(found)} of {len(ids)}",
            "Look at `veracal source status`.",
        )
    folder = source.path / ENROLLED / found[0]
    raw = read_file(folder, TERMS, MAX_TERMS_BYTES)
    terms = Terms.unseal(raw, str(folder / TERMS))
    if terms.key != source.public or terms.source != found[0]:
        raise _damaged_error(folder / TERMS, "terms of another source or enrollment")
    return Enrollment(folder, terms, OwnerSettings.read(folder), source.marks)


def list_enrollments(source: SourceFolder) -> list[Enrollment]:
    """Every enrollment, the oldest first."""
    return [read_enrollment(source, mark) for mark in source.enrolled()]


def is_prefix(mark: str, whole: str) -> bool:
    """Whether an id begins so; nothing begins with nothing."""
    return bool(mark) and is_enrollment_id(whole) and whole.startswith(mark)


def _state(path: Path, marks: FileMarkKey) -> str:
    """Mark of the size and the time of a file."""
    found = path.stat()
    return marks.of_text(f"{found.st_size} {found.st_mtime_ns}")


def _damaged_error(path: Path, found: str) -> DataError:
    """Error for a file of an enrollment that is not as it was written."""
    return DataError(
        str(path),
        "the file as it was written at enrollment",
        found[:200],
        "Restore it, or revoke the enrollment and enroll again.",
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


@dataclass(frozen=True)
class AnsweredRequest:
    """A query that was charged, and what left because of it.

    Attributes
    ----------
    number : int
        Of the entry: they are kept in order, and not by time.
    kind : str
    argument : dict
        Where it was asked.
    round : int or None
        The coordinator's own number.
    epsilon : float
        What this answer cost, taken by itself.
    values : tuple of float
        The noisy numbers that left; none if the answer could not be computed.
    noise_std : float
        How large the noise on each of them is.
    spent, left : Amount
        Of the coordinator's budget, after it.
    """

    number: int
    kind: str
    argument: dict[str, Any]
    round: int | None
    epsilon: float
    values: tuple[float, ...]
    noise_std: float
    spent: Amount
    left: Amount

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        return asdict(self)


@dataclass(frozen=True)
class AnswerLog:
    """All that an enrollment has answered and refused.

    Attributes
    ----------
    asked : tuple of Asked
    refused : tuple of (when, why)
        The last ones.
    problems : tuple of str
        What is wrong with the books, in full sentences; nothing if they are sound.
    """

    asked: tuple[AnsweredRequest, ...]
    refused: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]


def read_answer_log(source: SourceFolder, enrollment: Enrollment) -> AnswerLog:
    """Read the books of an enrollment, and check them while reading.

    The chain of the ledger is computed again, every answer is compared with its hash, and
    every signed head is looked for in the ledger.
    """
    problems = list(find_problems(source, enrollment))
    try:
        asked = tuple(_read_answers(enrollment))
    except (VeracalError, EnvelopeError, ValueError, LookupError, TypeError) as error:
        asked = ()
        problems.append(f"The answers cannot be read ({type(error).__name__}).")
    return AnswerLog(asked, tuple(enrollment.refusals.lines()), tuple(dict.fromkeys(problems)))


def find_problems(source: SourceFolder, enrollment: Enrollment) -> Iterator[str]:
    """What is wrong with the books and files of an enrollment."""
    try:
        enrollment.ledger.verify()
        source.signed_heads(enrollment.terms.source, enrollment.path).check(enrollment.ledger)
    except ClosedLedgerError as error:
        if not enrollment.is_revoked:
            yield f"{error} The mark of that is gone: an older copy of the folder was put back."
    except VeracalError as error:
        yield str(error)
    try:
        if enrollment.private.data is not None:
            enrollment.private.data.checked(enrollment.marks)
    except DataChangedError as error:
        yield str(error)
    try:
        enrollment.records()
    except DataError:
        yield f"{RECORDS} is not the file that was enrolled: nothing is answered."


def find_share_problems(source: SourceFolder) -> Iterator[str]:
    """What is wrong with the institution's own books."""
    try:
        source.shares.verify()
        source.signed_heads(source.id, source.path).check(source.shares)
        paid = {entry.request for entry in source.shares.entries()}
    except VeracalError as error:
        yield str(error)
        return
    for mark in source.enrolled():
        if mark not in paid:
            yield f"Enrollment {mark[:12]} has taken no share of the budget."
    for left in sorted((source.path / ENROLLED).glob(f"{TEMPORARY_PREFIX}*")):
        yield (
            f"{left} holds a copy of records that an enrollment left behind when it was killed. "
            "Remove the folder, unless records are being enrolled right now."
        )


def _read_answers(enrollment: Enrollment) -> Iterator[AnsweredRequest]:
    """Every entry of a ledger in words and numbers."""
    ledger, terms = enrollment.ledger, enrollment.terms
    rule, total = ledger.opening.rule, Cost(0)
    for line in ledger.to_json(answers=True)["entries"]:
        total += Cost(line["cost"], line["cost_delta"])
        spent = Amount(*rule.privacy(total, terms.budget))  # type: ignore[union-attr]
        left = Amount(*rule.left(total, terms.budget))  # type: ignore[union-attr]
        yield _read_answer(line, terms, spent, left)


def _read_answer(
    line: dict[str, Any], terms: Terms, spent: Amount, left: Amount
) -> AnsweredRequest:
    """One entry."""
    event = event_from_json(line["event"])
    laplace = isinstance(event, DiscreteLaplace)
    alone = (
        line["cost"] / MICRO if not terms.delta else epsilon_for(event, terms.delta, terms.unit)
    )
    if line["answer_hex"] is None:
        return AnsweredRequest(
            line["index"], line["purpose"], {}, None, alone, (), 0.0, spent, left
        )
    kept = json.loads(bytes.fromhex(line["answer_hex"]))
    request = kept["query"]
    if digest(canonical(request)) != line["request"]:
        raise ValueError("The stored query does not match the id of its request.")
    query = build_query(request["kind"], request["argument"], terms)
    std = (discrete_laplace_std if laplace else discrete_gaussian_std)(event.noise)  # type: ignore[union-attr]
    return AnsweredRequest(
        line["index"],
        request["kind"],
        request["argument"],
        kept["round"],
        alone,
        tuple(query.grid.values(kept["units"]).tolist()),
        std * query.grid.step,
        spent,
        left,
    )
