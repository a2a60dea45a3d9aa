"""An enrollment is charged completely to its data set's ledger before it can answer a query.

Sources in several folders enroll the same records, through the command and the library, for one
or several coordinators, until the ledger's caps on epsilon and delta are reached. While an
enrollment is written, the state on disk is compared after every line of the code: an enrollment
that could be served after a kill at that line must have been charged at no less than it grants.
Before the charge, records are only read to check, time and copy them; no answer is sent.
"""

import contextlib
import io
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np

from assurance import ledgers
from assurance.ledgers import Patches
from tests.federation.source.enrolled import MODEL, declaration, scores
from veracal.accounting import Approximate, Budget, Event, Pure
from veracal.accounting.events import Unit
from veracal.cli import _source_enroll as command
from veracal.data import save_scores
from veracal.errors import BudgetError, VeracalError
from veracal.federation.protocol.envelopes import PrivateKey, is_hexadecimal
from veracal.federation.protocol.messages import Request
from veracal.federation.protocol.terms import Terms
from veracal.federation.source import enrolling, serving
from veracal.federation.source.enrollment import TERMS
from veracal.federation.source.folder import ENROLLED, create_source
from veracal.federation.source.serving import SourceServer, open_source
from veracal.ledger import default_ledger_path
from veracal.ledger.ledger import Ledger
from veracal.workflow.charging import open_data_ledger

NAME = "source_enrollment"
CAPS = Budget(3.0, 2e-5)
KINDS = ("counts", "platt-counts")  # the second has Gaussian noise, and needs a delta
SLACK = 1e-9


# ---------------------------------------------------------------- mutants

ACCEPT, CHARGED, PURPOSE = enrolling.accept, SourceServer._charge_and_answer, enrolling._purpose
CHARGE_AND_ANSWER = "veracal.federation.source.serving.SourceServer._charge_and_answer"
COMMAND = "veracal.cli._source_enroll."
LIBRARY = "veracal.federation.source.enrolling."


def accepting(accept: Callable[..., Terms]) -> Patches:
    """A library, and a command, that write an enrollment in another way."""
    return {
        "veracal.federation.source.enrolling.accept": accept,
        "veracal.cli._source_enroll.accept": accept,
    }


def charging(charge: Callable[..., Any]) -> Patches:
    """A library that charges the data set's ledger in another way."""

    def accept(proposal: Any, records: Any, *, ledger: Any = None, **more: Any) -> Terms:
        other = None if ledger is None else Charging(ledger, charge)
        return ACCEPT(proposal, records, ledger=other, **more)

    return accepting(accept)


@dataclass
class Charging:
    """A ledger whose charges are made by a function."""

    ledger: Ledger
    new: Callable[..., Any]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ledger, name)

    def charge(self, event: Event, purpose: str, **more: Any) -> Any:
        """Charge, as the function does it."""
        return self.new(self.ledger, event, purpose, **more)


def charges_nothing(proposal: Any, records: Any, **more: Any) -> Terms:
    """Write the enrollment alone, as before."""
    return ACCEPT(proposal, records, **{**more, "ledger": None})


def charges_afterwards(
    proposal: Any, records: Any, *, ledger: Any = None, partition: Any = None, **more: Any
) -> Terms:
    """Charge once the enrollment, with its own ledger, is in its place."""
    terms = ACCEPT(proposal, records, **more)
    if ledger is not None:
        event = enrolling.data_event(terms.budget, ledger)
        ledger.charge(event, PURPOSE(terms), partition=partition, request=terms.source)
    return terms


def remembers_ledger(
    proposal: Any, records: Any, *, ledger: Any = None, partition: Any = None, **more: Any
) -> Terms:
    """Leave the charge to the first answer."""
    terms = ACCEPT(proposal, records, **more)
    UNPAID[terms.source] = (terms, ledger, partition)
    return terms


def charges_with_answer(self: SourceServer, *request: Any) -> Any:
    """Read the records for an answer, and charge the enrollment then."""
    answer = CHARGED(self, *request)
    terms, ledger, partition = UNPAID[self.terms.source]
    if ledger is not None:
        event = enrolling.data_event(terms.budget, ledger)
        ledger.charge(event, PURPOSE(terms), partition=partition, request=terms.source)
    return answer


