"""An audit of whatever an engine runs again and again."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from veracal import _checks
from veracal._types import Array, Ints, Progress
from veracal.data import Dataset, Group, cross
from veracal.data.labels import Label
from veracal.errors import DataError
from veracal.multiplicity.collecting import Collected, Sink, collect
from veracal.multiplicity.engines.base import Engine, fingerprint
from veracal.multiplicity.engines.streams import Seed, Varied
from veracal.multiplicity.means import difference_of_means, mean_over_people
from veracal.multiplicity.plane import Grid
from veracal.multiplicity.recalibrating import Recalibrating
from veracal.multiplicity.results import Audit, Recalibrated
from veracal.multiplicity.runs import Runs
from veracal.multiplicity.telling import Asked, checked_deployed, told, worst_error

MOST = 10_000  # runs of an audit that ends when its intervals are short enough
_HASHES = ("records", "people", "fingerprint")  # names under which engines hash records
Number = int | Literal["auto"]


@dataclass(frozen=True)
class Question:
    """What is asked of an audit, beside what is run.

    Attributes
    ----------
    runs : int or "auto"
        A number fixed beforehand; or as many as it takes for ``error``, at most ``most``.
    error : float in (0, 1)
        With "auto": how far anybody's disagreement may be from its estimate.
    most : int
        With "auto".
    level : float in (0, 1)
        Of intervals.
    threshold : float, optional
        Of two classes; by default 0.5.
    groups : sequence of str
        Attributes by which people are told apart, ``"age"``, or several, ``"age & sex"``.
    accuracy_levels : sequence of float
        Disagreement among the runs that reach them.
    review_above : float in [0, 1]
        Disagreement above which a person's decision should be reviewed.
    varied : {"noise", "noise and batches", "all"}
        What differs between runs.
    """

    runs: Number = "auto"
    error: float = 0.1
    most: int = MOST
    level: float = 0.95
    threshold: float | None = None
    groups: Sequence[str] = ()
    accuracy_levels: Sequence[float] = ()
    review_above: float = 0.5
    varied: Varied = "all"

    def __post_init__(self) -> None:
        _checks.whole(least=2, most=self.most)
        if self.runs != "auto":
            _checks.whole(least=2, runs=self.runs)
        for name in ("error", "level"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(
                    f"Expected {name} between 0 and 1, got {getattr(self, name)!r}."
                )
        _checks.fraction(review_above=self.review_above)
        if isinstance(self.groups, str):
            raise ValueError(f"Expected a list of groups, got one word: [{self.groups!r}]?")

    @property
    def number(self) -> int:
        """Of runs, at most."""
        return self.most if self.runs == "auto" else int(self.runs)


def audit_engine(
    engine: Engine,
    people: Dataset | None = None,
    question: Question | None = None,
    *,
    grid: Grid | None = None,
    recalibrating: Recalibrating | None = None,
    deployed: Array | None = None,
    labeled: bool = True,
    keep: str | Path | None = None,
    random_state: int | None = None,
    on_progress: Progress | None = None,
) -> Audit:
    """Audit whatever an engine runs, for engines of your own.

    Parameters
    ----------
    engine : Engine
        That scores ``people``, then the points of ``grid``, then whom ``recalibrating`` fits
        on.
    people : Dataset, optional
        With right answers and groups. None: everybody whom the engine scores, of whom nothing
        else is known.
    question : Question, optional
    grid : Grid, optional
        Points of a plane, for a map.
    recalibrating : Recalibrating, optional
    deployed : array of ints of shape (people,), optional
        Decisions of the model in use.
    labeled : bool
        Whether right answers of people are known.
    keep : path, optional
        As of :func:`~.collecting.collect`.
    random_state : int, optional
        For an audit that can be repeated. None: fresh entropy.
    on_progress : callable, optional
    """
    asked = Question() if question is None else question
    points = 0 if grid is None else len(grid.rows)
    others = 0 if recalibrating is None else recalibrating.people
    number = engine.people - points - others
    labels = None if people is None else _labels(people, engine.classes, number)
    labels = labels if labeled else None
    groups = _groups(people, asked.groups)
    chosen = None if deployed is None else checked_deployed(deployed, number, engine.classes)
    sinks = _sinks(engine, asked, labels, number, points, recalibrating)
    done = collect(
        engine,
        sinks,
        asked.number,
        random_state=random_state,
        seed=Seed.of(random_state, asked.varied),
        keep=keep,
        about=_about(asked, labels, recalibrating),
        enough=_enough(sinks["people"].runs, asked) if asked.runs == "auto" else None,
        on_progress=on_progress,
    )
    return told(
        sinks["people"].runs,
        _asked(engine, asked, done, sinks["people"].runs),
        groups=groups,
        deployed=chosen,
        plane=None if grid is None else grid.told(sinks["grid"].runs),
        recalibrated=None
        if recalibrating is None
        else _recalibrated(sinks, recalibrating.method, asked.level),
    )


def _sinks(
    engine: Engine,
    asked: Question,
    labels: Ints | None,
    number: int,
    points: int,
    recalibrating: Recalibrating | None,
) -> dict[str, Sink]:
    """Where scores go: people's, those of the points of a plane, people's after a map."""
    k, kind = len(engine.classes), engine.kind
    if kind == "decision" and asked.threshold is not None:
        raise ValueError("Expected no threshold where runs are decisions: they were made.")
    made = Runs(
        number, k, labels=labels, threshold=asked.threshold, levels=asked.accuracy_levels
    )
    sinks = {"people": Sink(made, lambda scores: (scores[:, :number], kind))}
    if points:
        plane = Runs(points, k, threshold=asked.threshold, blocks=2)
        upto = number + points
        sinks["grid"] = Sink(plane, lambda scores: (scores[:, number:upto], kind))
    if recalibrating is not None:
        after = Runs(number, k, labels=labels, threshold=asked.threshold)
        sinks["after"] = Sink(after, recalibrating.view(number, kind, engine.classes))
    return sinks


def _enough(runs: Runs, asked: Question) -> Any:
    """About how many runs everybody's interval takes to be short enough."""

    def needed() -> int:
        worst = worst_error(runs, asked.level)
        if worst <= asked.error:
            return runs.runs
        return max(runs.runs + 1, math.ceil(runs.runs * (worst / asked.error) ** 2))

    return needed


