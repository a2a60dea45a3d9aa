"""Collect runs as they arrive, keep them in a checkpoint file, and resume from it.

Also the recalibration of runs, each by a calibration map of its own.
"""

import fcntl
import json
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats, Ints, Progress
from veracal.calibration import MapFitter
from veracal.data import Label, Scores, atomic_file, translate_os_errors
from veracal.errors import DataError
from veracal.multiplicity.engines.base import AuditEngine, Seed
from veracal.multiplicity.runs import Runs

FORMAT = 1
_WRITE_INTERVAL = 1.0  # seconds between saves; a killed process loses at most this much work
_CHECK_GROWTH = 1.1  # factor by which the runs grow between evaluations of the stopping rule

# Scores of all rows -> the scores to count, and their kind.
ScoreView = Callable[[Floats], tuple[Floats, str]]
StoppingRule = Callable[[], int]  # estimated number of runs needed; stop once that many exist


@dataclass(frozen=True, eq=False)
class RunConsumer:
    """Counters of runs, and the view of the scores that they count."""

    runs: Runs
    view: ScoreView


@dataclass(eq=False)
class _Checkpoint:
    """The runs counted so far, and the file that they are saved in."""

    consumers: Mapping[str, RunConsumer]
    # Settings of the audit; runs of another audit must not be mixed in.
    identity: dict[str, Any]
    seed: Seed
    keep: Path | None
    fixed: int | None  # number of runs, if it was fixed before the first run and never changed
    completed: list[range] = field(default_factory=list)
    written_at: float = field(default_factory=time.monotonic)

    @property
    def runs(self) -> int:
        return sum(map(len, self.completed))

    def count(self, runs: range, scores: Floats) -> None:
        """Count some runs in every consumer; if that fails, the last saved state remains."""
        keep, self.keep = self.keep, None
        for consumer in self.consumers.values():
            values, kind = consumer.view(scores)
            if kind == "decision":
                consumer.runs.add(values, first=runs.start)
            else:
                consumer.runs.add_scores(values, kind=kind, first=runs.start)
        self.completed = merge_ranges([*self.completed, runs])
        self.keep = keep
        if self.keep is not None and time.monotonic() - self.written_at >= _WRITE_INTERVAL:
            self.save()

    def save(self) -> None:
        """Save all counts atomically."""
        if self.keep is None:
            return
        head = {
            "format": FORMAT,
            "identity": self.identity,
            "entropy": str(self.seed.entropy),
            "fixed": self.fixed,
            "completed": [[runs.start, runs.stop] for runs in self.completed],
        }
        arrays: dict[str, Array] = {"head": np.array(json.dumps(head))}
        for name, consumer in self.consumers.items():
            arrays |= {f"{name}:{key}": value for key, value in consumer.runs.state().items()}
        with atomic_file(self.keep, force=True) as file:
            np.savez(file, allow_pickle=False, **arrays)
        self.written_at = time.monotonic()

    def load(self, path: Path, random_state: int | None) -> None:
        """Restore the counts of an untrusted file; malformed content is a DataError.

        The file must belong to this audit.
        """
        try:
            head, arrays = _read_checkpoint(path)
            if head["identity"] != self.identity:
                saved, own = dict(_flatten(head["identity"])), dict(_flatten(self.identity))
                names = sorted(name for name in saved | own if saved.get(name) != own.get(name))
                raise DataError(
                    str(path),
                    "an audit of the same training, records, individuals and settings",
                    f"different {', '.join(names[:5])}",
                    "Give the same settings to resume it, or choose another file for a new "
                    "audit.",
                )
            if random_state is not None and int(head["entropy"]) != random_state:
                raise DataError(
                    str(path),
                    f"an audit with random_state={random_state}",
                    "another random_state",
                    "Omit random_state to resume it, or choose another file for a new audit.",
                )
            self.seed = Seed(int(head["entropy"]), self.seed.varied)
            self.completed = merge_ranges(range(*ends) for ends in head["completed"])
            self.fixed = self.fixed if head.get("fixed") == self.fixed else None
            for name, consumer in self.consumers.items():
                prefix = f"{name}:"
                consumer.runs.restore(
                    {
                        key.removeprefix(prefix): array
                        for key, array in arrays.items()
                        if key.startswith(prefix)
                    }
                )
                if consumer.runs.runs != self.runs:
                    raise ValueError(f"{consumer.runs.runs} runs counted of {self.runs}")
        except DataError:
            raise
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            EOFError,
            zipfile.BadZipFile,
        ) as cause:
            raise DataError(
                str(path), "a checkpoint of an audit", str(cause)[:80], "Choose another file."
            ) from cause


@dataclass(frozen=True)
class CollectionResult:
    """How a collection of runs ended."""

    runs: int
    resumed: int  # of these runs, those counted by an earlier process
    # Whether the number of runs was fixed before the first run and never changed. If not, it
    # may depend on the results, and only anytime-valid intervals hold.
    fixed: bool


