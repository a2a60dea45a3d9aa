"""A bar that says how far a fit is.

What a training run shows of itself afterwards: that it did what it was meant to.

What happens beside the steps of a fit: averages, the hook, checkpoints, measurements.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from scipy.stats import chi2

from veracal._types import Floats
from veracal.mechanisms import DPSGD, Step, TrainingState
from veracal.neural.checkpoints import Checkpoint
from veracal.neural.gradient_sums import Layout
from veracal.training import Watch

ReportSteps = Callable[[int], None]


@contextmanager
def progress_bar(steps: int, *, shown: bool) -> Iterator[ReportSteps]:
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


_FALSE_ALARM = 1e-9  # chance that noise as it should be is taken for too little
_BY_CHANCE = 0.01  # chance that noise alone is taken for something of the records
_DUE = 0.1  # of the bound, that an example's gradient is expected to add at the least
_SOME = 1 << 16  # coordinates whose sums over all steps are kept


@dataclass(frozen=True)
class SelfCheck:
    """What a run shows of itself; all of it follows from what was released.

    How many records a module failed for is not among it, and is not warned of: a warning ends
    up in logs and notebooks, and that count is about records. But where *all* of them add
    nothing, the noisy sums are noise alone, and that may be told.

    Attributes
    ----------
    noise : float
        Mean squared length of the noisy sums, divided by what the noise alone should have.
        Far below 1, there was less noise than was paid for.
    least : float
        What the noise alone does not fall below, but once in a thousand million runs.
    unmoved : tuple of str
        Parameters that are what they were before.
    constant : bool
        Whether the network gives all made-up examples the same logits.
    silent : bool
        Whether the noisy sums cannot be told from noise alone, though a batch of the declared
        size would show if each of its gradients added a tenth of the bound.
    problems : tuple of str
        In words; empty if there are none.
    """

    noise: float
    least: float
    unmoved: tuple[str, ...]
    constant: bool
    silent: bool = False

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, if anything is."""
        found = []
        if self.noise < self.least:
            found.append(
                f"the noisy sums are {self.noise:.2g} times as long (squared) as the noise "
                "that was paid for: do not release this model"
            )
        if self.unmoved:
            names = ", ".join(self.unmoved[:5])
            found.append(f"{len(self.unmoved)} parameters did not move: {names}")
        if self.constant:
            found.append("the network gives every made-up example the same logits")
        if self.silent:
            found.append(
                "the noisy sums are as long as noise alone would be: records added next to "
                "nothing. Either the clip bound is far above their gradients, or the module "
                "fails for them (internal_.broken counts those)"
            )
        return tuple(found)

    def warn(self) -> None:
        """Warn of what is wrong."""
        for problem in self.problems:
            warnings.warn(problem, stacklevel=2)


class NoisySumMonitor:
    """Measures the noisy sums of a run.

    Parameters
    ----------
    descent : Descent
    size : int
        Numbers in a sum.
    """

    def __init__(self, descent: DPSGD, size: int) -> None:
        self._multipliers, self._size = descent.noise_multipliers(), size
        self._total, self._steps = 0.0, 0
        self._batch, self._due = float(descent.expected_batch), 0.0
        self._summed = np.zeros(min(size, _SOME))

    def note(self, step: Step) -> None:
        """Take in the noisy sum of a step."""
        multiplier = float(self._multipliers[step.number])
        std, noisy = multiplier * step.clip.bound, np.asarray(step.noisy_sum).reshape(-1)
        self._total += float(np.vdot(noisy, noisy)) / (std**2 * self._size)
        self._summed += noisy[: len(self._summed)] / std
        self._due += (_DUE * self._batch / multiplier) ** 2
        self._steps += 1

    def noise(self) -> tuple[float, float]:
        """Mean squared length, of what the noise alone should have, and its least."""
        if not self._steps:
            return 1.0, 0.0
        entries = self._steps * self._size
        return self._total / self._steps, float(chi2.ppf(_FALSE_ALARM, entries)) / entries

    def silent(self) -> bool:
        r"""Whether the sums look like noise alone, though they should not.

        Divided by the noise's standard deviation, the squares of all entries add up to a
        :math:`\chi^2` if nothing else is in them; so do those of the sums over the steps,
        divided by how many there are, which shows what is weak but always points the same way.
        """
        if not self._steps:
            return False
        entries = self._steps * self._size
        most = float(chi2.isf(_BY_CHANCE, entries))
        along = float(np.vdot(self._summed, self._summed)) / self._steps
        heard = self._total * self._size > most or along > chi2.isf(
            _BY_CHANCE, len(self._summed)
        )
        return self._due > 2 * (most - entries) and not heard


