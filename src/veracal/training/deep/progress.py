"""A bar that says how far a fit is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Done = Callable[[int], None]


@contextmanager
def bar(steps: int, *, shown: bool) -> Iterator[Done]:
    """A bar on the standard error stream, while the block lasts.

    It says how many steps are done and how much time is left, and nothing of what was learned:
    how long a step takes is all that it could tell of the records.

    Parameters
    ----------
    steps : int
        How many there will be.
    shown : bool
        Whether there is one.

    Yields
    ------
    function of the number of steps that are done
    """
    if not shown:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("steps", total=steps)
        yield lambda done: bars.update(task, completed=done)
