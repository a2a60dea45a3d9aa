"""The curator: records behind a ledger, which charges fits and queries before they run."""

import copy
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np

from veracal._types import Ints
from veracal.accounting import (
    UNCHARGED,
    Composed,
    Event,
    Relation,
    Repeated,
    Unit,
    event_to_json,
)
from veracal.data import Dataset, Scores
from veracal.errors import DataError
from veracal.ledger import (
    Item,
    Ledger,
    canonical,
    check_ledger,
    digest,
    ledger_total,
    merge_items,
    unpaid_items,
)
from veracal.mechanisms import (
    TrainingCurve,
    add_discrete_gaussian,
    add_discrete_laplace,
    hold_curves,
    hook_exposes_weights,
)
from veracal.queries.query import Query, Records
from veracal.queries.sources import QueryRequest, Release, noise_std

_HOOKS = ("on_step", "callbacks")


class PrivateModel(Protocol):
    """Protocol of models that a curator can fit, with a cost known beforehand."""

    def event(self) -> Event:
        """Cost of one fit."""

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to rows X and labels y."""


@runtime_checkable
class RecordsModel(Protocol):
    """A model that uses the declarations of a data set: its classes, size and norm."""

    def check_records(self, dataset: Dataset) -> None:
        """Raise if a data set cannot be fitted, from public facts alone."""

    def fit_records(self, dataset: Dataset) -> Any:
        """Fit to a data set."""


@runtime_checkable
class ResumableModel(Protocol):
    """A model whose fit can be interrupted and resumed for the same charge."""

    checkpoint: Any

    def has_begun(self) -> bool:
        """Whether there is a checkpoint."""

    def set_payment(self, payment: str) -> None:
        """Set the charge of the next fit, which resumes only under the same charge."""


@runtime_checkable
class SharedModel(Protocol):
    """A model of records in several processes, all charged to one ledger."""

    across: Any

    def check_paying(self, unit: Unit) -> None:
        """Raise unless this process has the ledger to charge, with the right unit."""

    def cancel(self, problem: BaseException) -> None:
        """Notify the other processes that there will be no fit."""


def _is_resumable(model: object) -> TypeGuard[ResumableModel]:
    """Whether a model has a checkpoint."""
    return isinstance(model, ResumableModel) and model.checkpoint is not None


def _is_shared(model: object) -> TypeGuard[SharedModel]:
    """Whether the records of a model are in several processes."""
    return isinstance(model, SharedModel) and model.across is not None


Model = TypeVar("Model", bound=PrivateModel)
_CHARGED: ContextVar[Ledger | None] = ContextVar("charged", default=None)


@contextmanager
def mark_charged(ledger: Ledger) -> Iterator[None]:
    """Mark every fit inside the block as charged to this ledger."""
    token = _CHARGED.set(ledger)
    try:
        yield
    finally:
        _CHARGED.reset(token)


def is_charged() -> bool:
    """Whether a ledger was charged for the current fit."""
    return _CHARGED.get() is not None


def charged_total() -> str | None:
    """The sentence about the current total of the charged ledger, if any."""
    ledger = _CHARGED.get()
    return None if ledger is None else ledger_total(ledger)


def record_charge(model: Any) -> None:
    """Store on a model whether a ledger is charged for this fit, and the ledger's total.

    The sentence contains caps, which are public. Copies and pickles keep it, but not the
    ledger.
    """
    model.charged_, model._ledger_total = is_charged(), charged_total()


def charge_terms(model: Any, *parts: Any) -> dict[str, Any]:
    """The arguments of ``statement`` that describe the charge of a fitted model.

    Parameters
    ----------
    model : estimator
        The fitted model.
    *parts : estimators
        Models that were fitted inside it, whose initial weights may not be covered.
    """
    not_covered = [] if getattr(model, "charged_", False) else [UNCHARGED]
    for one in (model, *parts):
        not_covered.extend(getattr(one, "_initial_weights_note", ()))
    return {
        "not_covered": tuple(dict.fromkeys(not_covered)),
        "ledger_total": getattr(model, "_ledger_total", None),
    }


def exposes_weights(model: object) -> bool:
    """Whether a fit of a model may expose weights or noise to code of the caller.

    This is the case for a hook ``on_step`` or ``callbacks`` of the model, or of a model inside
    it, other than :class:`~veracal.mechanisms.StepProgress` and Veracal's own
    ``TrainingCurve``, which holds its losses until the model is recorded. Both are compared by
    their exact types. For a search even step counts reveal the secret number of trials.
    """
    hooks, searches = _hooks(model)
    return any(searches or hook_exposes_weights(hook) for hook in hooks)


def _hooks(model: object) -> tuple[list[Any], bool]:
    """Hooks of a model and of the models inside it, and whether one of them is a search."""
    settings: dict[str, Any] = dict(getattr(model, "get_params", dict)())
    settings |= {name: getattr(model, name) for name in _HOOKS if hasattr(model, name)}
    named = [(name.rpartition("__")[2], value) for name, value in settings.items()]
    hooks = [value for name, value in named if name in _HOOKS and value is not None]
    return hooks, any(name == "score_noise" for name, _ in named)  # only a search has that


class Curator:
    r"""Records that are accessible only through a ledger: a :class:`Source`.

    Parameters
    ----------
    records : Scores or Dataset
    ledger : Ledger
        Determines the unit and the relation, and is charged.
    partition : str, optional
        The partition of the ledger that these records are, disjoint from its others.
    version : str
        Public version of these records. Change it when the records change: answers are stored
        by query, and the query includes the version.

    Attributes
    ----------
    relation, unit
        The relation and unit of the ledger, which never change; available even while the
        ledger cannot be read.

    Guarantees
    ----------
    A record is read only after the ledger has granted the cost. The answer to a query is
    released only after cost and answer are committed together. The cost of a fit is charged,
    and on the disk, before a record is read; a model of :meth:`fit_once` is released after it
    is recorded. No error message depends on a record, except for the check at construction that
    no unit has more rows than the ledger's unit allows. Noise is drawn from secret randomness;
    there is no seed.

    Notes
    -----
    A ledger whose unit is not a record rejects records without unit ids. An individual with
    several unit ids is not protected as stated.
    """

    __slots__ = ("_records", "ledger", "partition", "relation", "unit", "version")

    def __init__(
        self,
        records: Records,
        ledger: Ledger,
        *,
        partition: str | None = None,
        version: str = "",
    ) -> None:
        if not isinstance(records, Scores | Dataset):
            raise DataError(
                "records", "scores or a data set", type(records).__name__, "Load them first."
            )
        check_ledger(ledger)
        budget = ledger.budget
        check_units(records, budget.unit)
        self._records, self.ledger, self.partition, self.version = (
            records,
            ledger,
            partition,
            version,
        )
        self.relation, self.unit = budget.relation, budget.unit

    def __repr__(self) -> str:
        return f"Curator({self._records.name!r}, {self.ledger!r}, partition={self.partition!r})"

    def answer(
        self, query: Query, *, micro_epsilon: int, request: str | None = None
    ) -> Release:
        """Answer a query with discrete Laplace noise, as :meth:`Source.answer` says.

        Without a request id, repeating a query returns the same answer at no cost.
        """
        return self._answer(QueryRequest(query, micro_epsilon), add_discrete_laplace, request)

    def answer_gaussian(
        self, query: Query, *, noise_multiplier: float, request: str | None = None
    ) -> Release:
        """Answer a query with discrete Gaussian noise; the ledger must have a delta."""
        gaussian = QueryRequest(query, noise_multiplier=noise_multiplier)
        return self._answer(gaussian, add_discrete_gaussian, request)

    def _answer(
        self,
        query_request: QueryRequest,
        add_noise: Callable[[Ints, float], Ints],
        request: str | None,
    ) -> Release:
        """Charge an event, evaluate the query, add the noise and release: one transaction."""
        query = query_request.query
        event = query_request.event(self.relation, self.unit)
        # Evaluate it on no records first, so that an inapplicable query (no labels, features
        # instead of scores) is rejected before anything is charged.
        evaluate_query(query, self._records.take(np.arange(0)))
        body = canonical_request(query, event, self._records, self.partition, self.version)

        def compute() -> bytes:
            exact = evaluate_query(query, self._records)
            return json.dumps(add_noise(exact, event.noise).tolist()).encode()

        entry, answer = self.ledger.answer(
            event,
            query.name,
            compute,
            request=digest(body) if request is None else request,
            body=body,
            partition=self.partition,
        )
        return Release(
            query.name,
            tuple(json.loads(answer)),
            query.grid,
            noise_std(event) * query.grid.step,
            query_request.micro_epsilon,
            event,
            private=True,
            head=entry.hash,
        )

    def unpaid(self, items: Iterable[Item], *, request: str | None = None) -> list[Item]:
        """The items, or remaining repetitions of items, that were not charged yet.

        Parameters
        ----------
        request : str, optional
            Prefix of the ids of their requests. By default all charges for the same purpose and
            event count.
        """
        paid = (
            (entry.purpose, entry.event)
            for entry in self.ledger.entries()
            if entry.event is not None
            and entry.outcome != "run"
            and entry.run == self.ledger.run
            and entry.partition == self.partition
            and (request is None or (entry.request or "").startswith(f"{request}:"))
        )
        return unpaid_items(items, paid)

    def require(self, items: Sequence[Item]) -> None:
        """Raise a ``BudgetError`` unless the ledger can pay for all items; charge nothing."""
        if self.ledger.run is not None or self.ledger.opening.rule.kind == "plan":
            for item in merge_items(replace(item, partition=self.partition) for item in items):
                self.ledger.require(
                    item.event, item.purpose, partition=self.partition, times=item.times
                )
        elif items:
            events = tuple(Repeated(item.event, item.times) for item in items)
            event = events[0] if len(events) == 1 else Composed(events)
            self.ledger.require(event, items[0].purpose, partition=self.partition)

    def fit(
        self, model: Model, *, purpose: str = "training", request: str | None = None
    ) -> Model:
        """Charge the cost of a model, then fit it to the records.

        Parameters
        ----------
        model : PrivateModel
            An object with ``event()`` and ``fit(X, y)``, whose labels are then indices of the
            declared classes. A model that takes whole data sets (``check_records``,
            ``fit_records``) checks the data set before anything is charged.
        purpose : str
            For the ledger.
        request : str, optional
            Request id, under which the fit is charged once. A model with a checkpoint requires
            it: an interrupted fit that is called again with it resumes at no further cost;
            after the fit has finished, the checkpoint returns the same model at no cost. A
            request that was charged is rejected if its checkpoint is missing.
        """
        shared = model if _is_shared(model) else None
        if shared is not None:
            shared.check_paying(self.unit)
        try:
            event = self._cost(model)
            resumable = model if _is_resumable(model) else None
            if (resumable is None) != (request is None):
                raise ValueError(
                    "Expected request=... if and only if the model has a checkpoint, whose fit "
                    f"resumes under one charge, got request={request!r} for {model!r}."
                )
            if resumable is not None and request is not None:
                self._check_checkpoint(resumable, request)
            entry = self.ledger.charge(
                event, purpose, partition=self.partition, request=request
            )
            if resumable is not None:
                records = [self._records.name, self.partition or "", self.version]
                resumable.set_payment(
                    digest(canonical({"charge": entry.hash, "records": records}))
                )
            return self._fit_charged(model, event, purpose)
        except BaseException as problem:
            if shared is not None:
                shared.cancel(problem)
            raise

    def _check_checkpoint(self, model: ResumableModel, request: str) -> None:
        """Raise if this would be a second fit for one charge.

        A charged fit resumes from its checkpoint, or returns the finished model in it. Without
        the file it is unknown whether a model of this charge was released.
        """
        charged, begun = self.ledger.knows(request), model.has_begun()
        if charged and not begun:
            raise ValueError(
                f"Expected the checkpoint of the fit charged under {request!r}, but there is "
                f"none at {model.checkpoint}. Restore it, or use another request."
            )
        if begun and not charged:
            raise ValueError(
                f"Expected no checkpoint before {request!r} is charged, but there is one at "
                f"{model.checkpoint}. Use the request that it belongs to, or another file."
            )

    def fit_once(
        self,
        model: Model,
        keep: Callable[[Model], bytes],
        *,
        request: str,
        body: bytes,
        purpose: str = "training",
    ) -> bytes:
        """Reserve the cost of a fit, fit, and record the fitted model in the ledger.

        The fit runs outside of any transaction, so other charges are possible meanwhile. A
        repeated request returns the recorded bytes, and nothing is charged or fitted, so a lost
        model can be restored. An interrupted or killed process leaves the reservation, under
        which the same request fits again with new noise. If two processes fit at the same time,
        both return the model that was recorded first.

        Parameters
        ----------
        model, purpose
            As for :meth:`fit`. A copy of the model is fitted, and the model itself is not
            changed, unless it has a hook that sees weights.
        keep : callable
            Serializes the fitted model to at most 256 MiB, which are released. It must not
            release anything itself, since it is called before the result is recorded.
        request : str
            Request id.
        body : bytes
            Everything that distinguishes this fit from another.

        Raises
        ------
        AnswerError
            If the fit failed, now or before. The charge stands.

        Guarantees
        ----------
        A reservation is charged, and on the disk, before a record is read, and never refunded.
        Before the result is recorded, nothing that depends on records or noise leaves the
        process; warnings are held back until then. A model with a hook that sees weights
        (:func:`exposes_weights`) cannot guarantee this, so every attempt is charged by a
        reservation of its own. Exempt are hooks of the exact type
        :class:`~veracal.mechanisms.StepProgress`, which see step counts, and Veracal's own
        ``TrainingCurve``, whose losses can be read once the model is recorded, and only if it
        is the model of this attempt.
        """
        if _is_resumable(model):
            raise ValueError(
                "Expected a model without a checkpoint, which would be written before the "
                f"model is recorded, got {model!r}. Use fit(..., request=...)."
            )
        if _is_shared(model):
            raise ValueError(
                "Expected a model whose records are all in this process, since a recorded fit "
                f"is not repeated and other processes would wait, got {model!r}. Use fit."
            )
        event, exposed = self._cost(model), exposes_weights(model)
        # Otherwise the caller's model would have weights that are not recorded yet.
        fitted = model if exposed else copy.deepcopy(model)
        held: list[warnings.WarningMessage] = []
        own: list[bytes] = []

        def compute() -> bytes:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                own.append(keep(self._fit_charged(fitted, event, purpose)))
            held.extend(caught)
            return own[0]

        curves = [hook for hook in _hooks(model)[0] if type(hook) is TrainingCurve]
        with hold_curves(curves) as release:
            answer = self.ledger.compute_once(
                event,
                purpose,
                compute,
                request=request,
                body=body,
                partition=self.partition,
                every_attempt=exposed,
            )
            if own == [answer]:
                release()
        for one in held if own == [answer] else ():  # only those of the recorded model
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        return answer

    def _cost(self, model: PrivateModel) -> Event:
        """The event of a model; raise if it cannot be fitted to these records."""
        records = self._records
        if not isinstance(records, Dataset):
            raise DataError("records", "a data set", "scores", "Fit to a data set instead.")
        if isinstance(model, RecordsModel):
            model.check_records(records)
        event = model.event()
        _check_relation(records, event.relation)
        return event

    def _fit_charged(self, model: Model, event: Event, purpose: str) -> Model:
        """Fit a model whose cost was charged."""
        records = self._records
        assert isinstance(records, Dataset)
        # The caller's NumPy error settings must not affect whether a fit fails.
        with mark_charged(self.ledger), np.errstate(all="ignore"):
            if isinstance(model, RecordsModel):
                model.fit_records(records)
            else:
                model.fit(records.X, records.y)
        actual = getattr(model, "event_", event)
        if actual != event:
            raise ValueError(
                f"{purpose!r} was charged as {event!r}, but the event of the fit is "
                f"{actual!r}. Do not release this model: its cost differs from the charge."
            )
        return model


def canonical_request(
    query: Query, event: Event, records: Records, partition: str | None, version: str
) -> bytes:
    """Canonical bytes of everything public about a query.

    For the records these are their name, their classes in order, and for scores whether they
    are logits: records that differ in these are other records.
    """
    about = {
        "query": query.name,
        "kind": type(query).__name__,
        "settings": dict(query.settings),
        "bits": query.grid.bits,
        "entries": query.entries,
        "sensitivity": [query.sensitivity("add-remove"), query.sensitivity("replace-one")],
        "event": event_to_json(event),
        "records": records.name,
        "classes": list(records.classes),
        "scores": getattr(records, "kind", None),
        "partition": partition,
        "version": version,
    }
    return canonical(about).encode()


def check_units(records: Records, unit: Unit) -> None:
    """Raise if a unit of the records may have more rows than the ledger's unit allows.

    Records need unit ids unless the unit is one record. A data set must have a declared bound
    (:func:`veracal.data.limit_contributions`); the rows of scores are counted.
    """
    if records.units is None:
        if unit.name == "record":
            return  # each row is a unit of its own
        raise DataError(
            f"{records.name}: units",
            f"the {unit.name} of each row",
            "no ids",
            f"Declare the column with the id of each {unit.name}, or protect single records.",
        )
    if unit.name == "record":
        raise DataError(
            f"{records.name}: units",
            "none, since the ledger protects one record",
            "ids of units",
            "Open the ledger for Unit('patient', max_contributions=...), or remove the ids if "
            "single rows are to be protected.",
        )
    if isinstance(records, Dataset):
        most = records.max_contributions
    else:
        most = int(np.unique(records.units, return_counts=True)[1].max(initial=0))
    if most is None or most > unit.max_contributions:
        raise DataError(
            f"{records.name}: units",
            f"at most {unit.max_contributions} rows of {unit.name}, as the ledger protects",
            "no declared bound" if most is None else f"up to {most}",
            "Use limit_contributions first.",
        )


def check_protected(dataset: Dataset, relation: Relation, unit: Unit | None) -> None:
    """Raise if neighbors of a data set may differ by more than the guarantee covers."""
    if not isinstance(unit, Unit | None):
        raise ValueError(f"Expected unit to be a Unit or None, got unit={unit!r}.")
    check_units(dataset, unit or Unit())
    _check_relation(dataset, relation)


def _check_relation(dataset: Dataset, relation: Relation) -> None:
    """Raise if replacing a record may change the number of rows under replace-one."""
    if relation == "replace-one" and dataset.may_drop:
        raise DataError(
            dataset.name,
            "as many rows after replacing a record as before",
            "a data set from which rows were dropped",
            "Use relation='add-remove', or declare a treatment of missing values.",
        )


def evaluate_query(query: Query, records: Records) -> Ints:
    """Evaluate a query, and check that it returns integers of the right shape.

    Overflow and underflow raise no error or warning, despite the caller's NumPy settings,
    because that would depend on a record.
    """
    with np.errstate(all="ignore"):
        exact: object = query.evaluate(records)
    description = type(exact).__name__
    if isinstance(exact, np.ndarray):
        if exact.dtype == np.int64 and exact.shape == (query.entries,):
            return exact
        description = f"{exact.dtype} of shape {exact.shape}"
    raise ValueError(
        f"Expected {query.name!r} to return int64 of shape ({query.entries},), "
        f"got {description}."
    )
