"""What a source was asked, what left it and what that cost, read back from its books."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from veracal.errors import DataError, VeracalError
from veracal.federation.protocol.envelopes import EnvelopeError
from veracal.federation.protocol.questions import built
from veracal.federation.protocol.terms import Terms
from veracal.federation.source.enrolment import RECORDS, ChangedError, Enrolment
from veracal.federation.source.folder import BUILDING, ENROLLED, SourceFolder
from veracal.federation.source.signed_heads import EndedError
from veracal.privacy.answers.noise import discrete_gaussian_std, discrete_laplace_std
from veracal.privacy.costs.accounting import epsilon_for
from veracal.privacy.costs.pure import MICRO
from veracal.privacy.events import DiscreteLaplace, from_json
from veracal.privacy.ledger.book import Amount
from veracal.privacy.ledger.chain import canonical, digest
from veracal.privacy.ledger.units import Cost


@dataclass(frozen=True)
class Asked:
    """A question that was charged, and what left because of it.

    Attributes
    ----------
    number : int
        Of the entry: they are kept in order, and not by time.
    kind : str
    argument : dict
        Where it was asked.
    round : int or None
        The calibrator's own number.
    epsilon : float
        What this answer cost, taken by itself.
    values : tuple of float
        The noisy numbers that left; none if the answer could not be computed.
    noise_std : float
        How large the noise on each of them is.
    spent, left : Amount
        Of the calibrator's budget, after it.
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
class History:
    """All that an enrolment has answered and refused.

    Attributes
    ----------
    asked : tuple of Asked
    refused : tuple of (when, why)
        The last ones.
    problems : tuple of str
        What is wrong with the books, in full sentences; nothing if they are sound.
    """

    asked: tuple[Asked, ...]
    refused: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]


def history(source: SourceFolder, enrolment: Enrolment) -> History:
    """Read the books of an enrolment, and check them while reading.

    The chain of the ledger is computed again, every answer is compared with its hash, and
    every signed head is looked for in the ledger.
    """
    problems = list(problems_of(source, enrolment))
    try:
        asked = tuple(_asked(enrolment))
    except (VeracalError, EnvelopeError, ValueError, LookupError, TypeError) as error:
        asked = ()
        problems.append(f"The answers cannot be read ({type(error).__name__}).")
    return History(asked, tuple(enrolment.refusals.lines()), tuple(dict.fromkeys(problems)))


def problems_of(source: SourceFolder, enrolment: Enrolment) -> Iterator[str]:
    """What is wrong with the books and files of an enrolment."""
    try:
        enrolment.ledger.verify()
        source.signed_heads(enrolment.terms.source, enrolment.path).check(enrolment.ledger)
    except EndedError as error:
        if not enrolment.is_revoked:
            yield f"{error} The mark of that is gone: an older copy of the folder was put back."
    except VeracalError as error:
        yield str(error)
    try:
        if enrolment.private.data is not None:
            enrolment.private.data.checked(enrolment.marks)
    except ChangedError as error:
        yield str(error)
    try:
        enrolment.records()
    except DataError:
        yield f"{RECORDS} is not the file that was enrolled: nothing is answered."


def share_problems(source: SourceFolder) -> Iterator[str]:
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
            yield f"Enrolment {mark[:12]} has taken no share of the budget."
    for left in sorted((source.path / ENROLLED).glob(f"{BUILDING}*")):
        yield (
            f"{left} holds a copy of records that an enrolment left behind when it was killed. "
            "Remove the folder, unless records are being enrolled right now."
        )


def _asked(enrolment: Enrolment) -> Iterator[Asked]:
    """Every entry of a ledger in words and numbers."""
    ledger, terms = enrolment.ledger, enrolment.terms
    rule, total = ledger.opening.rule, Cost(0)
    for line in ledger.to_json(answers=True)["entries"]:
        total += Cost(line["cost"], line["cost_delta"])
        spent = Amount(*rule.privacy(total, terms.budget))  # type: ignore[union-attr]
        left = Amount(*rule.left(total, terms.budget))  # type: ignore[union-attr]
        yield _one(line, terms, spent, left)


def _one(line: dict[str, Any], terms: Terms, spent: Amount, left: Amount) -> Asked:
    """One entry."""
    event = from_json(line["event"])
    laplace = isinstance(event, DiscreteLaplace)
    alone = (
        line["cost"] / MICRO if not terms.delta else epsilon_for(event, terms.delta, terms.unit)
    )
    if line["answer_hex"] is None:
        return Asked(line["index"], line["purpose"], {}, None, alone, (), 0.0, spent, left)
    kept = json.loads(bytes.fromhex(line["answer_hex"]))
    question = kept["question"]
    if digest(canonical(question)) != line["request"]:
        raise ValueError("The question is another than was asked.")
    query = built(question["kind"], question["argument"], terms)
    std = (discrete_laplace_std if laplace else discrete_gaussian_std)(event.noise)  # type: ignore[union-attr]
    return Asked(
        line["index"],
        question["kind"],
        question["argument"],
        kept["round"],
        alone,
        tuple(query.grid.values(kept["units"]).tolist()),
        std * query.grid.step,
        spent,
        left,
    )
