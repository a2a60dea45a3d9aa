"""What a holder can fit, and what it must know of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar, runtime_checkable

from veracal.data import Dataset
from veracal.privacy.budget import Unit
from veracal.privacy.descent.progress import sees_weights
from veracal.privacy.events import Event

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
_CHARGED: ContextVar[bool] = ContextVar("charged", default=False)


@contextmanager
def charged() -> Iterator[None]:
    """Say of every fit inside that a ledger was charged for it."""
    token = _CHARGED.set(True)
    try:
        yield
    finally:
        _CHARGED.reset(token)


def is_charged() -> bool:
    """Whether a ledger was charged for the fit that goes on here."""
    return _CHARGED.get()


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
    than :class:`~veracal.privacy.StepProgress` and Veracal's own ``HeldObserver``, which keeps
    what it notes in memory until the model is recorded. Of a search even step counts tell,
    namely of its secret number of trials.
    """
    settings: dict[str, Any] = getattr(model, "get_params", dict)()
    for name in _HOOKS:
        if hasattr(model, name):
            settings = {**settings, name: getattr(model, name)}
    hooks = {
        name: value
        for name, value in settings.items()
        if name.rpartition("__")[2] in _HOOKS and value is not None
    }
    searches = any(name.rpartition("__")[2] == _OF_A_SEARCH for name in settings)
    return any(searches or sees_weights(hook) for hook in hooks.values())


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
