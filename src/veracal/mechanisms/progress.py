"""Training hooks that release nothing before the ledger has recorded the model."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self, final

import numpy as np

from veracal._types import Array, Floats, Ints
from veracal.data import Dataset

_CURVE_POINTS = 100  # maximum number of points of a training curve
_ROWS, _NETWORK_ROWS = 5_000, 500  # rows for the training loss, and for that of a network


class _FinalHook:
    """A hook that is recognized by its exact type; copies of a model share it."""

    __slots__ = ()

    def __init_subclass__(cls, **_: Any) -> None:
        parent = cls.__mro__[1]
        if parent is not _FinalHook:
            raise TypeError(
                f"{parent.__name__} cannot be subclassed: it is recognized by its type."
            )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self


@final
class StepProgress(_FinalHook):
    """A hook for estimators that reports the number of completed steps, and nothing else.

    Pass it as ``on_step`` in place of a function. Since it only receives counts, a fit with
    it may be repeated after a crash under one reservation of the ledger
    (:meth:`veracal.queries.Curator.fit_once`); a fit with any other hook is charged for every
    attempt, except for Veracal's own :class:`TrainingCurve`. Both are recognized by their exact
    types.

    Parameters
    ----------
    callback : callable
        Called as ``callback(done, total)`` with two integers. Its return value is ignored.

    Examples
    --------
    >>> progress = StepProgress(lambda done, total: print(f"{done} of {total}"))
    >>> progress.report(1, 10)
    1 of 10
    """

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[int, int], object]) -> None:
        if not callable(callback):
            raise ValueError(f"callback must be callable; got {callback!r}.")
        self._callback = callback

    def __call__(self, *_: Any) -> None:
        """Raise: the hook is not called with weights."""
        raise TypeError("StepProgress is not called with weights. Use report(done, total).")

    def report(self, done: int, total: int) -> None:
        """Report the number of completed steps."""
        self._callback(int(done), int(total))


@final
class TrainingCurve(_FinalHook):
    """A hook that computes the training loss and holds it until the model is recorded.

    The loss is the mean over the first 5,000 rows (500 for a network), without the penalty, at
    up to 100 steps. It does not affect training. The losses have no noise, so they are for the
    data holder only.

    Parameters
    ----------
    train : Dataset
    callback : callable, optional
        As in :class:`StepProgress`: called with two integers.

    Guarantees
    ----------
    Code of the caller never receives weights or losses: the curve takes no function except
    ``callback``, cannot be subclassed, and its attributes are fixed.
    :meth:`veracal.queries.Curator.fit_once` activates it for one attempt and sets ``losses``
    once the model of that attempt is recorded. Losses of other attempts are discarded, and
    outside of an attempt none are computed. Therefore an interrupted attempt may be repeated
    under its reservation.
    """

    __slots__ = ("_X", "_attempt", "_held", "_labels", "_losses", "_progress")

    def __init__(
        self, train: Dataset, callback: Callable[[int, int], object] | None = None
    ) -> None:
        # Numeric numpy arrays only: products with other types could run code of the caller.
        self._X, self._labels = np.asarray(train.X[:_ROWS]), np.asarray(train.y[:_ROWS])
        for array in (self._X, self._labels):
            if array.dtype.kind not in "biuf":
                raise ValueError(f"Expected records of numbers, got {array.dtype}.")
        self._progress = StepProgress((lambda *_: None) if callback is None else callback)
        self._losses: tuple[float, ...] = ()
        self._held: list[float] = []
        self._attempt = threading.Lock()

    def __call__(self, model: Any, step: Any) -> None:
        """Compute the loss if it is due at this step, and report the number of the step."""
        done, total = step.number + 1, model.length()
        if self._attempt.locked() and done % -(-total // _CURVE_POINTS) == 0:
            logits = _logits(model, self._X)
            self._held.append(_mean_loss(logits, self._labels[: len(logits)]))
        self._progress.report(done, total)

    @property
    def losses(self) -> tuple[float, ...]:
        """Losses at equally spaced steps; empty until the model is recorded."""
        return self._losses

    def __reduce__(self) -> Any:
        raise TypeError("TrainingCurve cannot be pickled: its losses are not released yet.")


@contextmanager
def hold_curves(curves: Iterable[TrainingCurve]) -> Iterator[Callable[[], None]]:
    """Activate curves for one attempt of a fit, and discard losses that are not released.

    Yields
    ------
    callable
        Releases the losses. Call it once the ledger has recorded the model of the attempt.
    """
    active: list[TrainingCurve] = []

    def release() -> None:
        for curve in active:
            curve._losses = tuple(curve._held)

    try:
        for curve in {id(one): one for one in curves}.values():
            if not curve._attempt.acquire(blocking=False):
                raise ValueError("Expected one TrainingCurve per fit, got one in use.")
            active.append(curve)
            curve._losses, curve._held = (), []
        yield release
    finally:
        for curve in active:
            curve._held = []
            curve._attempt.release()


def hook_exposes_weights(hook: object) -> bool:
    """Whether a hook may release weights before a fit is recorded.

    True for every hook except the two types of this module, which are compared exactly.
    """
    return hook is not None and type(hook) not in (StepProgress, TrainingCurve)


def _logits(model: Any, X: Array) -> Floats:
    """Logits of the current model, of shape (n, k), or (n, 1) for two classes."""
    if hasattr(model, "coef_"):
        return np.asarray(X @ model.coef_.T + model.intercept_)
    X = X[:_NETWORK_ROWS]
    with np.errstate(all="ignore"):
        logits = np.nan_to_num(np.asarray(model.logits(X), dtype=np.float64))
    return logits.reshape(len(X), -1)


def _mean_loss(logits: Floats, labels: Ints) -> float:
    r"""Mean negative log-likelihood, :math:`\log\sum_k e^{z_k} - z_y`."""
    if not len(labels):
        return 0.0
    if logits.shape[1] == 1:
        logits = np.column_stack([np.zeros(len(logits)), logits])
    total = np.logaddexp.reduce(logits, axis=1)
    return float(np.mean(total - logits[np.arange(len(labels)), labels]))
