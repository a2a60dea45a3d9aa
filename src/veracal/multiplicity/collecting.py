"""Runs collected as they come in, kept on disk, and gone on with where they broke off.

Runs whose confidence was repaired, each by a map of its own.
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
from veracal.data import Label, Scores, no_surprises, placed
from veracal.errors import DataError
from veracal.multiplicity.engines.base import AuditEngine, Seed
from veracal.multiplicity.runs import Runs

FORMAT = 1
_SECONDS = 1.0  # of work that a process which is killed loses at most, and a run's own time
_MORE = 1.1  # growth of the number of runs after which is asked again whether they suffice

LogOddsTransform = Callable[
    [Floats], tuple[Floats, str]
]  # scores of all rows: what to count, which kind
Enough = Callable[[], int]  # about how many runs it takes in all; no more than there are: done


@dataclass(frozen=True, eq=False)
class RunConsumer:
    """Where scores of runs are counted, and what is counted of them."""

    runs: Runs
    view: LogOddsTransform


@dataclass(eq=False)
class _Book:
    """Which runs were counted, and when that was last written down."""

    sinks: Mapping[str, RunConsumer]
    about: dict[str, Any]  # what the audit is of: another's runs must not be mixed in
    seed: Seed
    keep: Path | None
    fixed: int | None  # how many runs, if that was said before the first and never changed
    done: list[range] = field(default_factory=list)
    written: float = field(default_factory=time.monotonic)

    @property
    def runs(self) -> int:
        return sum(map(len, self.done))

    def count(self, runs: range, scores: Floats) -> None:
        """Count some runs everywhere; if that breaks off, what was last written stays."""
        keep, self.keep = self.keep, None
        for sink in self.sinks.values():
            values, kind = sink.view(scores)
            if kind == "decision":
                sink.runs.add(values, first=runs.start)
            else:
                sink.runs.add_scores(values, kind=kind, first=runs.start)
        self.done = joined([*self.done, runs])
        self.keep = keep
        if self.keep is not None and time.monotonic() - self.written >= _SECONDS:
            self.write()

    def write(self) -> None:
        """Write everything that was counted, whole or not at all."""
        if self.keep is None:
            return
        head = {
            "format": FORMAT,
            "about": self.about,
            "entropy": str(self.seed.entropy),
            "fixed": self.fixed,
            "done": [[runs.start, runs.stop] for runs in self.done],
        }
        arrays: dict[str, Array] = {"head": np.array(json.dumps(head))}
        for name, sink in self.sinks.items():
            arrays |= {f"{name}:{key}": value for key, value in sink.runs.state().items()}
        with placed(self.keep, force=True) as file:
            np.savez(file, allow_pickle=False, **arrays)
        self.written = time.monotonic()

    def read(self, random_state: int | None) -> None:
        """Take up what was written, if anything was."""
        if self.keep is None or not self.keep.exists():
            return
        with _understood(self.keep):
            self._take_up(self.keep, random_state)

    def _take_up(self, path: Path, random_state: int | None) -> None:
        """Likewise; whatever a stranger may have written there raises something."""
        head, arrays = _read(path)
        if head["about"] != self.about:
            raise DataError(
                str(path),
                "an audit of the same training, records, people and settings",
                _difference(head["about"], self.about),
                "Give the same settings to go on with it, or name another file to start anew.",
            )
        if random_state is not None and int(head["entropy"]) != random_state:
            raise DataError(
                str(path),
                f"an audit with random_state={random_state}",
                "one with another",
                "Leave it out to go on with it, or name another file to start anew.",
            )
        self.seed = Seed(int(head["entropy"]), self.seed.varied)
        self.done = joined(range(*ends) for ends in head["done"])
        self.fixed = self.fixed if head.get("fixed") == self.fixed else None
        for name, sink in self.sinks.items():
            own = f"{name}:"
            sink.runs.restore(
                {key[len(own) :]: array for key, array in arrays.items() if key.startswith(own)}
            )
            if sink.runs.runs != self.runs:
                raise ValueError(f"{sink.runs.runs} runs counted of {self.runs}")


@dataclass(frozen=True)
class CollectionResult:
    """How a collection ended.

    Attributes
    ----------
    runs : int
        Counted in all.
    resumed : int
        Of those, counted by an earlier process.
    fixed : bool
        Whether their number was said before the first of them, and never changed. If not, it
        may depend on what they said, and only intervals that hold whenever one stops do.
    """

    runs: int
    resumed: int
    fixed: bool


def collect(
    engine: AuditEngine,
    sinks: Mapping[str, RunConsumer],
    number: int,
    *,
    random_state: int | None = None,
    seed: Seed,
    keep: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    enough: Enough | None = None,
    on_progress: Progress | None = None,
) -> CollectionResult:
    """Run a training again and again, and count what the runs say.

    Parameters
    ----------
    engine : Engine
    sinks : mapping of str to Sink
    number : int
        Of runs, at most.
    random_state : int, optional
        What the seed was made of, if it was given; a file to go on with must agree.
    seed : Seed
    keep : path, optional
        A file in which results are kept as they arrive, about every second and at the end.
        If it exists, its runs are not made again; each number is counted once.
    about : mapping, optional
        Settings beside the engine's, by which the file is known again.
    enough : callable, optional
        About how many runs suffice. Asked now and then; once there are so many, no more are
        made.
    on_progress : callable, optional

    Raises
    ------
    DataError
        If the file is of another audit, was not written by one, or is being written to.

    Guarantees
    ----------
    No run is counted twice. Whatever ends the collection, what was counted is kept.
    """
    _checks.whole(least=2, runs=number)
    path = None if keep is None else Path(keep)
    told = {"engine": engine.settings(), "varied": seed.varied, **(about or {})}
    fixed = number if enough is None else None
    book = _Book(sinks, json.loads(json.dumps(told)), seed, path, fixed)
    with _alone(path):
        book.read(random_state)
        resumed = book.runs
        try:
            _go_on(engine, book, number, enough, on_progress)
        finally:
            if book.runs > resumed:
                book.write()
    return CollectionResult(book.runs, resumed, book.fixed is not None)


def _go_on(
    engine: AuditEngine,
    book: _Book,
    number: int,
    enough: Enough | None,
    on_progress: Progress | None,
) -> None:
    """Count runs until there are enough."""
    expected, ask_at = number, 0.0
    pending = missing(book.done, number, engine.together)
    with closing(engine.stream(pending, book.seed)) as arriving:  # type: ignore[type-var]
        while True:
            if enough is not None and book.runs >= max(2.0, ask_at):
                expected, ask_at = min(enough(), number), _MORE * book.runs
            if on_progress is not None:
                on_progress(book.runs, max(expected, book.runs))
            if book.runs >= expected:
                return
            runs, scores = next(arriving, (None, None))
            if runs is None or scores is None:
                return
            book.count(runs, scores)


def missing(done: list[range], number: int, together: int) -> Iterator[range]:
    """Numbers below a number that are not done, some at a time.

    Examples
    --------
    >>> list(missing([range(2, 5)], 9, 3))
    [range(0, 2), range(5, 8), range(8, 9)]
    """
    for before, after in zip([range(0), *done], [*done, range(number, number)], strict=True):
        stop = min(after.start, number)
        for start in range(before.stop, stop, together):
            yield range(start, min(start + together, stop))


def joined(runs: Any) -> list[range]:
    """Ranges of numbers, with those that touch made one.

    Examples
    --------
    >>> joined([range(4, 6), range(0, 2), range(2, 4), range(8, 9)])
    [range(0, 6), range(8, 9)]
    """
    found: list[range] = []
    for one in sorted(runs, key=lambda each: each.start):
        if found and found[-1].stop > one.start:
            raise ValueError(f"Expected no run to be counted twice, got {one} again.")
        if found and found[-1].stop == one.start:
            found[-1] = range(found[-1].start, one.stop)
        else:
            found.append(one)
    return found


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """What a file of an audit holds."""
    if not zipfile.is_zipfile(path):
        raise ValueError("another kind of file")
    with no_surprises(path), np.load(path, allow_pickle=False) as held:
        arrays = {name: held[name] for name in held.files}
    head = json.loads(str(arrays.pop("head")))
    if head["format"] != FORMAT:
        raise ValueError(f"format {head['format']!r}")
    return head, arrays


@contextmanager
def _understood(path: Path) -> Iterator[None]:
    """Call whatever is raised by what a file holds an error of that file."""
    try:
        yield
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as cause:
        raise DataError(
            str(path), "a file that an audit keeps", str(cause)[:80], "Name another file."
        ) from cause


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Names of settings that differ."""
    flat, again = dict(_flat(one)), dict(_flat(other))
    names = sorted(name for name in flat | again if flat.get(name) != again.get(name))
    return f"another {', '.join(names[:5])}"