def only_epsilon(ledger: Ledger, event: Event, purpose: str, **more: Any) -> Any:
    """Forget delta."""
    if isinstance(event, Approximate):
        event = Pure(event.epsilon, event.relation)
    return ledger.charge(event, purpose, **more)


def only_delta(ledger: Ledger, event: Event, purpose: str, **more: Any) -> Any:
    """Forget epsilon, where there is a delta."""
    if isinstance(event, Approximate):
        event = Approximate(1e-6, event.delta, event.relation)
    return ledger.charge(event, purpose, **more)


def beyond_the_caps(ledger: Ledger, event: Event, purpose: str, **more: Any) -> Any:
    """Charge what the ledger can pay, and enroll all the same where it cannot."""
    with suppress(BudgetError):
        return ledger.charge(event, purpose, **more)


def caps_raised(ledger: Ledger, event: Event, purpose: str, **more: Any) -> Any:
    """Raise the caps by what is missing."""
    try:
        return ledger.charge(event, purpose, **more)
    except BudgetError:
        ledger.extend(epsilon=9.0, delta=1e-4)
        return ledger.charge(event, purpose, **more)


def once_for_a_coordinator(ledger: Ledger, event: Event, purpose: str, **more: Any) -> Any:
    """Name the charge by the coordinator: further enrollments of the same size are free."""
    return ledger.charge(event, purpose, **{**more, "request": purpose})


def one_partition(ledger: Ledger, event: Event, purpose: str, **more: Any) -> Any:
    """Charge the test partition where all records are enrolled."""
    return ledger.charge(
        event, purpose, **{**more, "partition": more.get("partition") or "test"}
    )


UNPAID: dict[str, tuple[Terms, Any, Any]] = {}
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "charges nothing, as before": accepting(charges_nothing),
    "the command names no ledger": {"veracal.cli._source_enroll._ledger": lambda *_: None},
    "a ledger for each source": {
        "veracal.cli._source_enroll._ledger": lambda source, place, records: (
            command.open_data_ledger(source.path.with_suffix(".ledger"), source.budget, records)
        )
    },
    "charges after the enrollment is in its place": accepting(charges_afterwards),
    "charges after the records were read for an answer": {
        **accepting(remembers_ledger),
        CHARGE_AND_ANSWER: charges_with_answer,
    },
    "charges epsilon only": charging(only_epsilon),
    "charges delta only": charging(only_delta),
    "ignores the caps": charging(beyond_the_caps),
    "raises the caps": charging(caps_raised),
    "charges once for a coordinator": charging(once_for_a_coordinator),
    "charges one partition for all records": charging(one_partition),
}


# ---------------------------------------------------------------- what is granted and charged


