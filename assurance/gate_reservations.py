"""A fit holds no lock, is charged before a record is read, and gives one model per charge.

Children fit a model through ``Curator.fit_once``, and stop in the middle of the fit until the
parent lets them continue or kills them: nothing depends on time. The ledger does not wait here,
so that a process that meets a lock fails at once.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from assurance import ledgers
from veracal.accounting.events import Budget, Event, Pure
from veracal.data import Dataset
from veracal.errors import AnswerError, BudgetError, LedgerError
from veracal.ledger import charging as ledger_reservations
from veracal.ledger import storage as ledger_store
from veracal.ledger import storage as ledger_tables
from veracal.ledger.charging import ChargeRequest
from veracal.ledger.ledger import Ledger, open_ledger
from veracal.mechanisms import progress as descent_progress
from veracal.mechanisms.progress import StepProgress, TrainingCurve
from veracal.queries.curator import Curator

NAME = "reservations"
COST = Pure(0.125)
ONCE = {"request": "study", "body": b"settings"}
SETTLE = "veracal.ledger.charging.settle"
HOLDER = "veracal.queries.curator."
SEES_WEIGHTS = "veracal.queries.curator.hook_exposes_weights"
STEPS = 3
DATA = Dataset(np.ones((4, 2)), np.array([0, 1, 0, 1]), ("no", "yes"))


class Model:
    """A model whose fit reports that it has begun, and waits for a signal to continue.

    Parameters
    ----------
    begun, go_on : int, optional
        Pipes: where the fit says that it has begun, and where it waits.
    error : exception, optional
        How the fit ends.
    on_step : callable, optional
        Called for each of three steps, unless it is a ``StepProgress``.
    stop : callable, optional
        Called after the steps.
    """

    intercept_ = np.zeros(1)

    def __init__(
        self,
        begun: int | None = None,
        go_on: int | None = None,
        error: BaseException | None = None,
        on_step: Any = None,
        stop: Callable[[], object] | None = None,
    ) -> None:
        self.begun, self.go_on, self.error, self.on_step = begun, go_on, error, on_step
        self.weights, self.stop = b"", stop

    def length(self) -> int:
        """Number of steps."""
        return STEPS

    def event(self) -> Event:
        """Cost of one fit."""
        return COST

    def fit(self, X: Any, y: Any) -> "Model":
        """Fit; no two fits give the same weights."""
        self.weights = os.urandom(16)
        self.coef_ = np.frombuffer(self.weights, np.uint64)[None] / 2**64
        if callable(self.on_step) and type(self.on_step) is not StepProgress:
            for number in range(STEPS):
                self.on_step(self, SimpleNamespace(number=number))
        if self.stop is not None:
            self.stop()
        if self.begun is not None and self.go_on is not None:
            os.write(self.begun, b"!")
            os.read(self.go_on, 1)
        if self.error is not None:
            raise self.error
        return self


# ---------------------------------------------------------------- observers of the user's


class RunConsumer:
    """Where an observer writes weights to, before anything is recorded."""

    def __call__(self, model: Any, step: object) -> None:
        """Take weights, and keep nothing here: that they were shown is enough."""
        assert model.weights


class HeldObserver:
    """The type that was exempt, which calls any function with weights."""

    def __init__(self, callback: Callable[[int, int], object], note: Callable) -> None:
        self._progress, self.note = StepProgress(callback), note

    def __call__(self, model: Any, step: Any) -> None:
        """Call the function, and report the number of the step."""
        self.note(model, step)
        self._progress.report(step.number + 1, model.length())


class LooksLikeACurve(RunConsumer):
    """An observer with the attributes of the exempt type."""

    losses: tuple[float, ...] = ()
    _held: ClassVar[list[float]] = []


class ClaimsToBeACurve(RunConsumer):
    """An observer that passes ``isinstance``."""

    __class__ = TrainingCurve  # type: ignore[assignment]


OBSERVERS: Sequence[Callable[[], object]] = (
    lambda: HeldObserver(lambda done, total: None, RunConsumer()),
    LooksLikeACurve,
    ClaimsToBeACurve,
)


# ---------------------------------------------------------------- mutants

SETTLED = ledger_reservations.settle  # before any patch


def fit_in_transaction(
    holder: Curator,
    model: Model,
    keep: Callable,
    *,
    request: str,
    body: bytes,
    purpose="training",
) -> bytes:
    """Fit inside the transaction that charges, as before."""
    event = holder._cost(model)
    return holder.ledger.answer(
        event,
        purpose,
        lambda: keep(holder._fit_charged(model, event, purpose)),
        request=request,
        body=body,
        partition=holder.partition,
    )[1]


def overwritten(path: Path, index: int, answer: bytes | None) -> object:
    """Record whatever comes, whether or not something was recorded before."""
    with ledger_store.writing(path) as connection:
        reservation = ledger_tables.entry(connection, index)
        outcome = "failed" if answer is None else "answered"
        entry = ledger_reservations.append_settlement(connection, reservation, outcome, answer)
    return entry, answer


def failure_is_forgotten(path: Path, index: int, answer: bytes | None) -> object:
    """Keep the reservation of a failed fit open for another attempt."""
    if answer is not None:
        return SETTLED(path, index, answer)
    raise AnswerError("failed")


def not_durable(path: Path, asked: ChargeRequest, compute: Callable[[], bytes]) -> object:
    """Compute, and reserve and record afterwards."""
    answer = compute()
    entry, settled = ledger_reservations.reserve(path, asked)
    settled = settled or SETTLED(path, entry.index, answer)
    return settled[0], ledger_reservations.get_answer(settled, asked.request)


def exempt_by_promise(hook: object) -> bool:
    """Exempt an observer whose maker promises to hold what it notes, as before."""
    exempt = (StepProgress, TrainingCurve, HeldObserver)
    return hook is not None and type(hook) not in exempt


def exempt_by_attributes(hook: object) -> bool:
    """Exempt whatever has losses and a place to hold them."""
    held = hasattr(hook, "losses") and hasattr(hook, "_held")
    return hook is not None and type(hook) is not StepProgress and not held


def exempt_by_isinstance(hook: object) -> bool:
    """Exempt whatever says that it is a curve."""
    return hook is not None and not isinstance(hook, StepProgress | TrainingCurve)


@contextmanager
def released_at_the_end(curves: Iterable[TrainingCurve]) -> Iterator[Callable[[], None]]:
    """Release what curves hold, however an attempt ends."""
    with HOLD(curves) as release:
        try:
            yield release
        finally:
            release()


@contextmanager
def never_discarded(curves: Iterable[TrainingCurve]) -> Iterator[Callable[[], None]]:
    """Release what earlier attempts held, too."""
    curves = list(curves)
    with HOLD(curves) as release:
        for curve in curves:
            curve._held = EARLIER.setdefault(id(curve), [])
        yield release


EARLIER: dict[int, list[float]] = {}
HOLD = descent_progress.hold_curves
CORRECT = ledgers.CORRECT
MUTANTS = {
    "fit inside the write transaction, as before": {
        "veracal.queries.curator.Curator.fit_once": fit_in_transaction
    },
    "record overwrites": {
        SETTLE: overwritten,
        ledgers.SCHEMA: ledgers.without(ledgers.SETTLED_ONCE),
    },
    "record overwrites, saved by the constraint": {SETTLE: overwritten},
    "a failure is tried again": {SETTLE: failure_is_forgotten},
    "reservation not durable before compute": {
        "veracal.ledger.charging.compute_once": not_durable
    },
    "a hook that sees weights is not charged again": {
        "veracal.queries.curator.exposes_weights": lambda model: False
    },
    "an observer that promises to hold is exempt, as before": {SEES_WEIGHTS: exempt_by_promise},
    "an observer with the attributes of a curve is exempt": {
        SEES_WEIGHTS: exempt_by_attributes
    },
    "an observer that claims to be a curve is exempt": {SEES_WEIGHTS: exempt_by_isinstance},
    "a curve shows losses during the fit": {
        "veracal.mechanisms.progress.TrainingCurve.losses": property(
            lambda curve: tuple(curve._held) or curve._losses
        )
    },
    "losses of a broken attempt are released": {
        "veracal.queries.curator.hold_curves": released_at_the_end
    },
    "losses of a broken attempt stay for the next": {
        "veracal.queries.curator.hold_curves": never_discarded
    },
    "the model of the caller is fitted": {
        "veracal.queries.curator.copy": SimpleNamespace(deepcopy=lambda model: model)
    },
}


# ---------------------------------------------------------------- measurement


def run(subject: ledgers.Patches, *, long: bool) -> str:
    """Run every scenario on its own ledger; ``long`` changes nothing."""
    impatient = {**subject, "veracal.ledger.storage.BUSY_TIMEOUT": 0.0}
    with ledgers.patched(impatient) as folder:
        for scenario in SCENARIOS:
            ledger = open_ledger(folder / scenario.__name__, Budget(1.0))
            try:
                scenario(Curator(DATA, ledger), ledger)
            except LedgerError as error:
                raise AssertionError(f"{scenario.__name__}: {error}") from error
            finally:
                for child in tuple(Child.alive):
                    child.die()
            ledgers.verified(ledger)
    return f"{len(SCENARIOS)} scenarios: charged before a record is read, one model, no lock"


class Child:
    """A process that fits, and stops in the middle."""

    alive: ClassVar[set["Child"]] = set()

    def __init__(self, holder: Curator, **settings: Any) -> None:
        begun, self._go_on = os.pipe(), os.pipe()
        self._begun = begun[0]

        def work() -> object:
            os.close(self._go_on[1])
            model = Model(begun[1], self._go_on[0], **settings)
            return fit(holder, model)

        self._child, self._reader = ledgers.fork(work)
        os.close(begun[1])
        self.alive.add(self)

    def begins(self) -> None:
        """Wait until the fit has begun; it is an error if that does not happen."""
        assert os.read(self._begun, 1) == b"!", "a process could not begin its fit"

    def ends(self) -> object:
        """Let it continue, and return the outcome of its request."""
        self.alive.discard(self)
        os.write(self._go_on[1], b"!")
        return ledgers.result(self._child, self._reader)

    def die(self) -> None:
        """Kill it."""
        self.alive.discard(self)
        os.kill(self._child, signal.SIGKILL)
        ledgers.result(self._child, self._reader)


def fit(holder: Curator, model: Model) -> object:
    """What a request to fit ends in: bytes, or the kind of error."""
    try:
        return holder.fit_once(model, lambda fitted: fitted.weights, **ONCE)
    except (AnswerError, BudgetError, LedgerError) as error:
        return type(error).__name__


def others_charge_meanwhile(holder: Curator, ledger: Ledger) -> None:
    """While a fit computes, another process charges; it is paid for already."""
    child = Child(holder)
    child.begins()
    ledger.charge(Pure(0.25), "meanwhile")
    spent = ledger.spent().epsilon
    assert spent == COST.epsilon + 0.25, f"a record is read, and {spent} spent"
    model = child.ends()
    assert isinstance(model, bytes) and fit(holder, Model()) == model
    assert ledger.spent().epsilon == COST.epsilon + 0.25


def two_with_one_request(holder: Curator, ledger: Ledger) -> None:
    """Two processes with one request: one charge, and the model that was recorded first."""
    children = []
    for _ in range(2):  # one after the other begins, and both are at it
        children.append(Child(holder))
        children[-1].begins()
    models = [child.ends() for child in children]
    assert isinstance(models[0], bytes), f"the first fit ended in {models[0]!r}"
    assert models[0] == models[1], "two models have left for one charge"
    assert fit(holder, Model()) == models[0], "a third has left"
    assert ledger.spent().epsilon == COST.epsilon, f"{ledger.spent()} for one request"


def failure_is_an_answer(holder: Curator, ledger: Ledger) -> None:
    """A failed fit stays charged, and is not repeated."""
    for model in (Model(error=ZeroDivisionError()), Model()):
        assert fit(holder, model) == "AnswerError", "a failed fit was made again"
        assert ledger.spent().epsilon == COST.epsilon, f"{ledger.spent()} for a failed fit"


def killed_and_repeated(holder: Curator, ledger: Ledger) -> None:
    """A killed fit is repeated under its reservation, also with step counts or a curve."""
    for progress in (None, StepProgress(lambda done, total: None), TrainingCurve(DATA)):
        child = Child(holder, on_step=progress)
        child.begins()
        child.die()
        assert len(ledger.pending()) == 1, "a fit was killed, and left no reservation"
    model = fit(holder, Model())
    assert isinstance(model, bytes) and fit(holder, Model()) == model
    assert ledger.spent().epsilon == COST.epsilon, f"{ledger.spent()} for one request"


def every_attempt_with_a_hook(holder: Curator, ledger: Ledger) -> None:
    """A killed fit whose hook has seen weights is charged again, and so is the next."""
    for attempts in (1, 2):
        child = Child(holder, on_step=RunConsumer())
        child.begins()
        child.die()
        assert ledger.spent().epsilon == attempts * COST.epsilon, (
            f"{ledger.spent()} for {attempts} attempts that may have been seen"
        )
    model = fit(holder, Model())  # without a hook, and still no second draw at no cost
    assert isinstance(model, bytes) and fit(holder, Model(on_step=RunConsumer())) == model
    assert ledger.spent().epsilon == 3 * COST.epsilon, f"{ledger.spent()} for 3 attempts"


def every_attempt_with_an_observer(holder: Curator, ledger: Ledger) -> None:
    """A killed fit with an observer of the user's is charged again, whatever it claims."""
    twice = [observer for observer in OBSERVERS for _ in range(2)]
    for attempts, observer in enumerate(twice, start=1):
        child = Child(holder, on_step=observer())
        child.begins()
        child.die()
        assert ledger.spent().epsilon == attempts * COST.epsilon, (
            f"{ledger.spent()} for {attempts} attempts whose weights were observed"
        )


