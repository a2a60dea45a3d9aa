"""What a holder can fit, and what it must know of it.

Records with a ledger in front of them.
"""

import copy
import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol, TypedDict, TypeVar, runtime_checkable

import numpy as np

from veracal import _checks
from veracal._types import Ints
from veracal.accounting import (
    UNCHARGED,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
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
    merged,
    unpaid_of,
)
from veracal.mechanisms import (
    TrainingCurve,
    add_discrete_gaussian,
    add_discrete_laplace,
    discrete_gaussian_std,
    discrete_laplace_std,
    hold_curves,
    sees_weights,
)
from veracal.queries.query import Query, Records, gaussian_event, laplace_event
from veracal.queries.sources import Release

_HOOKS = ("on_step", "callbacks")
_OF_A_SEARCH = "score_noise"  # a setting that nothing but a search has


class PrivateModel(Protocol):
    """What a holder can fit: something that knows its cost before it sees a record."""

    def event(self) -> Event:
        """Cost of one fit."""

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to rows X and labels y."""


@runtime_checkable
class RecordsModel(Protocol):
    """A model that takes what a data set declares: its classes, its size, its norm."""

    def check_records(self, dataset: Dataset) -> None:
        """Refuse a data set that cannot be fitted, by what is public about it."""

    def fit_records(self, dataset: Dataset) -> Any:
        """Fit to a data set."""


@runtime_checkable
class ResumableModel(Protocol):
    """A model whose fit can be broken off and goes on later, for the same charge."""

    checkpoint: Any

    def has_begun(self) -> bool:
        """Whether there is a checkpoint."""

    def paid(self, by: str) -> None:
        """Take note of what pays for the next fit, which only goes on if it is the same."""


@runtime_checkable
class SharedModel(Protocol):
    """A model of records that are in several places, for all of which one ledger pays."""

    across: Any

    def check_paying(self, unit: Unit) -> None:
        """Refuse a ledger that is not the one to pay, or protects another unit."""

    def called_off(self, problem: BaseException) -> None:
        """Tell the other places that there will be no fit."""


Model = TypeVar("Model", bound=PrivateModel)
_CHARGED: ContextVar[Ledger | None] = ContextVar("charged", default=None)


class ChargeTerms(TypedDict):
    """What a statement says about the charge: arguments of ``statement``."""

    not_covered: tuple[str, ...]
    ledger_total: str | None


@contextmanager
def mark_charged(ledger: Ledger) -> Iterator[None]:
    """Say of every fit inside that this ledger was charged for it."""
    token = _CHARGED.set(ledger)
    try:
        yield
    finally:
        _CHARGED.reset(token)


def is_charged() -> bool:
    """Whether a ledger was charged for the fit that goes on here."""
    return charging_ledger() is not None


def charging_ledger() -> Ledger | None:
    """Return the ledger that was charged for the fit that goes on here, if any."""
    return _CHARGED.get()


def charged_total() -> str | None:
    """Return what everything on the charging ledger may cost, as it stands now."""
    ledger = charging_ledger()
    return None if ledger is None else ledger_total(ledger)


def note_charge(model: Any) -> None:
    """Note on a model whether a ledger is charged for this fit, and the ledger's total.

    The sentence is about caps, which are public. It stays with copies and pickles; the ledger
    does not.
    """
    model.charged_, model._ledger_total = is_charged(), charged_total()


def charge_terms(model: Any, *parts: Any) -> ChargeTerms:
    """Return what the statement of a fitted model says about its charge.

    Parameters
    ----------
    model : estimator
        Which was fitted as a whole.
    *parts : estimators
        That were fitted inside of it, and may have begun with weights that are not covered.
    """
    told = [] if getattr(model, "charged_", False) else [UNCHARGED]
    for one in (model, *parts):
        told.extend(getattr(one, "_began_with", ()))
    return {
        "not_covered": tuple(dict.fromkeys(told)),
        "ledger_total": getattr(model, "_ledger_total", None),
    }


def resumable_of(model: object) -> ResumableModel | None:
    """A model as one that can go on, if it has a checkpoint."""
    if isinstance(model, ResumableModel) and model.checkpoint is not None:
        return model
    return None


def shared_of(model: object) -> SharedModel | None:
    """A model as one of records in several places, if it is."""
    if isinstance(model, SharedModel) and model.across is not None:
        return model
    return None


def shows_weights(model: object) -> bool:
    """Whether a fit of a model may show weights, or noise, to code of the caller's.

    That is a hook ``on_step``, or ``callbacks``, of the model or of a model inside it, other
    than :class:`~veracal.mechanisms.StepProgress` and Veracal's own ``TrainingCurve``, which
    keeps its losses to itself until the model is recorded. Both are compared by their exact
    types.
    Of a search even step counts tell, namely of its secret number of trials.
    """
    settings = _settings(model)
    searches = any(name.rpartition("__")[2] == _OF_A_SEARCH for name in settings)
    return any(searches or sees_weights(hook) for hook in _hooks(settings))


def curves_of(model: object) -> list[TrainingCurve]:
    """Training curves among the hooks of a model, or of a model inside it."""
    return [hook for hook in _hooks(_settings(model)) if type(hook) is TrainingCurve]


def _settings(model: object) -> dict[str, Any]:
    """Settings of a model and of models inside it, with its hooks."""
    settings: dict[str, Any] = getattr(model, "get_params", dict)()
    for name in _HOOKS:
        if hasattr(model, name):
            settings = {**settings, name: getattr(model, name)}
    return settings


def _hooks(settings: dict[str, Any]) -> list[Any]:
    """Hooks among settings."""
    return [
        value
        for name, value in settings.items()
        if name.rpartition("__")[2] in _HOOKS and value is not None
    ]


@contextmanager
def told_of_failure(model: object, unit: Unit) -> Iterator[None]:
    """See that nobody waits for a fit that is refused, or fails."""
    shared = shared_of(model)
    if shared is None:
        yield
        return
    shared.check_paying(unit)
    try:
        yield
    except BaseException as problem:
        shared.called_off(problem)
        raise


class Curator:
    r"""Records that are only reached through a ledger: a :class:`Source`.

    Parameters
    ----------
    records : Scores or Dataset
    ledger : Ledger
        Says whom to protect under which relation, and pays.
    part : str, optional
        Part of the ledger that these records are, disjoint from its other parts.
    version : str
        Public mark of these records. Give another one when they change: answers are
        remembered by question, and the question includes the mark.

    Attributes
    ----------
    relation, unit
        Whom the ledger protects, which never changes; known even while the ledger cannot be
        read.

    Guarantees
    ----------
    A record is read only after the ledger has granted the cost. The answer to a query leaves
    only once cost and answer are committed together. The cost of a fit is charged, and on the
    disk, before a record is read; a model of :meth:`fit_once` leaves once it is recorded.
    Nothing that an error or a refusal says
    depends on a record, but for what is checked here, when the records are enrolled: that no
    unit has more rows than the ledger's unit allows. Noise is drawn from secret randomness;
    there is no seed.

    Notes
    -----
    A ledger that protects another unit than a record refuses records without unit ids.
    Whoever gives one person several ids breaks the promise to that person.
    """

    __slots__ = ("_records", "ledger", "part", "relation", "unit", "version")

    def __init__(
        self, records: Records, ledger: Ledger, *, part: str | None = None, version: str = ""
    ) -> None:
        if not isinstance(records, Scores | Dataset):
            raise DataError(
                "records", "scores or a data set", type(records).__name__, "Load them first."
            )
        check_ledger(ledger)
        budget = ledger.budget
        check_units(records, budget.unit)
        self._records, self.ledger, self.part, self.version = records, ledger, part, version
        self.relation, self.unit = budget.relation, budget.unit

    def __repr__(self) -> str:
        return f"Curator({self._records.name!r}, {self.ledger!r}, part={self.part!r})"

    def event(self, query: Query, micro_epsilon: int) -> Event:
        """What an answer would charge."""
        budget = self.ledger.budget
        return laplace_event(query, micro_epsilon, budget.relation, budget.unit)

    def answer(
        self, query: Query, *, micro_epsilon: int, request: str | None = None
    ) -> Release:
        """Answer a query with discrete Laplace noise.

        Parameters
        ----------
        query : Query
        micro_epsilon : int
            What one unit pays, in millionths of epsilon; the noise is made to cost that.
        request : str, optional
            Id of the request, for safe retries. Without one the question itself is the id:
            asked again, it gets the same answer at no cost.
        """
        _checks.whole(micro_epsilon=micro_epsilon)
        budget = self.ledger.budget
        event = laplace_event(query, int(micro_epsilon), budget.relation, budget.unit)
        std = discrete_laplace_std(event.noise)
        return self._answered(query, event, add_discrete_laplace, std, micro_epsilon, request)

    def answer_gaussian(
        self, query: Query, *, noise_multiplier: float, request: str | None = None
    ) -> Release:
        """Answer a query with discrete Gaussian noise; the ledger must have a delta.

        Parameters
        ----------
        query : Query
        noise_multiplier : float
            Noise divided by the most that one unit moves the answer in the L2 norm.
        request : str, optional
            As for :meth:`answer`.
        """
        budget = self.ledger.budget
        event = gaussian_event(query, noise_multiplier, budget.relation, budget.unit)
        std = discrete_gaussian_std(event.noise)
        return self._answered(query, event, add_discrete_gaussian, std, None, request)

    def _answered(
        self,
        query: Query,
        event: DiscreteLaplace | DiscreteGaussian,
        add_noise: Callable[[Ints, float], Ints],
        noise_std: float,
        micro_epsilon: int | None,
        request: str | None,
    ) -> Release:
        """Charge an event, evaluate the query, add the noise and release: one transaction."""
        # Asked of no record first, so that a question that does not fit (no labels, features
        # instead of scores) is refused before anything is charged.
        evaluate_query(query, self._records.take(np.arange(0)))
        body = canonical_request(query, event, self._records, self.part, self.version)

        def compute() -> bytes:
            exact = evaluate_query(query, self._records)
            return json.dumps(add_noise(exact, event.noise).tolist()).encode()

        entry, answer = self.ledger.answered(
            event,
            query.name,
            compute,
            request=hashlib.sha256(body).hexdigest() if request is None else request,
            body=body,
            part=self.part,
        )
        return Release(
            query.name,
            tuple(json.loads(answer)),
            query.grid,
            noise_std * query.grid.step,
            None if micro_epsilon is None else int(micro_epsilon),
            event,
            private=True,
            head=entry.hash,
        )

    def unpaid(self, items: Iterable[Item], *, request: str | None = None) -> list[Item]:
        """What is left to pay of items, of which some may have been charged before.

        Parameters
        ----------
        items : iterable of Item
        request : str, optional
            Id that those of their requests begin with. Without one whatever was charged for
            the same purpose and event counts.
        """
        paid = (
            (entry.purpose, entry.event)
            for entry in self.ledger.entries()
            if entry.event is not None
            and entry.outcome != "run"
            and entry.run == self.ledger.run
            and entry.part == self.part
            and (request is None or (entry.request or "").startswith(f"{request}:"))
        )
        return unpaid_of(items, paid)

    def require(self, items: Sequence[Item]) -> None:
        """Raise a ``BudgetError`` unless the ledger can pay for all items; charge nothing."""
        if self.ledger.run is not None or self.ledger.opening.rule.kind == "plan":
            for item in merged(replace(item, part=self.part) for item in items):
                self.ledger.require(item.event, item.purpose, part=self.part, times=item.times)
        elif items:
            every = tuple(Repeated(item.event, item.times) for item in items)
            whole = every[0] if len(every) == 1 else Composed(every)
            self.ledger.require(whole, items[0].purpose, part=self.part)

    def fit(
        self, model: Model, *, purpose: str = "training", request: str | None = None
    ) -> Model:
        """Charge what a model says it costs, then fit it to the records.

        Parameters
        ----------
        model : PrivateModel
            Anything with ``event()`` and ``fit(X, y)``, whose labels are then positions
            among the declared classes. A model that takes whole data sets
            (``check_records``, ``fit_records``) is asked before anything is charged
            whether these fit, and given them.
        purpose : str
            For the ledger.
        request : str, optional
            An id of the caller's, under which the fit is charged once. A model with a
            checkpoint needs one: broken off and called again with it, the fit goes on and
            costs nothing more; once it is over, the same model comes from the checkpoint, at
            no cost. Without its checkpoint a request that was paid for is refused.

        Returns
        -------
        The model.
        """
        with told_of_failure(model, self.unit):
            event = self._cost(model)
            self._charge_fit(model, event, purpose, request)
            return self._fitted(model, event, purpose)

    def _charge_fit(
        self, model: PrivateModel, event: Event, purpose: str, request: str | None
    ) -> None:
        """Charge a fit, once for each request."""
        resumable = resumable_of(model)
        if (resumable is None) != (request is None):
            raise ValueError(
                "Expected request=... exactly for a model with a checkpoint, whose fit goes on "
                f"under the charge that it began with, got request={request!r} for {model!r}."
            )
        if resumable is not None and request is not None:
            self._check_begun(resumable, request)
        entry = self.ledger.charge(event, purpose, part=self.part, request=request)
        if resumable is not None:
            records = [self._records.name, self.part or "", self.version]
            resumable.paid(digest(canonical({"charge": entry.hash, "records": records})))

    def _check_begun(self, model: ResumableModel, request: str) -> None:
        """Refuse a second fit for one charge.

        A fit that was paid for goes on from its checkpoint, or is over and gives the model
        that is in it. Without the file nobody can tell whether a model of it has left.
        """
        known, begun = self.ledger.knows(request), model.has_begun()
        if known and not begun:
            raise ValueError(
                f"Expected the checkpoint of the fit that {request!r} has paid for, got none "
                f"at {model.checkpoint}. Put it back, or pay for another under another request."
            )
        if begun and not known:
            raise ValueError(
                f"Expected no checkpoint before {request!r} is paid for, got one at "
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
        """Reserve the cost of a fit, fit, and record what the model became in the ledger.

        The fit runs outside of any transaction, so that others may charge meanwhile. Asked for
        again, the same bytes come from the ledger and nothing is charged or fitted: whoever
        lost the model gets the one that was paid for. A process that is interrupted or killed
        leaves the reservation, under which the same request fits anew, with other noise; of
        two that fit at the same time, both return the model that was recorded first.

        Parameters
        ----------
        model, purpose
            As for :meth:`fit`. A copy of the model is fitted, and the model itself is not
            changed, unless it has a hook.
        keep : callable
            Writes the fitted model as bytes, 256 MiB at most. They are released. It must let
            nothing of the model out itself, since it is called before the record.
        request : str
            An id of the caller's.
        body : bytes
            Everything that tells this fit from another.

        Raises
        ------
        AnswerError
            If the fit failed, now or before. The charge stands.

        Guarantees
        ----------
        A reservation is charged, and on the disk, before a record is read, and is never
        refunded. Until the result is recorded nothing that depends on records or noise leaves
        the process: warnings wait until then. A model with a hook that sees weights
        (:func:`shows_weights`) does not keep to that, so every attempt of it is charged by a
        reservation of its own; hooks of the exact type
        :class:`~veracal.mechanisms.StepProgress`, which see step counts, are exempt, and so is
        Veracal's own ``TrainingCurve``, whose losses can be read once the model is recorded,
        and only if it is the model of this attempt.
        """
        if resumable_of(model) is not None:
            raise ValueError(
                "Expected a model without a checkpoint, whose steps would be on the disk "
                f"before they are paid for, got {model!r}. Use fit(..., request=...)."
            )
        if shared_of(model) is not None:
            raise ValueError(
                "Expected a model of records that are all here, since a fit that is kept is "
                f"not fitted again, and others would wait for it, got {model!r}. Use fit."
            )
        event, shown = self._cost(model), shows_weights(model)
        # The caller's model would otherwise hold weights that nobody has recorded yet.
        fitted = model if shown else copy.deepcopy(model)
        held: list[warnings.WarningMessage] = []
        own: list[bytes] = []

        def compute() -> bytes:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                own.append(keep(self._fitted(fitted, event, purpose)))
            held.extend(caught)
            return own[0]

        with hold_curves(curves_of(model)) as release:
            answer = self.ledger.compute_once(
                event,
                purpose,
                compute,
                request=request,
                body=body,
                part=self.part,
                every_attempt=shown,
            )
            if own == [answer]:
                release()
        for one in held if own == [answer] else ():  # of the model that was recorded alone
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        return answer

    def _cost(self, model: PrivateModel) -> Event:
        """What a model says it costs, if it can be fitted to these records at all."""
        records = self._records
        if not isinstance(records, Dataset):
            raise DataError("records", "a data set", "scores", "Fit where the features are.")
        if isinstance(model, RecordsModel):
            model.check_records(records)
        event = model.event()
        if event.relation == "replace-one" and records.may_drop:
            raise DataError(
                records.name,
                "as many rows after replacing a record as before",
                "a data set from which rows were dropped",
                "Use an add-remove event, or declare how to fill in what is missing.",
            )
        return event

    def _fitted(self, model: Model, event: Event, purpose: str) -> Model:
        """Fit a model that was paid for."""
        records = self._records
        assert isinstance(records, Dataset)
        # What the caller told NumPy to do about underflow must not decide how a fit ends.
        with (
            mark_charged(self.ledger),
            np.errstate(all="ignore"),
        ):  # the former is what statements say
            if isinstance(model, RecordsModel):
                model.fit_records(records)
            else:
                model.fit(records.X, records.y)
        told = getattr(model, "event_", event)
        if told != event:
            raise ValueError(
                f"{purpose!r} was charged as {event!r}, but the fit says it was {told!r}. "
                "Do not release this model: its cost is not the one that was paid."
            )
        return model


def canonical_request(
    query: Query, event: Event, records: Records, part: str | None, version: str
) -> bytes:
    """Write down everything public about a question, always in the same bytes.

    Of the records that is what they are called, their classes in order, and of scores whether
    they are logits: what differs in these are other records.
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
        "part": part,
        "version": version,
    }
    return json.dumps(about, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def check_units(records: Records, unit: Unit) -> None:
    """Refuse records of which a unit may have more rows than the ledger's unit.

    Records must say to which unit they belong, unless that is one record. A data set must have
    declared its bound (:func:`veracal.data.limit_contributions`); scores are counted.
    """
    if records.units is None:
        if unit.name == "record":
            return  # each row is a unit of its own
        raise DataError(
            f"{records.name}: units",
            f"which {unit.name} each row belongs to",
            "no ids",
            f"Name the column with the ids of each {unit.name}, or protect single records.",
        )
    if unit.name == "record":
        raise DataError(
            f"{records.name}: units",
            "none, since the ledger protects one record",
            "ids of units",
            "Open the ledger for Unit('patient', at_most=...), or leave out the ids if rows "
            "are really what is to be protected.",
        )
    if isinstance(records, Dataset):
        most = records.at_most
    else:
        most = int(np.unique(records.units, return_counts=True)[1].max(initial=0))
    if most is None or most > unit.at_most:
        raise DataError(
            f"{records.name}: units",
            f"at most {unit.at_most} rows of {unit.name}, as the ledger protects",
            "no declared bound" if most is None else f"up to {most}",
            "Use limit_contributions first.",
        )


def check_protected(dataset: Dataset, relation: Relation, unit: Unit | None) -> None:
    """Refuse a data set that differs from its neighbors by more than a guarantee covers."""
    if not isinstance(unit, Unit | None):
        raise ValueError(f"Expected unit to be a Unit or None, got unit={unit!r}.")
    check_units(dataset, unit or Unit())
    if relation == "replace-one" and dataset.may_drop:
        raise DataError(
            dataset.name,
            "as many rows after replacing a record as before",
            "a data set from which rows were dropped",
            "Use relation='add-remove', or declare how to fill in what is missing.",
        )


def evaluate_query(query: Query, records: Records) -> Ints:
    """Evaluate a query and check what it returns, so that no float meets the noise.

    Whatever the caller has told NumPy to do about overflow or underflow, neither is an error or
    a warning here: it would be about a record.
    """
    with np.errstate(all="ignore"):
        exact: object = query.evaluate(records)
    if isinstance(exact, np.ndarray):
        found = f"{exact.dtype} of shape {exact.shape}"
        if exact.dtype == np.int64 and exact.shape == (query.entries,):
            return exact
    else:
        found = type(exact).__name__
    raise ValueError(
        f"Expected {query.name!r} to return int64 of shape ({query.entries},), got {found}."
    )