@dataclass
class World:
    """Sources that enroll one file of scores, and the ledger of that file.

    Attributes
    ----------
    folder : Path
    caps : Budget
        Of the ledger.
    sources : dict of Path to str or None
        Folders of sources, and the partition whose records each enrolls.
    problems : list of str
        States that were found on the disk and must not be.
    lines : int
        Lines after which the disk was checked.
    sound : frozenset of Path
        Enrollments that can be served and were found to be charged. Nothing is ever refunded,
        so they need no second look.
    """

    folder: Path
    caps: Budget = CAPS
    sources: dict[Path, str | None] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    lines: int = 0
    sound: frozenset[Path] = frozenset()

    @property
    def scores(self) -> Path:
        """The file of scores."""
        return self.folder / "scores.npz"

    @property
    def ledger(self) -> Path:
        """Of the file, which need not be there."""
        return default_ledger_path(str(self.scores))

    def source(self, name: str, budget: Budget, part: str | None = None) -> Path:
        """Create a source with its own budget."""
        path = self.folder / name
        create_source(path, name, budget)
        self.sources[path] = part
        return path

    def served(self) -> frozenset[Path]:
        """Folders of all enrollments that can be served."""
        every = (one for path in self.sources for one in (path / ENROLLED).iterdir())
        return frozenset(one for one in every if is_hexadecimal(one.name, 32))

    def granted(self, part: str) -> tuple[float, float]:
        """Epsilon and delta of all that can be served and includes a partition."""
        reply = [
            Terms.unseal((one / TERMS).read_bytes()).budget
            for one in self.served()
            if self.sources[one.parent.parent] in (None, part)
        ]
        return math.fsum(one.epsilon for one in reply), math.fsum(one.delta for one in reply)

    def check(self, where: str) -> None:
        """Compare what can be served with what was charged, and with the caps."""
        served, problems = self.served(), len(self.problems)
        for part in ("train", "test"):
            epsilon, delta = self.granted(part)
            if epsilon == 0:
                continue
            spent = Ledger(self.ledger).spent(part) if self.ledger.exists() else None
            if (
                spent is None
                or spent.epsilon < epsilon - SLACK
                or spent.delta < delta * (1 - SLACK)
            ):
                self.problems.append(
                    f"{where}: epsilon {epsilon:g}, delta {delta:g} of {part} can be served, "
                    f"and {spent or 'nothing'} was charged"
                )
            if epsilon > self.caps.epsilon + SLACK or delta > self.caps.delta * (1 + SLACK):
                self.problems.append(
                    f"{where}: epsilon {epsilon:g}, delta {delta:g} of {part} can be served "
                    f"under {self.caps}"
                )
        if len(self.problems) == problems:
            self.sound = served

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Check the disk after every line of the code that writes an enrollment."""
        files = {enrolling.__file__, __file__}

        def enter(frame: FrameType, event: str, _: Any) -> Any:
            return line if frame.f_code.co_filename in files else None

        def line(frame: FrameType, event: str, _: Any) -> Any:
            self.lines += event == "line"
            if not self.problems and self.served() != self.sound:  # not traced itself
                self.check(f"{frame.f_code.co_name}, line {frame.f_lineno}")
            return line

        earlier = sys.gettrace()
        sys.settrace(enter)
        try:
            yield
        finally:
            sys.settrace(earlier)

    def enroll(self, source: Path, epsilon: float, delta: float, key: PrivateKey) -> bool:
        """Enroll through the command; whether it was allowed."""
        out = self.folder / f"{source.name}-{len(list((source / ENROLLED).iterdir()))}.terms"
        places = command.RecordPaths(self.scores, None, None, MODEL, None, None)
        terms = {"epsilon": epsilon, "delta": delta, "kinds": KINDS, "coordinator": key.public}
        quiet = (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        )
        with quiet[0], quiet[1]:
            return self.allowed(
                source,
                lambda: command.enroll_source(
                    source,
                    places,
                    lambda model: declaration(**terms, model=model, max_per_answer=None),
                    out,
                    None,
                    yes=True,
                    json=True,
                ),
            )

    def allowed(self, source: Path, enroll: Callable[[], object]) -> bool:
        """Whether an enrollment is made; one that is refused must leave nothing."""
        held = set((source / ENROLLED).iterdir())
        spent = Ledger(self.ledger).spent() if self.ledger.exists() else None
        try:
            with self.watched():
                enroll()
        except VeracalError:
            assert set((source / ENROLLED).iterdir()) == held, "refused, and left something"
            now = Ledger(self.ledger).spent() if self.ledger.exists() else None
            assert now == spent, f"refused, and charged: {spent} became {now}"
            return False
        finally:
            assert not self.problems, self.problems[0]
        self.check("afterwards")
        assert not self.problems, self.problems[0]
        return True


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Enroll until nothing is left; ``long`` changes nothing."""
    allowed = refused = lines = 0
    for scenario in (through_the_command, in_partitions, for_units):
        with ledgers.patched(subject) as folder:
            env = {"VERACAL_LEDGERS": str(folder / "ledgers")}
            with mock.patch.dict("os.environ", env):
                world = World(folder)
                save_scores(scores(), world.scores)
                outcomes = scenario(world)
                ledgers.verified(Ledger(world.ledger))
        allowed, refused = allowed + sum(outcomes), refused + outcomes.count(False)
        lines += world.lines
    return (
        f"{allowed} enrollments charged in full and {refused} refused, at each of {lines:,} "
        "lines"
    )


