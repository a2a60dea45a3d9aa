"""Hooks of a fit that let nothing out before the ledger has recorded the model."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from veracal._types import Array, Floats, Ints
from veracal.data import Dataset

_POINTS = 100  # of a training curve
_ROWS, _FEWER = 5_000, 500  # that the loss is computed of, and of a network


@final
class StepProgress:
    """A hook for estimators that reports how many steps are done, and nothing else.

    Give it as ``on_step`` in place of a function. It is called with counts only, so a fit with
    it may be repeated after a crash under one reservation of the ledger
    (:meth:`veracal.queries.Curator.fit_once`); a fit with any other hook is charged for every
    attempt, except for Veracal's own :class:`TrainingCurve`. Both are recognized by their exact
    types.

    Parameters
    ----------
    callback : callable
        ``callback(done, total)`` with two integers. What it returns is not used.

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

    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError("StepProgress cannot be subclassed: it is recognized by its type.")

    def __call__(self, *_: Any) -> None:
        """Refuse to be called as a hook, with weights."""
        raise TypeError("StepProgress is not called with weights. Use report(done, total).")

    def report(self, done: int, total: int) -> None:
        """Report the number of steps that are done."""
        self._callback(int(done), int(total))

    def __copy__(self) -> "StepProgress":
        return self

    def __deepcopy__(self, memo: Any) -> "StepProgress":
        return self  # whoever watches is the same for copies of a model


@final
class TrainingCurve:
    """A hook that computes the training loss, and keeps it until the model is recorded.

    The loss is the mean of the first 5,000 rows (of a network, 500), without penalty, at up to
    100 steps, and changes nothing of the training. It is a plain function of the records: for
    the data holder only.

    Parameters
    ----------
    train : Dataset
    callback : callable, optional
        As of :class:`StepProgress`: it is called with two integers.

    Guarantees
    ----------
    No code of the caller's is called with weights or losses: the curve takes no function but
    ``callback``, cannot be subclassed, and its attributes are fixed.
    :meth:`veracal.queries.Curator.fit_once` opens it for one attempt and fills ``losses`` once
    the model of that attempt is recorded. The losses of any other attempt are discarded, and
    outside of such an attempt none are computed. Therefore an attempt that was killed may be
    repeated under its reservation.
    """

    __slots__ = ("_X", "_attempt", "_held", "_labels", "_losses", "_progress")

    def __init__(
        self, train: Dataset, callback: Callable[[int, int], object] | None = None
    ) -> None:
        # Plain arrays of numbers: products with any other type could run code of the caller's.
        self._X, self._labels = np.asarray(train.X[:_ROWS]), np.asarray(train.y[:_ROWS])
        for array in (self._X, self._labels):
            if array.dtype.kind not in "biuf":
                raise ValueError(f"Expected records of numbers, got {array.dtype}.")
        self._progress = StepProgress(_ignore if callback is None else callback)
        self._losses: tuple[float, ...] = ()
        self._held: list[float] = []
        self._attempt = threading.Lock()

    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError("TrainingCurve cannot be subclassed: it is recognized by its type.")

    def __call__(self, model: Any, step: Any) -> None:
        """Compute the loss if it is time to, and report the number of the step."""
        done, total = step.number + 1, model.length()
        if self._attempt.locked() and done % -(-total // _POINTS) == 0:
            z = _logits(model, self._X)
            self._held.append(_mean_loss(z, self._labels[: len(z)]))
        self._progress.report(done, total)

    @property
    def losses(self) -> tuple[float, ...]:
        """Losses at steps that are equally far apart; none until the model is recorded."""
        return self._losses

    def __copy__(self) -> "TrainingCurve":
        return self

    def __deepcopy__(self, memo: Any) -> "TrainingCurve":
        return self

    def __reduce__(self) -> Any:
        raise TypeError("TrainingCurve cannot be pickled: what it holds is not recorded yet.")


@contextmanager
def hold_curves(curves: Iterable[TrainingCurve]) -> Iterator[Callable[[], None]]:
    """Open curves for one attempt of a fit, and discard at its end what was not released.

    Yields
    ------
    callable
        Releases the losses. To be called once the ledger has recorded the attempt's model.
    """
    opened: list[TrainingCurve] = []

    def release() -> None:
        for curve in opened:
            curve._losses = tuple(curve._held)

    try:
        for curve in {id(one): one for one in curves}.values():
            if not curve._attempt.acquire(blocking=False):
                raise ValueError("Expected a TrainingCurve for each fit, got one of another.")
            opened.append(curve)
            curve._losses, curve._held = (), []
        yield release
    finally:
        for curve in opened:
            curve._held = []
            curve._attempt.release()


def sees_weights(hook: object) -> bool:
    """Whether what a hook sees may leave the process before a fit is recorded.

    All do but the two types of this module, which are compared exactly.
    """
    return hook is not None and type(hook) not in (StepProgress, TrainingCurve)


def _ignore(done: int, total: int) -> None:
    """Report to nobody."""


def _logits(model: Any, X: Array) -> Floats:
    """Logits of a model as it stands, of shape (n, k), or (n, 1) for two classes."""
    if hasattr(model, "coef_"):
        return np.asarray(X @ model.coef_.T + model.intercept_)
    fewer = X[:_FEWER]  # a network takes longer
    with np.errstate(all="ignore"):
        found = np.nan_to_num(np.asarray(model.logits(fewer), dtype=np.float64))
    return found.reshape(len(fewer), -1)


def _mean_loss(z: Floats, labels: Ints) -> float:
    r"""Mean negative log-likelihood, :math:`\log\sum_k e^{z_k} - z_y`."""
    if not len(labels):
        return 0.0
    logits = np.column_stack([np.zeros(len(z)), z]) if z.shape[1] == 1 else z
    total = np.logaddexp.reduce(logits, axis=1)
    return float(np.mean(total - logits[np.arange(len(labels)), labels]))