def a_curve_is_read_after_the_record(holder: Curator, ledger: Ledger) -> None:
    """A curve shows losses of the recorded model alone, and not before it is recorded."""
    shown = []
    curve = TrainingCurve(DATA, lambda done, total: shown.append(curve.losses))

    def stop() -> None:
        shown.append(curve.losses)
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        fit(holder, Model(on_step=curve, stop=stop))
    shown.append(curve.losses)
    model = Model(on_step=curve, stop=lambda: shown.append(curve.losses))
    recorded = fit(holder, model)
    assert not any(shown), "losses were shown before the model was recorded"
    assert isinstance(recorded, bytes) and len(shown) == 2 * (STEPS + 1) + 1
    expected = descent_progress._mean_loss(
        DATA.X @ (np.frombuffer(recorded, np.uint64)[None] / 2**64).T, DATA.y
    )
    assert curve.losses == (expected,) * STEPS, "losses are not those of the recorded model"
    assert fit(holder, Model(on_step=curve)) == recorded
    assert curve.losses == (), "losses of a model that was not fitted"
    assert ledger.spent().epsilon == COST.epsilon, f"{ledger.spent()} for one request"


def check_no_weights_in_memory(holder: Curator, ledger: Ledger) -> None:
    """Interrupted before the record, a fit leaves no weights in the caller's hands."""
    model = Model(error=KeyboardInterrupt())
    with suppress(KeyboardInterrupt):
        fit(holder, model)
    assert model.weights == b"", "weights are in the caller's model, and not recorded"


SCENARIOS: Sequence[Callable[[Curator, Ledger], None]] = (
    others_charge_meanwhile,
    two_with_one_request,
    failure_is_an_answer,
    killed_and_repeated,
    every_attempt_with_a_hook,
    every_attempt_with_an_observer,
    a_curve_is_read_after_the_record,
    check_no_weights_in_memory,
)