def collect(
    engine: AuditEngine,
    consumers: Mapping[str, RunConsumer],
    run_limit: int,
    *,
    random_state: int | None = None,
    seed: Seed,
    keep: str | Path | None = None,
    identity: Mapping[str, Any] | None = None,
    stopping_rule: StoppingRule | None = None,
    on_progress: Progress | None = None,
) -> CollectionResult:
    """Repeat a training and count the results of its runs.

    The checkpoint file ``keep`` is saved about every second and at the end. If it exists, its
    runs are not repeated; its settings must agree with the engine's and with ``identity``, and
    its seed with the user's ``random_state``, if one was given. Collection ends after
    ``run_limit`` runs, or once as many were counted as ``stopping_rule`` estimates to suffice.

    Raises
    ------
    DataError
        If the file belongs to another audit, is not a checkpoint, or is in use.

    Guarantees
    ----------
    No run is counted twice. However the collection ends, the counted runs are saved.
    """
    _checks.whole(least=2, runs=run_limit)
    path = None if keep is None else Path(keep)
    identity = {"engine": engine.settings(), "varied": seed.varied, **(identity or {})}
    fixed = run_limit if stopping_rule is None else None
    checkpoint = _Checkpoint(consumers, json.loads(json.dumps(identity)), seed, path, fixed)
    with _exclusive_lock(path):
        if path is not None and path.exists():
            checkpoint.load(path, random_state)
        resumed = checkpoint.runs
        expected, ask_at = run_limit, 2.0
        pending = pending_ranges(checkpoint.completed, run_limit, engine.runs_per_call)
        try:
            with closing(engine.stream(pending, checkpoint.seed)) as arriving:  # type: ignore[type-var]
                while True:
                    if stopping_rule is not None and checkpoint.runs >= ask_at:
                        expected = min(stopping_rule(), run_limit)
                        ask_at = max(2.0, _CHECK_GROWTH * checkpoint.runs)
                    if on_progress is not None:
                        on_progress(checkpoint.runs, max(expected, checkpoint.runs))
                    if checkpoint.runs >= expected:
                        break
                    runs, scores = next(arriving, (None, None))
                    if runs is None or scores is None:
                        break
                    checkpoint.count(runs, scores)
        finally:
            if checkpoint.runs > resumed:
                checkpoint.save()
    return CollectionResult(checkpoint.runs, resumed, checkpoint.fixed is not None)


def pending_ranges(completed: list[range], limit: int, runs_per_call: int) -> Iterator[range]:
    """Split the runs below a limit that are not completed into ranges of a given length.

    Examples
    --------
    >>> list(pending_ranges([range(2, 5)], 9, 3))
    [range(0, 2), range(5, 8), range(8, 9)]
    """
    for before, after in zip(
        [range(0), *completed], [*completed, range(limit, limit)], strict=True
    ):
        stop = min(after.start, limit)
        for start in range(before.stop, stop, runs_per_call):
            yield range(start, min(start + runs_per_call, stop))


def merge_ranges(runs: Any) -> list[range]:
    """Sort disjoint ranges and merge adjacent ones.

    Examples
    --------
    >>> merge_ranges([range(4, 6), range(0, 2), range(2, 4), range(8, 9)])
    [range(0, 6), range(8, 9)]
    """
    merged: list[range] = []
    for value in sorted(runs, key=lambda each: each.start):
        if merged and merged[-1].stop > value.start:
            raise ValueError(f"Expected no run to be counted twice, got {value} again.")
        if merged and merged[-1].stop == value.start:
            merged[-1] = range(merged[-1].start, value.stop)
        else:
            merged.append(value)
    return merged


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read the header and the arrays of a checkpoint."""
    if not zipfile.is_zipfile(path):
        raise ValueError("another kind of file")
    with translate_os_errors(path), np.load(path, allow_pickle=False) as held:
        arrays = {name: held[name] for name in held.files}
    head = json.loads(str(arrays.pop("head")))
    if head["format"] != FORMAT:
        raise ValueError(f"format {head['format']!r}")
    return head, arrays


def _flatten(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as pairs of a dotted name and a value."""
    if not isinstance(settings, Mapping):
        yield prefix, settings
        return
    for name, value in settings.items():
        yield from _flatten(value, f"{prefix}.{name}" if prefix else str(name))


@contextmanager
def _exclusive_lock(path: Path | None) -> Iterator[None]:
    """Hold a lock file beside the checkpoint, so that one process at a time writes it."""
    if path is None:
        yield
        return
    beside = path.with_name(f".{path.name}.lock")
    try:
        handle = os.open(beside, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as cause:
        raise DataError(
            str(path), "a writable folder", cause.strerror or str(cause), "Choose another path."
        ) from cause
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            raise DataError(
                str(path),
                "one audit at a time",
                "another audit that uses it",
                "Wait for it to finish, or choose another file.",
            ) from cause
        yield
    finally:
        os.close(handle)


@dataclass(frozen=True, eq=False)
class PerRunRecalibration:
    """A calibration map fitted to each run, on records of its own."""

    fitter: MapFitter  # not private: an audit is internal
    labels: Ints  # of the last rows that the engine scores

    @property
    def count(self) -> int:
        """Number of records that maps are fitted on."""
        return len(self.labels)

    @property
    def method(self) -> str:
        """Name of the method in tables."""
        return repr(self.fitter)

    def view(self, count: int, kind: str, classes: Sequence[Label]) -> ScoreView:
        """Probabilities of the first rows of each run, after the run's own map."""

        def apply_maps(scores: Floats) -> tuple[Floats, str]:
            recalibrated = []
            for run in scores:
                own = _make_scores(run[len(run) - self.count :], kind, classes, self.labels)
                fitted = self.fitter.fit(own)
                shares = fitted.transform(_make_scores(run[:count], kind, classes, None))
                recalibrated.append(shares.probabilities)
            stacked = np.stack(recalibrated)
            return stacked[:, :, 1] if len(classes) == 2 else stacked, "probability"

        return apply_maps


def _make_scores(
    values: Array, kind: str, classes: Sequence[Label], labels: Ints | None
) -> Scores:
    """Scores of one run."""
    if len(classes) == 2:
        rest = np.zeros_like(values) if kind == "logit" else 1 - values
        values = np.stack([rest, values], axis=1)
    logits = kind == "logit"
    return Scores(
        values.astype(np.float64),
        "logits" if logits else "probabilities",
        tuple(classes),
        labels,
    )