def _asked(engine: Engine, asked: Question, done: Collected, runs: Runs) -> Asked:
    """What an audit is of, and how it ended."""
    auto = asked.runs == "auto"
    return Asked(
        about={"engine": engine.name, "varied": asked.varied, **_shareable(engine.settings())},
        classes=engine.classes,
        resumed=done.resumed,
        lasting=not done.fixed,
        error=asked.error if auto else None,
        reached=not auto or worst_error(runs, asked.level) <= asked.error,
        level=asked.level,
        review_above=asked.review_above,
    )


def _shareable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an engine without hashes of records, which would confirm guesses of them.

    Only the file that an interrupted audit goes on from keeps those.
    """
    return {name: value for name, value in settings.items() if name not in _HASHES}


def _about(
    asked: Question, labels: Ints | None, recalibrating: Recalibrating | None
) -> dict[str, Any]:
    """Settings without which counts of another process mean something else."""
    return {
        "threshold": 0.5 if asked.threshold is None else asked.threshold,
        "accuracy_levels": list(asked.accuracy_levels),
        "labels": None if labels is None else fingerprint(labels),
        "recalibrating": None
        if recalibrating is None
        else [recalibrating.method, fingerprint(recalibrating.labels)],
    }


def _recalibrated(sinks: Mapping[str, Sink], method: str, level: float) -> Recalibrated:
    """Disagreement before and after a map, of the same runs."""
    before, after = sinks["people"].runs, sinks["after"].runs
    return Recalibrated(
        method,
        mean_over_people(before, level=level),
        mean_over_people(after, level=level),
        difference_of_means(before, after, level=level),
        float(before.score_deviation.max(axis=1).mean()),
        float(after.score_deviation.max(axis=1).mean()),
    )


def _labels(people: Dataset, classes: Sequence[Label], number: int) -> Ints:
    """Right answers in the engine's order of classes."""
    if len(people) != number or set(people.classes) != set(classes):
        raise DataError(
            people.name,
            f"{number} people with classes {list(classes)}",
            f"{len(people)} with {list(people.classes)}"[:200],
            "Give the people whom the engine scores, with the classes of training.",
        )
    place = {label: at for at, label in enumerate(classes)}
    codes: Ints = np.array([place[label] for label in people.classes])[people.y]
    return codes


def _groups(people: Dataset | None, names: Sequence[str]) -> dict[str, Group]:
    """Attributes that people are told apart by, and their intersections."""
    known: Mapping[str, Group] = {} if people is None else people.groups
    found = {}
    for name in names:
        parts = [part.strip() for part in name.split("&")]
        strange = [part for part in parts if part not in known]
        if strange:
            raise DataError(
                "groups",
                f"attributes of the people: {', '.join(known) or 'they have none'}",
                ", ".join(map(repr, strange)),
                "Declare it as a group in the schema, or name another.",
            )
        found[name] = cross(*[known[part] for part in parts])
    return found