def _flat(settings: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Settings within settings, by their names."""
    if not isinstance(settings, Mapping):
        yield before, settings
        return
    for name, value in settings.items():
        yield from _flat(value, f"{before}.{name}" if before else str(name))


@contextmanager
def _alone(path: Path | None) -> Iterator[None]:
    """Hold a file that one process at a time may hold, beside the one that is kept."""
    if path is None:
        yield
        return
    beside = path.with_name(f".{path.name}.lock")
    try:
        handle = os.open(beside, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as cause:
        raise DataError(
            str(path), "a place to write", cause.strerror or str(cause), "Name another place."
        ) from cause
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            raise DataError(
                str(path),
                "one audit at a time",
                "another",
                "Wait for it, or name another file.",
            ) from cause
        yield
    finally:
        os.close(handle)


@dataclass(frozen=True, eq=False)
class Recalibrating:
    """A map that is fitted anew in every run, on people of its own.

    Attributes
    ----------
    fitter : MapFitter
        Not private: an audit is internal.
    labels : array of ints of shape (n,)
        Right answers of the last n rows that the engine scores.
    """

    fitter: MapFitter
    labels: Ints

    @property
    def people(self) -> int:
        """Whom maps are fitted on."""
        return len(self.labels)

    @property
    def method(self) -> str:
        """How tables call it."""
        return repr(self.fitter)

    def view(self, number: int, kind: str, classes: Sequence[Label]) -> LogOddsTransform:
        """What to count of a run: probabilities of the first rows, after its own map."""

        def mapped(scores: Floats) -> tuple[Floats, str]:
            runs = [
                self._one(run[:number], run[len(run) - self.people :], kind, classes)
                for run in scores
            ]
            return np.stack(runs), "probability"

        return mapped

    def _one(
        self, people: Array, fitted_on: Array, kind: str, classes: Sequence[Label]
    ) -> Floats:
        """Probabilities of one run."""
        given = _scores(fitted_on, kind, classes, self.labels)
        found = self.fitter.fit(given).transform(_scores(people, kind, classes, None))
        shares: Floats = found.probabilities
        return shares[:, 1] if len(classes) == 2 else shares


def _scores(values: Array, kind: str, classes: Sequence[Label], labels: Ints | None) -> Scores:
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
