"""An enrollment on disk: terms for one coordinator, records, ledger, and log of answers.

The log of answers is read back from the ledger: each query, the noisy numbers that were sent,
and their cost.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from veracal.accounting import MICRO, epsilon_for, event_from_json
from veracal.artifact import read_file
from veracal.data import Label, Scores, atomic_file, load_scores, translate_os_errors
from veracal.errors import DataError, VeracalError
from veracal.federation.protocol.envelopes import MAX_TERMS_BYTES, EnvelopeError
from veracal.federation.protocol.queries import build_query
from veracal.federation.protocol.terms import Terms
from veracal.federation.source.folder import (
    ENROLLED,
    TEMPORARY_PREFIX,
    ClosedLedgerError,
    DigestKey,
    RefusalLog,
    SourceFolder,
)
from veracal.ledger import Cost, EpsilonDelta, Ledger, canonical, digest
from veracal.queries import noise_std

TERMS, PRIVATE, RECORDS, SPENT, REFUSALS, REVOKED = (
    "terms",
    "private.json",
    "records.npz",
    "spent.ledger",
    "refusals.log",
    "revoked",
)
UNIT = "unit"  # array of ids in records.npz
_MAX_SETTINGS_BYTES = 2**22  # private.json names the classes, possibly thousands


class DataChangedError(VeracalError):
    """The data file differs from the one that was enrolled."""


@dataclass(frozen=True)
class RecordFile:
    """State of a file at enrollment.

    Digests are keyed (:class:`DigestKey`), so they do not confirm a guess of the content or
    the size of the file.
    """

    path: str
    state: str  # keyed digest of its size and modification time
    content: str  # keyed digest of its bytes

    @classmethod
    def read(cls, path: Path, digest_key: DigestKey) -> "RecordFile":
        """Compute the digests of a file."""
        absolute = path.absolute()
        with translate_os_errors(absolute):
            state = digest_key.of_state(absolute)
        return cls(str(absolute), state, digest_key.of_file(absolute))

    def verify(self, digest_key: DigestKey) -> "RecordFile":
        """Check that the bytes of the file are unchanged, and return its current state.

        The bytes are read only if the size or the modification time changed.

        Raises
        ------
        DataChangedError
            The message is for the owner.
        """
        path = Path(self.path)
        try:
            state = digest_key.of_state(path)
            if state == self.state:
                return self
            if digest_key.of_file(path) == self.content:
                return replace(self, state=state)
        except (OSError, DataError) as cause:
            raise DataChangedError(
                f"The data file {self.path} is missing or cannot be read. All requests are "
                "refused until it is restored."
            ) from cause
        raise DataChangedError(
            f"The data file {self.path} has changed since it was enrolled. All requests are "
            "refused. Revoke this enrollment and enroll again, or restore the file."
        )


@dataclass(frozen=True)
class OwnerSettings:
    """Private settings of an enrollment, which only the owner of the source reads."""

    classes: tuple[Label, ...]  # labels as the records contain them
    records: str  # keyed digest of the file of records
    has_units: bool
    data: RecordFile | None  # file that the records come from
    model: str | None  # path at enrollment
    enrolled: str  # date
    seconds: float  # of the slowest query, including reading the records

    def save(self, path: Path) -> None:
        """Write a new file that only its owner can read."""
        data = None if self.data is None else vars(self.data)
        body = {**vars(self), "classes": list(self.classes), "data": data}
        with atomic_file(path) as file:
            file.write(canonical(body).encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> "OwnerSettings":
        """Read the settings of an enrollment."""
        content = read_file(folder, PRIVATE, _MAX_SETTINGS_BYTES)
        try:
            body = json.loads(content)
            data = None if body["data"] is None else RecordFile(**body["data"])
            return cls(**{**body, "classes": tuple(body["classes"]), "data": data})
        except (ValueError, LookupError, TypeError) as cause:
            raise _damaged_error(folder / PRIVATE, "other fields") from cause


@dataclass(frozen=True)
class Enrollment:
    """An enrollment of a source."""

    path: Path
    terms: Terms
    settings: OwnerSettings
    digest_key: DigestKey  # key of the source's file digests

    @property
    def ledger(self) -> Ledger:
        """Ledger of what this coordinator spent."""
        return Ledger(self.path / SPENT)

    @property
    def refusals(self) -> RefusalLog:
        """Log of refusals with their reasons."""
        return RefusalLog(self.path / REFUSALS)

    @property
    def is_revoked(self) -> bool:
        """Whether the owner revoked the enrollment."""
        return (self.path / REVOKED).exists()

    def records(self) -> Scores:
        """Read the enrolled records.

        Raises
        ------
        DataError
            If the file differs from what was enrolled.
        """
        path = self.path / RECORDS
        if self.digest_key.of_file(path) != self.settings.records:
            raise _damaged_error(path, "a file that differs from what was enrolled")
        unit = UNIT if self.settings.has_units else None
        return load_scores(path, classes=self.settings.classes, unit=unit)


def read_enrollment(source: SourceFolder, prefix: str) -> Enrollment:
    """Read an enrollment by its id or a unique prefix of it."""
    ids = source.enrollment_ids()
    matches = [each for each in ids if prefix and each.startswith(prefix)]
    if len(matches) != 1:
        raise DataError(
            str(source.path),
            f"one enrollment whose id begins with {prefix[:40]!r}",
            f"{len(matches)} of {len(ids)}",
            "See `veracal source status`.",
        )
    folder = source.path / ENROLLED / matches[0]
    raw = read_file(folder, TERMS, MAX_TERMS_BYTES)
    terms = Terms.unseal(raw, str(folder / TERMS))
    if terms.key != source.public or terms.source != matches[0]:
        raise _damaged_error(folder / TERMS, "terms of another source or enrollment")
    return Enrollment(folder, terms, OwnerSettings.read(folder), source.digest_key)


def list_enrollments(source: SourceFolder) -> list[Enrollment]:
    """All enrollments, oldest first."""
    return [read_enrollment(source, each) for each in source.enrollment_ids()]


def _damaged_error(path: Path, actual: str) -> DataError:
    """Error for a file of an enrollment that was changed."""
    return DataError(
        str(path),
        "the file that was written at enrollment",
        actual[:200],
        "Restore it, or revoke the enrollment and enroll again.",
    )


@dataclass(frozen=True)
class AnsweredRequest:
    """A charged request and its answer, for the owner of the source."""

    number: int  # of the ledger entry: the ledger stores the order, not the time
    kind: str
    argument: dict[str, Any]
    round: int | None  # number of the coordinator's round
    epsilon: float  # cost of this answer alone
    values: tuple[float, ...]  # noisy numbers that were sent; none if computing them failed
    noise_std: float  # of each number
    spent: EpsilonDelta  # by this coordinator, including this answer
    left: EpsilonDelta


@dataclass(frozen=True)
class AnswerLog:
    """Everything that an enrollment answered and refused."""

    answers: tuple[AnsweredRequest, ...]
    refusals: tuple[tuple[str, str], ...]  # time and reason of the latest refusals
    problems: tuple[str, ...]  # integrity problems, in full sentences


def read_answer_log(source: SourceFolder, enrollment: Enrollment) -> AnswerLog:
    """Read and verify the log of an enrollment.

    The hash chain of the ledger is recomputed, each query is compared with the id of its
    request, and each signed head must be in the ledger.
    """
    problems = list(find_problems(source, enrollment))
    try:
        answers = tuple(_read_answers(enrollment.ledger, enrollment.terms))
    except (VeracalError, EnvelopeError, ValueError, LookupError, TypeError) as error:
        answers = ()
        problems.append(f"The answers cannot be read ({type(error).__name__}).")
    return AnswerLog(
        answers, tuple(enrollment.refusals.lines()), tuple(dict.fromkeys(problems))
    )


def find_problems(source: SourceFolder, enrollment: Enrollment) -> Iterator[str]:
    """Integrity problems of the ledger and the files of an enrollment."""
    try:
        enrollment.ledger.verify()
        source.signed_heads(enrollment.terms.source, enrollment.path).check(enrollment.ledger)
    except ClosedLedgerError as error:
        if not enrollment.is_revoked:
            yield f"{error} The file that marks it is missing: an older copy was restored."
    except VeracalError as error:
        yield str(error)
    try:
        if enrollment.settings.data is not None:
            enrollment.settings.data.verify(enrollment.digest_key)
    except DataChangedError as error:
        yield str(error)
    try:
        enrollment.records()
    except DataError:
        yield f"{RECORDS} is not the file that was enrolled. All requests are refused."


def find_share_problems(source: SourceFolder) -> Iterator[str]:
    """Integrity problems of the institution's own ledger."""
    try:
        source.shares.verify()
        source.signed_heads(source.id, source.path).check(source.shares)
        paid = {entry.request for entry in source.shares.entries()}
    except VeracalError as error:
        yield str(error)
        return
    for each in source.enrollment_ids():
        if each not in paid:
            yield f"Enrollment {each[:12]} was not charged to the budget."
    for folder in sorted((source.path / ENROLLED).glob(f"{TEMPORARY_PREFIX}*")):
        yield (
            f"{folder} holds a copy of records from an enrollment that was killed. Remove the "
            "folder, unless records are being enrolled now."
        )


