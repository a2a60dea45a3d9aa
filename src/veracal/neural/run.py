"""Between the steps of a fit: progress bar, averages, hook, checkpoints and a self-check."""

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
from veracal.training import StepCallback

ReportSteps = Callable[[int], None]


@contextmanager
def progress_bar(steps: int, *, visible: bool) -> Iterator[ReportSteps]:
    """Show a progress bar on the standard error stream inside the block.

    It shows the number of completed steps and the remaining time, and nothing that was learned.
    The duration of a step is all that it could reveal about the records.

    Parameters
    ----------
    steps : int
        Total number of steps.
    visible : bool
        Whether to show a bar.

    Yields
    ------
    function of the number of completed steps
    """
    if not visible:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("steps", total=steps)
        yield lambda done: bars.update(task, completed=done)


_FALSE_ALARM = 1e-9  # probability that correct noise is reported as too small
_SIGNAL_LEVEL = 0.01  # probability that noise alone is taken for a signal
_LEAST_SIGNAL = 0.1  # of the bound: smallest expected contribution of an example
_MAX_COORDINATES = 1 << 16  # coordinates whose sums over all steps are tracked


@dataclass(frozen=True)
class SelfCheck:
    """Checks of a finished run; all of them are functions of released values.

    The number of records for which the module failed is not reported and gives no warning:
    warnings end up in logs and notebooks, and that number is about records. If *all* records
    contribute nothing, the noisy sums are noise alone, which may be reported.

    Attributes
    ----------
    noise : float
        Mean squared length of the noisy sums, divided by its expectation for noise alone. Far
        below 1, there was less noise than was paid for.
    least_noise : float
        Lower bound on ``noise``, which noise alone violates with probability 1e-9.
    unchanged : tuple of str
        Parameters that did not change.
    constant : bool
        Whether the network returns the same logits for all synthetic examples.
    noise_only : bool
        Whether the noisy sums are indistinguishable from noise, although a batch of the
        declared size would show if each gradient added a tenth of the bound.
    problems : tuple of str
        Descriptions; empty if there are none.
    """

    noise: float
    least_noise: float
    unchanged: tuple[str, ...]
    constant: bool
    noise_only: bool = False

    @property
    def problems(self) -> tuple[str, ...]:
        """Descriptions of what is wrong."""
        problems = []
        if self.noise < self.least_noise:
            problems.append(
                f"the squared length of the noisy sums is {self.noise:.2g} times that of the "
                "noise that was paid for: do not release this model"
            )
        if self.unchanged:
            names = ", ".join(self.unchanged[:5])
            problems.append(f"{len(self.unchanged)} parameters did not change: {names}")
        if self.constant:
            problems.append("the network returns the same logits for all synthetic examples")
        if self.noise_only:
            problems.append(
                "the noisy sums are as long as noise alone: records contributed almost "
                "nothing. Either the clip bound is far above their gradients, or the module "
                "fails for them (internal_.nonfinite counts those)"
            )
        return tuple(problems)

    def warn(self) -> None:
        """Warn of every problem."""
        for problem in self.problems:
            warnings.warn(problem, stacklevel=2)


class NoisySumMonitor:
    """Measures the noisy sums of a run.

    Parameters
    ----------
    dp_sgd : DPSGD
    size : int
        Length of a sum.
    """

    def __init__(self, dp_sgd: DPSGD, size: int) -> None:
        self._multipliers, self._size = dp_sgd.noise_multipliers(), size
        self._total, self._steps = 0.0, 0
        self._batch, self._expected_signal = float(dp_sgd.expected_batch), 0.0
        self._sums = np.zeros(min(size, _MAX_COORDINATES))

    def record(self, step: Step) -> None:
        """Add the noisy sum of a step."""
        multiplier = float(self._multipliers[step.number])
        std, noisy = multiplier * step.clip.bound, np.asarray(step.noisy_sum).reshape(-1)
        self._total += float(np.vdot(noisy, noisy)) / (std**2 * self._size)
        self._sums += noisy[: len(self._sums)] / std
        self._expected_signal += (_LEAST_SIGNAL * self._batch / multiplier) ** 2
        self._steps += 1

    def noise(self) -> tuple[float, float]:
        """Mean squared length relative to noise alone, and its lower bound."""
        if not self._steps:
            return 1.0, 0.0
        entries = self._steps * self._size
        return self._total / self._steps, float(chi2.ppf(_FALSE_ALARM, entries)) / entries

    def noise_only(self) -> bool:
        r"""Return whether the sums look like noise alone although a signal is expected.

        Divided by the standard deviation of the noise, the squared entries add up to a
        :math:`\chi^2` variable if the sums contain nothing else. So do those of the sums over
        all steps, divided by the number of steps, which reveal weak signals of constant
        direction.
        """
        if not self._steps:
            return False
        entries = self._steps * self._size
        threshold = float(chi2.isf(_SIGNAL_LEVEL, entries))
        direction_statistic = float(np.vdot(self._sums, self._sums)) / self._steps
        signal = self._total * self._size > threshold or direction_statistic > chi2.isf(
            _SIGNAL_LEVEL, len(self._sums)
        )
        return self._expected_signal > 2 * (threshold - entries) and not signal