def expect(outcomes: list[tuple[bool, bool]]) -> list[bool]:
    """Compare what was allowed with what the caps allow."""
    for number, (result, expected) in enumerate(outcomes, start=1):
        word = "allowed" if result else "refused"
        assert result == expected, f"enrollment {number} was {word}"
    return [result for result, _ in outcomes]


def through_the_command(world: World) -> list[bool]:
    """Two folders of the same records share the caps of the first, on epsilon and on delta."""
    north = world.source("north", CAPS)
    south = world.source("south", Budget(9.0, 1e-3))
    one, other = PrivateKey.new(), PrivateKey.new()
    outcomes = [
        (world.enroll(north, 1.0, 5e-6, one), True),
        (world.enroll(south, 1.0, 5e-6, one), True),  # the same coordinator and amount again
        (world.enroll(south, 1.5, 1e-6, other), False),  # more than is left of epsilon
        (world.enroll(south, 0.5, 1.5e-5, other), False),  # more than is left of delta
        (world.enroll(south, 1.0, 1e-5, other), True),  # all that is left
        (world.enroll(south, 0.1, 1e-7, other), False),
    ]
    answer(world, north, one)
    return expect(outcomes)


def in_partitions(world: World) -> list[bool]:
    """Through the library, whose check is the last before the charge, and by partition."""
    ledger = open_data_ledger(world.ledger, CAPS, str(world.scores))
    places = {None: "all", "test": "of test"}
    sources = {
        part: world.source(name, Budget(9.0, 1e-3), part) for part, name in places.items()
    }

    def enroll(part: str | None, epsilon: float, delta: float) -> bool:
        terms = declaration(epsilon=epsilon, delta=delta, kinds=KINDS, max_per_answer=None)
        return world.allowed(
            sources[part],
            lambda: enrolling.enroll(
                sources[part], scores(), terms, ledger=ledger, partition=part
            ),
        )

    return expect(
        [
            (enroll("test", 1.0, 1e-5), True),
            (enroll(None, 1.0, 5e-6), True),
            (enroll("test", 1.5, 1e-6), False),
            (enroll("test", 0.5, 1e-5), False),
            (enroll(None, 1.5, 1e-6), False),
            (enroll("test", 1.0, 5e-6), True),
        ]
    )


def for_units(world: World) -> list[bool]:
    """A unit of three rows pays once for all of its rows."""
    world.caps = Budget(1.5, unit=Unit("patient", 3))
    source = world.source("units", Budget(9.0, unit=Unit("patient", 3)))
    ledger = open_data_ledger(world.ledger, world.caps, str(world.scores))
    records = scores(units=np.arange(60) // 3)

    def enroll(epsilon: float) -> bool:
        terms = declaration(epsilon=epsilon, kinds=KINDS[:1], max_per_answer=None)
        return world.allowed(
            source, lambda: enrolling.enroll(source, records, terms, ledger=ledger)
        )

    return expect([(enroll(1.0), True), (enroll(0.6), False), (enroll(0.4), True)])


def answer(world: World, source: Path, key: PrivateKey) -> None:
    """An enrollment answers, from its own share: the data set's ledger pays no second time."""
    spent = Ledger(world.ledger).spent()
    server = open_source(source)
    request = Request(
        source=server.terms.source,
        data=server.terms.data,
        model=server.terms.model,
        kind="counts",
        argument={},
        micro_epsilon=None,
        noise_multiplier=50.0,
    )
    with mock.patch.object(serving, "evaluate_query", wraps=serving.evaluate_query) as read:
        assert server.reply(request.seal(key)) != server.refusal, (
            "an enrollment does not answer"
        )
    assert read.call_count == 1, "the records were not read once"
    assert Ledger(world.ledger).spent() == spent, "an answer was charged a second time"
