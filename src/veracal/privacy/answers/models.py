"""What a holder can fit, and what it must know of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypedDict, TypeVar, runtime_checkable

from veracal.data import Dataset
from veracal.privacy.budget import Unit
from veracal.privacy.costs.statement import UNCHARGED
from veracal.privacy.descent.progress import TrainingCurve, sees_weights
from veracal.privacy.events import Event
from veracal.privacy.ledger.book import Ledger
from veracal.privacy.ledger.stating import ledger_total

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
def charged(ledger: Ledger) -> Iterator[None]:
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
    than :class:`~veracal.privacy.StepProgress` and Veracal's own ``TrainingCurve``, which keeps
    its losses to itself until the model is recorded. Both are compared by their exact types.
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
