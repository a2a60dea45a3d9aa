"""One training run: progress bar, self-check, and checkpoints from which it resumes."""

import fcntl
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from scipy.stats import chi2

from veracal._types import Array, Floats
from veracal.accounting import event_to_json
from veracal.data import translate_os_errors
from veracal.errors import DataError
from veracal.ledger import canonical, digest
from veracal.mechanisms import DPSGD, GlobalAdapt, Step, TrainingState
from veracal.neural.gradient_sums import Layout
from veracal.training import StepCallback

_FALSE_ALARM = 1e-9  # probability that correct noise is reported as too small
_SIGNAL_LEVEL = 0.01  # probability that noise alone is taken for a signal
_LEAST_SIGNAL = 0.1  # of the bound: smallest expected contribution of an example
_MAX_COORDINATES = 1 << 16  # coordinates whose sums over all steps are tracked
_METADATA_KEY = "veracal"
_FORMAT = 1
_STATE, _MEAN = "state.", "mean."
_TRIES = 100  # to lock a file before another process has removed it
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
NoiseFigures = tuple[float, float, bool]  # noise, least_noise and noise_only of SelfCheck


@contextmanager
def progress_bar(steps: int, *, visible: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on the standard error stream; yields a function of completed steps.

    It shows the number of completed steps and the remaining time, and nothing that was learned.
    The duration of a step is all that it could reveal about the records.
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
    """Measures the noisy sums of a run, which have ``size`` entries each."""

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

    def figures(self) -> NoiseFigures:
        r"""Measured noise, its lower bound, and whether the sums look like noise alone.

        Divided by the standard deviation of the noise, the squared entries add up to a
        :math:`\chi^2` variable if the sums contain nothing else. So do those of the sums over
        all steps, divided by the number of steps, which reveal weak signals of constant
        direction.
        """
        if not self._steps:
            return 1.0, 0.0, False
        entries = self._steps * self._size
        threshold = float(chi2.isf(_SIGNAL_LEVEL, entries))
        direction = float(np.vdot(self._sums, self._sums)) / self._steps
        signal = self._total * self._size > threshold or direction > chi2.isf(
            _SIGNAL_LEVEL, len(self._sums)
        )
        noise_only = self._expected_signal > 2 * (threshold - entries) and not signal
        least = float(chi2.ppf(_FALSE_ALARM, entries)) / entries
        return self._total / self._steps, least, noise_only


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


class Checkpoint:
    """A file that is written at intervals during training, and from which a run resumes.

    It holds the weights, the states of the optimizer and of the average, the number of steps,
    the event, and the head of the ledger that paid for the run. It holds no generator state: a
    resumed run draws new batches and new noise.

    Parameters
    ----------
    path : path
    dp_sgd : DPSGD
    layout : Layout
    run : mapping
        Other settings that must be the same to resume a run, as JSON values.
    paid : str, optional
        Identifies the payment: the head of the ledger, and the records.

    Guarantees
    ----------
    The file is readable by its owner only, and is replaced completely or not at all. A run
    resumes only under the settings and the charge of the interrupted one. Steps that were taken
    after the file was written are repeated with fresh noise; their results have not left the
    process, so the cost is that of one run. Restoring an older copy of the file and resuming
    from it is a second run that was not paid for; this cannot be detected here.
    """

    def __init__(
        self,
        path: Path,
        dp_sgd: DPSGD,
        layout: Layout,
        run: Mapping[str, Any],
        paid: str | None,
    ) -> None:
        self.path, self.paid, self._dp_sgd = Path(path), paid, dp_sgd
        self._size = layout.size
        self._metadata = {
            "format": _FORMAT,
            "event": event_to_json(dp_sgd.event()),
            "paid": paid,
            "settings": digest(
                canonical({**training_settings(dp_sgd, layout), "run": dict(run)})
            ),
        }

    @contextmanager
    def lock_run(self) -> Iterator[None]:
        """Lock the run against other processes inside the block.

        The lock file is removed by the process that has locked it and found it in its place, so
        a file in that place is locked by the process that may go on, or by none. One that was
        removed between open and lock is of no use: another may be in its place, and locked.
        """
        lock = self.path.with_name(f".{self.path.name}.lock")
        with translate_os_errors(self.path), ExitStack() as stack:
            busy: OSError | None = None
            for _ in range(_TRIES):
                file = stack.enter_context(lock.open("ab"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    busy = error
                    break
                if _is_file_at(file, lock):
                    break
                file.close()
            if file.closed or busy is not None:
                raise DataError(
                    str(self.path),
                    "a run that no other process is working on",
                    "another process that has locked it",
                    "Wait until it ends, or stop it.",
                ) from busy
            try:
                yield
            finally:
                # Before the lock is released: other processes then find the file gone.
                if _is_file_at(file, lock):
                    lock.unlink(missing_ok=True)

    def save(self, state: TrainingState, mean: Mapping[str, Array]) -> None:
        """Save the state of a run, and its averaged weights."""
        tensors = {"weights": np.ascontiguousarray(state.weights)}
        tensors |= {f"{_STATE}{i}": array for i, array in enumerate(_flatten(state.state))}
        tensors |= {f"{_MEAN}{name}": array for name, array in mean.items()}
        clip = state.clip
        metadata = {
            **self._metadata,
            "steps": state.steps,
            "threshold": clip.threshold if isinstance(clip, GlobalAdapt) else None,
        }
        _write_atomically(
            self.path, save(tensors, metadata={_METADATA_KEY: json.dumps(metadata)})
        )

    def load(self) -> tuple[TrainingState, dict[str, Array]] | None:
        """Load the state of an interrupted run and its averaged weights; None if no file is there.

        Raises
        ------
        DataError
            If the file belongs to another run, or is not a checkpoint.
        """
        if not self.path.exists():
            return None
        try:
            with translate_os_errors(self.path), safe_open(str(self.path), "numpy") as file:
                metadata = json.loads((file.metadata() or {}).get(_METADATA_KEY, "null"))
                tensors = {name: np.array(file.get_tensor(name)) for name in list(file.keys())}
        except (SafetensorError, json.JSONDecodeError) as error:
            raise self._error("a checkpoint", "another or a truncated file") from error
        if not isinstance(metadata, dict) or "weights" not in tensors:
            raise self._error("a checkpoint", "another file")
        for key, description in (
            ("format", "of this version"),
            ("event", "of a run that costs the same"),
            ("settings", "of a run with the same settings and the same network"),
            ("paid", "of the run that this charge pays for"),
        ):
            if metadata.get(key) != self._metadata[key]:
                raise self._error(f"a checkpoint {description}", f"another {key}")
        weights, steps = tensors["weights"], metadata.get("steps")
        if weights.dtype != np.float32 or weights.shape != (self._size,):
            actual = f"{weights.dtype} of shape {weights.shape}"
            raise self._error(f"weights as float32 of shape ({self._size},)", actual)
        if not all(np.isfinite(array).all() for array in tensors.values()):
            raise self._error("finite numbers", "NaN or infinity")
        if type(steps) is not int or not 0 <= steps <= self._dp_sgd.steps:
            raise self._error(f"steps from 0 to {self._dp_sgd.steps}", repr(steps))
        clip, threshold = self._dp_sgd.clip, metadata.get("threshold")
        if isinstance(clip, GlobalAdapt):
            if type(threshold) is not float or not 0 < threshold < float("inf"):
                raise self._error("a threshold of the clip rule > 0", repr(threshold))
            clip = replace(clip, threshold=threshold)
        like = self._dp_sgd.optimizer.start(weights)
        shapes = {f"{_STATE}{i}": one.shape for i, one in enumerate(_flatten(like))}
        if shapes != {k: one.shape for k, one in tensors.items() if k.startswith(_STATE)}:
            raise self._error("the state of this optimizer", "arrays of other shapes")
        arrays = [tensors[name] for name in shapes]
        if isinstance(like, tuple):
            state: Any = like._make(arrays) if hasattr(like, "_make") else tuple(arrays)
        else:
            state = arrays[0] if arrays else None
        mean = {
            name.removeprefix(_MEAN): array
            for name, array in tensors.items()
            if name.startswith(_MEAN)
        }
        return TrainingState(steps, weights, state, clip), mean

    def remove(self) -> None:
        """Remove the file after the run."""
        with translate_os_errors(self.path):
            self.path.unlink(missing_ok=True)

    def _error(self, expected: str, actual: str) -> DataError:
        """Error for a file that does not fit."""
        rest = ". This run is paid for: without its file it is lost."
        if self.paid is None:
            rest = ", or remove the file to start again."
        advice = f"Resume with the settings of the interrupted run{rest}"
        return DataError(str(self.path), expected, actual, advice)


class TrainingRun:
    """One training run, called after each of its steps.

    The watch averages weights and calls the hook; a checkpoint is written after every so many
    steps. An interrupted run resumes from ``resume_state``, and ``report_progress`` is called
    with the number of completed steps.
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
        self.report_progress: Callable[[int], None] = lambda done: None
        self.monitor = NoisySumMonitor(dp_sgd, layout.size)
        self.dp_sgd, self._layout = dp_sgd, layout
        self._checkpoint, self._every = checkpoint, every
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
                self.resume_state, mean = saved
                self.watch.average.restore(mean)
            elif self._checkpoint.paid is not None:
                state = self.dp_sgd.optimizer.start(self.initial_weights)
                self._checkpoint.save(
                    TrainingState(0, self.initial_weights, state, self.dp_sgd.clip), {}
                )
            yield

    def __call__(self, step: Step) -> bool | None:
        """Process a step."""
        self.monitor.record(step)
        ended = self.watch(step)
        self.report_progress(step.number + 1)
        self._last = step.training_state  # without the sum, which is large
        if self._checkpoint is not None and (step.number + 1) % self._every == 0:
            self._checkpoint.save(step.training_state, self.watch.average.state_dict())
        return ended

    def self_check(self, noise: NoiseFigures, last: Floats, logits: Floats) -> SelfCheck:
        """Return the self-check, given the last weights and the logits of synthetic rows."""
        unchanged = self._layout.unchanged(self._digests, last)
        constant = bool((logits == logits[0]).all())
        return SelfCheck(*noise[:2], unchanged, constant, noise[2])

    def finish(self) -> None:
        """Finish the run: remove the checkpoint, or keep the result of a paid run in it."""
        if self._checkpoint is None:
            return
        if self._checkpoint.paid is None:
            self._checkpoint.remove()
        elif self._last is not None:  # the same request must return the same model
            self._checkpoint.save(self._last, self.watch.average.state_dict())


def training_settings(dp_sgd: DPSGD, layout: Layout) -> dict[str, Any]:
    """Settings that identify a training, in addition to its cost."""
    return {
        "clip": repr(dp_sgd.clip),
        "optimizer": repr(dp_sgd.optimizer),
        "expected_batch": dp_sgd.expected_batch,
        "weight_decay": dp_sgd.weight_decay,
        "layout": [[array.name, list(array.shape)] for array in layout.slices],
    }


def _flatten(state: Any) -> list[Array]:
    """Return the arrays of an optimizer state, in order."""
    arrays = () if state is None else state if isinstance(state, tuple) else (state,)
    if not all(isinstance(array, np.ndarray) for array in arrays):
        raise ValueError(
            "Expected an optimizer whose state is None, an array or a tuple of arrays, got "
            f"{type(state).__name__}. Remove the checkpoint."
        )
    return [np.ascontiguousarray(array) for array in arrays]


def _is_file_at(file: BinaryIO, path: Path) -> bool:
    """Return whether an open file is the one at that path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _write_atomically(path: Path, content: bytes) -> None:
    """Write a file completely, or not at all."""
    # One fixed name, so that the file of a killed process is replaced: the run is locked.
    partial = path.with_name(f".{path.name}.part")
    try:
        with translate_os_errors(path):
            partial.unlink(missing_ok=True)  # its permissions may differ
            with os.fdopen(os.open(partial, _NEW, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
