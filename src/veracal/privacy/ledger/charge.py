"""How a charge is made: check, compute and keep in one transaction, then release."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection

from veracal import _checks
from veracal.errors import AnswerError, BudgetError, ConflictError
from veracal.privacy import events
from veracal.privacy.events import Event
from veracal.privacy.ledger import tables
from veracal.privacy.ledger.chain import Entry, Outcome, canonical, digest
from veracal.privacy.ledger.opening import Opening, name, readable
from veracal.privacy.ledger.plan import Planned
from veracal.privacy.ledger.store import writing
from veracal.privacy.ledger.units import Cost

_LONGEST_ANSWER = 2**28  # bytes


@dataclass(frozen=True)
class Asked:
    """A charge, before it is made."""

    event: Event
    purpose: str
    part: str | None
    delta: float | None
    request: str | None
    body: bytes | None

    def __post_init__(self) -> None:
        readable(self.event)
        name(purpose=self.purpose)
        if self.delta is not None:
            _checks.fraction(delta=self.delta)
            object.__setattr__(self, "delta", float(self.delta))
        if self.request is not None:
            name(request=self.request)
        if not isinstance(self.body, bytes | None):
            raise ValueError(f"Expected body to be bytes, got {type(self.body).__name__}.")

    @property
    def fingerprint(self) -> str | None:
        """Hash of everything that is asked for under a request id."""
        if self.request is None:
            return None
        asked = {
            "event": events.to_json(self.event),
            "purpose": self.purpose,
            "part": self.part,
            "delta": self.delta,
            "body": None if self.body is None else digest(self.body),
        }
        return digest(canonical(asked))


def enter(
    path: Path, asked: Asked, compute: Callable[[], bytes] | None
) -> tuple[Entry, bytes | None]:
    """Charge, compute and keep: all of it or nothing, and only once for one request id.

    Guarantees
    ----------
    ``compute`` is called only inside a transaction in which the charge is known to fit; what
    it returns leaves only after the charge and the answer are on the disk together.
    """
    answer: bytes | None = None
    with writing(path) as connection:
        if (kept := _kept(connection, asked)) is not None:
            return kept
        account, cost = affordable(connection, asked)
        outcome: Outcome = "charged"
        if compute is not None:
            try:
                answer, outcome = _bytes(compute()), "answered"
            except KeyboardInterrupt:  # from outside: nothing is charged, nothing released
                raise
            except BaseException:  # whatever it says may tell of records: nothing of it is kept
                outcome = "failed"
        entry = _entry(connection, asked, account, cost, outcome, answer)
        tables.append(connection, entry, answer)
    if outcome == "failed":
        raise failed(entry)
    return entry, answer


def _kept(connection: Connection, asked: Asked) -> tuple[Entry, bytes | None] | None:
    """What was made of this request before, or a refusal of another one under its id."""
    if asked.request is None:
        return None
    found = tables.find(connection, asked.request)
    if found is not None and found[0].body != asked.fingerprint:
        raise ConflictError(
            f"Request {asked.request!r} was made before, for something else; nothing was "
            "charged and no record was read. Ask under another id."
        )
    return found


def affordable(connection: Connection, asked: Asked) -> tuple[str | None, Cost]:
    """Account and cost of a charge that fits into what is left."""
    opening = Opening.from_text(tables.opening(connection)[0])
    opening.check(asked.event, asked.part)
    account = opening.account(asked.event, asked.purpose, asked.part)
    cost = opening.cost(asked.event, asked.delta)
    for where, spent, total in tables.balances(connection):
        if account in (None, where) and not cost.within(total - spent):
            raise _overspent(opening, asked, where, cost, total - spent, total)
    return account, cost


def _overspent(
    opening: Opening, asked: Asked, where: str, cost: Cost, left: Cost, total: Cost
) -> BudgetError:
    """Refusal of a charge."""
    rule = opening.rule
    if isinstance(rule, Planned):
        return BudgetError(
            f"{asked.purpose!r} is planned {_times(total.amount)} and was used as often; no "
            "record was read. Plan more of it in another ledger, on other records."
        )
    part = f" for part {where!r}" if len(opening.parts) > 1 else ""
    return BudgetError(
        f"{asked.purpose!r} needs {rule.measure}={rule.figure(cost)}, but {rule.figure(left)} "
        f"of {rule.figure(total)} is left{part}; no record was read. Ask for less (more noise, "
        "fewer steps) or open a ledger with a larger budget."
    )


def _times(number: int) -> str:
    """How often, in words."""
    return "once" if number == 1 else f"{number} times"


def _entry(
    connection: Connection,
    asked: Asked,
    account: str | None,
    cost: Cost,
    outcome: Outcome,
    answer: bytes | None,
) -> Entry:
    """The entry that follows the last one."""
    index, previous = tables.head(connection)
    return Entry(
        index=index + 1,
        purpose=asked.purpose,
        event=asked.event,
        part=asked.part,
        delta=asked.delta,
        account=account,
        cost=cost.amount,
        cost_delta=cost.delta,
        request=asked.request,
        body=asked.fingerprint,
        outcome=outcome,
        answer=None if answer is None else digest(answer),
        previous=previous,
    )


def _bytes(answer: object) -> bytes:
    """Refuse an answer that cannot be kept as it is."""
    if not isinstance(answer, bytes) or len(answer) > _LONGEST_ANSWER:
        raise ValueError(f"Expected an answer of at most {_LONGEST_ANSWER:,} bytes.")
    return answer


def failed(entry: Entry) -> AnswerError:
    """The one way in which a failed request is refused, at first and ever after."""
    return AnswerError(
        f"Request {entry.request!r} was charged, and its answer could not be computed. The "
        "charge stands, and asking again under this id will be refused in the same way."
    )