NoiseFigures = tuple[float, float, bool]  # see SelfCheck


@dataclass(frozen=True)
class InternalFigures:
    """Counts of a run over the records. *Internal*: for the data holder only.

    It cannot be copied or pickled, and estimators leave it out of their copies and pickles.

    Attributes
    ----------
    examples : int
        Number of examples in all batches.
    clipped : int
        Examples with a gradient longer than the clip bound.
    nonfinite : int
        Examples with a gradient that was not finite, which added nothing.
    excluded : int
        Records that did not match the declaration and were in no batch.
    """

    examples: int
    clipped: int
    nonfinite: int
    excluded: int = 0

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "Expected internal figures to stay in the process that holds the records, got an "
            "attempt to copy or pickle them. Read what you need from internal_ instead."
        )

    @property
    def clip_rate(self) -> float:
        """Fraction of examples whose gradient was longer than the bound."""
        return self.clipped / max(1, self.examples)


class TrainingRun:
    """One training run, called after each of its steps.

    Parameters
    ----------
    watch : Watch
        Averages weights, and calls the hook.
    dp_sgd : DPSGD
    layout : Layout
        Of the network.
    initial_weights : array
    checkpoint : Checkpoint, optional
    every : int
        Steps between two checkpoints.

    Attributes
    ----------
    resume_state : TrainingState or None
        State from which an interrupted run resumes.
    report_progress : callable
        Called with the number of completed steps, after each.
    """

    def __init__(
        self,
        watch: StepCallback,
        dp_sgd: DPSGD,
        layout: Layout,
        initial_weights: Floats,
        checkpoint: Checkpoint | None,
        every: int,
    ) -> None:
        self.watch, self.initial_weights = watch, initial_weights
        self.resume_state: TrainingState | None = None
        self.report_progress: ReportSteps = lambda done: None
        self._dp_sgd, self._layout = dp_sgd, layout
        self._checkpoint, self._every = checkpoint, every
        self._monitor = NoisySumMonitor(dp_sgd, layout.size)
        self._digests = layout.digests(initial_weights)
        self._last: TrainingState | None = None

    @contextmanager
    def session(self) -> Iterator[None]:
        """Resume an interrupted run, or record on disk that the run has begun.

        A paid run has its file before its first batch is drawn: if the file is missing later, a
        model of that run may have been released.
        """
        if self._checkpoint is None:
            yield
            return
        with self._checkpoint.lock_run():
            saved = self._checkpoint.load()
            if saved is not None:
                self.resume_state = saved.state
                self.watch.average.restore(saved.mean)
            elif self._checkpoint.paid is not None:
                state = self._dp_sgd.optimizer.start(self.initial_weights)
                self._checkpoint.save(
                    TrainingState(0, self.initial_weights, state, self._dp_sgd.clip), {}
                )
            yield

    def __call__(self, step: Step) -> bool | None:
        """Process a step."""
        self._monitor.record(step)
        ended = self.watch(step)
        self.report_progress(step.number + 1)
        self._last = step.training_state  # without the sum, which is large
        if self._checkpoint is not None and (step.number + 1) % self._every == 0:
            self._checkpoint.save(step.training_state, self.watch.average.state_dict())
        return ended

    def noise(self) -> NoiseFigures:
        """Measured noise, its lower bound, and whether the sums look like noise alone."""
        return (*self._monitor.noise(), self._monitor.noise_only())

    def self_check(self, noise: NoiseFigures, last: Floats, logits: Floats) -> SelfCheck:
        """Return the self-check, given the last weights and the logits of synthetic rows."""
        unchanged = self._layout.unchanged(self._digests, last)
        constant = bool((logits == logits[0]).all())
        measured, least_noise, noise_only = noise
        return SelfCheck(measured, least_noise, unchanged, constant, noise_only)

    def finish(self) -> None:
        """Finish the run: remove the checkpoint, or keep the result of a paid run in it."""
        if self._checkpoint is None:
            return
        if self._checkpoint.paid is None:
            self._checkpoint.remove()
        elif self._last is not None:  # the same request must return the same model
            self._checkpoint.save(self._last, self.watch.average.state_dict())