NoiseFigures = tuple[float, float, bool]  # see SelfCheck


@dataclass(frozen=True)
class InternalFigures:
    """What a run has met among the records: for whoever holds them, and nobody else.

    It cannot be copied or pickled, and estimators leave it out of their copies and pickles.

    Attributes
    ----------
    seen : int
        Examples in all batches.
    clipped : int
        Of these, with a gradient longer than the clip bound.
    broken : int
        Of these, with a gradient that was not finite, which added nothing.
    left_out : int
        Records that were not as declared, and in no batch.
    """

    seen: int
    clipped: int
    broken: int
    left_out: int = 0

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "Expected internal figures to stay in the process that holds the records, got an "
            "attempt to copy or pickle them. Read what you need from internal_ instead."
        )

    @property
    def clip_rate(self) -> float:
        """Share of examples whose gradient was longer than the bound."""
        return self.clipped / max(1, self.seen)


class TrainingRun:
    """One run of a descent, called after each of its steps.

    Parameters
    ----------
    watch : Watch
        Averages weights, and calls the hook.
    descent : Descent
    layout : Layout
        Of the network.
    first : array
        Weights to begin with.
    file : Checkpoint, optional
    every : int
        Steps between two checkpoints.

    Attributes
    ----------
    standing : Standing or None
        From where the run goes on, if it was broken off.
    tell : callable
        Told how many steps are done, after each.
    """

    def __init__(
        self,
        watch: Watch,
        descent: DPSGD,
        layout: Layout,
        first: Floats,
        file: Checkpoint | None,
        every: int,
    ) -> None:
        self.watch, self.first = watch, first
        self.standing: TrainingState | None = None
        self.tell: ReportSteps = lambda done: None
        self._descent, self._layout, self._file, self._every = descent, layout, file, every
        self._watched, self._marks = NoisySumMonitor(descent, layout.size), layout.marks(first)
        self._last: TrainingState | None = None

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Go on from where a run was broken off, or say on the disk that it has begun.

        A run that was paid for is there before its first batch is drawn: should the file be
        missing later, a model of it may have left.
        """
        if self._file is None:
            yield
            return
        with self._file.held():
            kept = self._file.read()
            if kept is not None:
                self.standing = kept.standing
                self.watch.average.go_on(kept.mean)
            elif self._file.paid is not None:
                state = self._descent.update.start(self.first)
                self._file.write(TrainingState(0, self.first, state, self._descent.clip), {})
            yield

    def __call__(self, step: Step) -> bool | None:
        """Take note of a step."""
        self._watched.note(step)
        ended = self.watch(step)
        self.tell(step.number + 1)
        self._last = step.standing  # and not the sum, which is large
        if self._file is not None and (step.number + 1) % self._every == 0:
            self._file.write(step.standing, self.watch.average.kept())
        return ended

    def noise(self) -> NoiseFigures:
        """How long the noisy sums were, the least, and whether noise alone is that long."""
        return (*self._watched.noise(), self._watched.silent())

    def checked(self, noise: NoiseFigures, last: Floats, logits: Floats) -> SelfCheck:
        """What the run shows of itself, by its last weights and logits of made-up rows."""
        still = self._layout.unmoved(self._marks, last)
        constant = bool((logits == logits[0]).all())
        found, least, silent = noise
        return SelfCheck(found, least, still, constant, silent)

    def over(self) -> None:
        """The run has come to its end."""
        if self._file is None:
            return
        if self._file.paid is None:
            self._file.remove()
        elif self._last is not None:  # a second model for one charge would be one too many
            self._file.write(self._last, self.watch.average.kept())