def _read_answers(ledger: Ledger, terms: Terms) -> Iterator[AnsweredRequest]:
    """Read every entry of the ledger of an enrollment."""
    rule, total, budget = ledger.opening.rule, Cost(0), terms.budget
    for line in ledger.to_json(answers=True)["entries"]:
        total += Cost(line["cost"], line["cost_delta"])
        spent = EpsilonDelta(*rule.privacy(total, budget))  # type: ignore[union-attr]
        left = EpsilonDelta(*rule.left(total, budget))  # type: ignore[union-attr]
        event = event_from_json(line["event"])
        epsilon = (
            epsilon_for(event, terms.delta, terms.unit) if terms.delta else line["cost"] / MICRO
        )
        answer = AnsweredRequest(
            line["index"], line["purpose"], {}, None, epsilon, (), 0.0, spent, left
        )
        if line["answer_hex"] is not None:
            stored = json.loads(bytes.fromhex(line["answer_hex"]))
            request = stored["query"]
            if digest(canonical(request)) != line["request"]:
                raise ValueError("The stored query does not match the id of its request.")
            query = build_query(request["kind"], request["argument"], terms)
            answer = replace(
                answer,
                kind=request["kind"],
                argument=request["argument"],
                round=stored["round"],
                values=tuple(query.grid.values(stored["units"]).tolist()),
                noise_std=noise_std(event) * query.grid.step,  # type: ignore[arg-type]
            )
        yield answer
