"""Progress of a fit in step counts alone, which tell nothing of records or noise."""

from collections.abc import Callable
from typing import Any, final


@final
class StepProgress:
    """A hook for estimators that reports how many steps are done, and nothing else.

    Give it as ``on_step`` in place of a function. It is called with counts only, so a fit with
    it may be repeated after a crash under one reservation of the ledger
    (:meth:`veracal.privacy.Holder.fit_once`); a fit with any other hook is charged for every
    attempt, except for Veracal's own :class:`HeldObserver`. Both are recognized by their exact
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
class HeldObserver:
    """A hook that counts steps, and keeps what it notes in memory until a fit is recorded.

    For Veracal's own internal reports. Whoever makes one promises that what ``note`` computes
    stays in the process until the ledger has recorded the model: a repeated attempt then
    starts anew, and nothing of the first has left.

    Parameters
    ----------
    callback : callable
        As of :class:`StepProgress`.
    note : callable
        ``note(model, step)``.
    """

    __slots__ = ("_progress", "note")

    def __init__(
        self, callback: Callable[[int, int], object], note: Callable[[Any, Any], None]
    ) -> None:
        self._progress, self.note = StepProgress(callback), note

    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError("HeldObserver cannot be subclassed: it is recognized by its type.")

    def __call__(self, model: Any, step: Any) -> None:
        """Note a step and report its number."""
        self.note(model, step)
        self._progress.report(step.number + 1, model.length())

    def __copy__(self) -> "HeldObserver":
        return self

    def __deepcopy__(self, memo: Any) -> "HeldObserver":
        return self


def sees_weights(hook: object) -> bool:
    """Whether what a hook sees may leave the process before a fit is recorded."""
    return hook is not None and type(hook) not in (StepProgress, HeldObserver)
