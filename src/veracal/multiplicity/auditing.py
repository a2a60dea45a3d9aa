"""The fastest engine that runs a model as it is.

An audit of whatever an engine runs again and again.

The audit of a model: trained again and again, how far does it disagree with itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Array, Ints, Progress
from veracal.calibration import MapFitter
from veracal.data import Dataset, Group, Label, cross
from veracal.errors import DataError
from veracal.multiplicity.collecting import (
    CollectionResult,
    Recalibrating,
    RunConsumer,
    collect,
)
from veracal.multiplicity.engines.base import AuditEngine, Kind, Seed, Varied, fingerprint
from veracal.multiplicity.engines.linear import DescentEngine, ObjectiveEngine, OutputEngine
from veracal.multiplicity.engines.retraining import RetrainEngine
from veracal.multiplicity.engines.stored import StoredEngine
from veracal.multiplicity.results import Audit, FeatureGrid, RecalibrationEffect
from veracal.multiplicity.runs import Runs
from veracal.multiplicity.summary import (
    AuditDescription,
    checked_deployed,
    difference_of_means,
    mean_over_people,
    told,
    worst_error,
)
from veracal.training import (
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateLogisticRegression,
    obstacles,
)


def engine_for(
    model: Any,
    train: Dataset,
    X: Array,
    *,
    jobs: int | None = None,
    backend: str | None = None,
    address: str | None = None,
) -> AuditEngine:
    """Choose how a model is run again.

    Parameters
    ----------
    model : estimator, training function or Engine
        An engine is taken as it is. A subclass of one of our estimators may do anything, and
        is trained run by run like other estimators.
    train : Dataset
    X : array of shape (people, d)
    jobs, backend, address
        Of :class:`RetrainEngine`, for models that are trained one by one.

    Examples
    --------
    >>> from veracal.data import load
    >>> data = load("breast-cancer")
    >>> engine_for(PrivateLogisticRegression(), data, data.X).name
    'batched descent'
    """
    if isinstance(model, AuditEngine):
        return model
    if type(model) is OutputPerturbation:
        return OutputEngine(model, train, X)
    if type(model) is ObjectivePerturbation:
        return ObjectiveEngine(model, train, X)
    if type(model) is PrivateLogisticRegression and not obstacles(model, train):
        return DescentEngine(model, train, X)
    if callable(settled := getattr(model, "settled", None)):  # a network: once for all runs
        model = settled(train)
    where: Any = backend  # whether there is such a one is checked with the rest
    return RetrainEngine(model, train, X, jobs=jobs, backend=where, address=address)


MOST = 10_000  # runs of an audit that ends when its intervals are short enough
_HASHES = ("records", "people", "fingerprint")  # names under which engines hash records
Number = int | Literal["auto"]


@dataclass(frozen=True)
class AuditSettings:
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
    engine: AuditEngine,
    people: Dataset | None = None,
    question: AuditSettings | None = None,
    *,
    grid: FeatureGrid | None = None,
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
    asked = AuditSettings() if question is None else question
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
    engine: AuditEngine,
    asked: AuditSettings,
    labels: Ints | None,
    number: int,
    points: int,
    recalibrating: Recalibrating | None,
) -> dict[str, RunConsumer]:
    """Where scores go: people's, those of the points of a plane, people's after a map."""
    k, kind = len(engine.classes), engine.kind
    if kind == "decision" and asked.threshold is not None:
        raise ValueError("Expected no threshold where runs are decisions: they were made.")
    made = Runs(
        number, k, labels=labels, threshold=asked.threshold, levels=asked.accuracy_levels
    )
    sinks = {"people": RunConsumer(made, lambda scores: (scores[:, :number], kind))}
    if points:
        plane = Runs(points, k, threshold=asked.threshold, blocks=2)
        upto = number + points
        sinks["grid"] = RunConsumer(plane, lambda scores: (scores[:, number:upto], kind))
    if recalibrating is not None:
        after = Runs(number, k, labels=labels, threshold=asked.threshold)
        sinks["after"] = RunConsumer(after, recalibrating.view(number, kind, engine.classes))
    return sinks


def _enough(runs: Runs, asked: AuditSettings) -> Any:
    """About how many runs everybody's interval takes to be short enough."""

    def needed() -> int:
        worst = worst_error(runs, asked.level)
        if worst <= asked.error:
            return runs.runs
        return max(runs.runs + 1, math.ceil(runs.runs * (worst / asked.error) ** 2))

    return needed


def _asked(
    engine: AuditEngine, asked: AuditSettings, done: CollectionResult, runs: Runs
) -> AuditDescription:
    """What an audit is of, and how it ended."""
    auto = asked.runs == "auto"
    return AuditDescription(
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
    asked: AuditSettings, labels: Ints | None, recalibrating: Recalibrating | None
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


def _recalibrated(
    sinks: Mapping[str, RunConsumer], method: str, level: float
) -> RecalibrationEffect:
    """Disagreement before and after a map, of the same runs."""
    before, after = sinks["people"].runs, sinks["after"].runs
    return RecalibrationEffect(
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


def audit(
    model: Any,
    train: Dataset,
    people: Dataset,
    *,
    runs: Number = "auto",
    error: float = 0.1,
    most: int = MOST,
    level: float = 0.95,
    threshold: float | None = None,
    groups: Sequence[str] = (),
    accuracy_levels: Sequence[float] = (),
    review_above: float = 0.5,
    deployed: Any = None,
    plane: tuple[str, str] | None = None,
    recalibrate: MapFitter | None = None,
    calibration: Dataset | None = None,
    varied: Varied = "all",
    jobs: int | None = None,
    backend: str | None = None,
    address: str | None = None,
    keep: str | Path | None = None,
    random_state: int | None = None,
    on_progress: Progress | None = None,
) -> Audit:
    r"""Tell how arbitrary the decisions of a training are, for each person and each group.

    The same training is run m times on the same records, with nothing but the noise drawn
    anew (or the batches and the start, too). With :math:`\hat p` the share of runs that decide
    for a class, a person's disagreement is :math:`4\,\tfrac{m}{m-1}\,\hat p(1-\hat p)`: 0 if
    all runs agree, about 1 if they might as well toss a coin (Kulynych et al. 2023,
    https://arxiv.org/abs/2302.14517); with K classes
    :math:`\tfrac{K}{K-1}\tfrac{m}{m-1}(1-\sum\hat p_c^2)`.

    Parameters
    ----------
    model : estimator, training function or Engine
        Not fitted. Output perturbation is noised again, objective perturbation and descents
        of linear models run many at a time, anything else is trained again run by run.
    train : Dataset
        Records that every run is trained on.
    people : Dataset
        Whose decisions are audited.
    runs : int or "auto"
        A number that is fixed beforehand, or as many as it takes until everybody's
        disagreement is within ``error`` of its estimate, at most ``most``. The intervals of
        "auto" are wider for the same number of runs: they hold whenever one stops.
    error, most, level : float, int, float
    threshold : float, optional
        Of two classes, the second is decided for above it; by default 0.5.
    groups : sequence of str
        Attributes of ``people``, or intersections: ``"age & sex"``.
    accuracy_levels : sequence of float
        Tell disagreement among the runs that are at least so accurate.
    review_above : float
        Disagreement above which a person is on the list for review.
    deployed : array of ints, or a fitted model, optional
        The model in use, or its decisions as numbers of classes: how many runs contradict it.
    plane : pair of str, optional
        Names of two features, for a map.
    recalibrate : MapFitter, optional
        A map that every run is repaired by, to see whether that changes disagreement.
    calibration : Dataset, optional
        Whom maps are fitted on.
    varied : {"noise", "noise and batches", "all"}
        What differs between runs.
    jobs : int, optional
        Runs at a time, where models are trained one by one; by default one for each core.
    backend : {"loky", "ray", "dask"}, optional
        Of joblib, likewise.
    address : str, optional
        Of a cluster of Ray or Dask, likewise.
    keep : path, optional
        A file where results are kept as they arrive. If it exists, the audit goes on where
        it broke off.
    random_state : int, optional
        For an audit that can be repeated.
    on_progress : callable, optional

    Returns
    -------
    Audit

    Guarantees
    ----------
    None of privacy: m runs look at the records m times, and what they tell of a person may
    depend on any training record. The result is *internal*. The guarantee of the audited
    model is untouched, because nothing here is released with it.

    Examples
    --------
    >>> from veracal.data import load, split
    >>> from veracal.training import OutputPerturbation
    >>> parts = split(load("breast-cancer"), key="example")
    >>> model = OutputPerturbation(2.0, norm=2.0, C=0.1)
    >>> found = audit(model, parts.train, parts.test, runs=200, random_state=0)
    >>> found.runs, 0 < found.mean.value < 1
    (200, True)
    """
    grid = None if plane is None else _grid(people, plane)
    repaired = _recalibrating(recalibrate, calibration)
    rows = [people.X] if grid is None else [people.X, grid.rows]
    if calibration is not None and repaired is not None:
        rows.append(calibration.X)
    X = np.concatenate([np.asarray(part, dtype=people.X.dtype) for part in rows])
    engine = engine_for(model, train, X, jobs=jobs, backend=backend, address=address)
    asked = AuditSettings(
        runs,
        error,
        most,
        level,
        threshold,
        tuple(groups),
        tuple(accuracy_levels),
        review_above,
        varied,
    )
    return audit_engine(
        engine,
        people,
        asked,
        grid=grid,
        recalibrating=repaired,
        deployed=_decided(deployed, people, engine.classes),
        keep=keep,
        random_state=random_state,
        on_progress=on_progress,
    )


def audit_predictions(
    values: ArrayLike,
    *,
    kind: Kind | None = None,
    classes: Sequence[Label] | None = None,
    labels: ArrayLike | None = None,
    groups: dict[str, Group] | None = None,
    deployed: Array | None = None,
    level: float = 0.95,
    threshold: float | None = None,
    accuracy_levels: Sequence[float] = (),
    review_above: float = 0.5,
) -> Audit:
    """Audit runs that anybody made, from what they said.

    Parameters
    ----------
    values : array of shape (m, people) or (m, people, k)
        Decisions as numbers of classes, or scores.
    kind : {"decision", "probability", "logit"}, optional
        By default decisions where the type is of whole numbers, else probabilities.
    classes : sequence of str or int, optional
    labels : array of ints, optional
        Right answers, as numbers of classes.
    groups : mapping of str to Group, optional
    deployed, level, threshold, accuracy_levels, review_above
        As of :func:`audit`.

    Examples
    --------
    >>> found = audit_predictions([[0, 1, 1], [0, 1, 0], [0, 1, 1], [0, 1, 0]])
    >>> found.persons.disagreement.round(2)
    array([0.  , 0.  , 1.33])
    """
    engine = StoredEngine(np.asarray(values), classes, kind)
    known = dict(groups or {})
    people = None
    if labels is not None or known:
        people = _people(engine, labels, known)
    asked = AuditSettings(
        engine.runs,
        level=level,
        threshold=threshold,
        groups=tuple(known),
        accuracy_levels=tuple(accuracy_levels),
        review_above=review_above,
    )
    return audit_engine(engine, people, asked, deployed=deployed, labeled=labels is not None)


def _people(
    engine: StoredEngine, labels: ArrayLike | None, groups: dict[str, Group]
) -> Dataset:
    """People of whom right answers and groups are known, and nothing else."""
    codes = np.zeros(engine.people, dtype=np.int64) if labels is None else np.asarray(labels)
    return Dataset(np.zeros((engine.people, 1)), codes, engine.classes, groups)


def _grid(people: Dataset, plane: tuple[str, str]) -> FeatureGrid:
    """Points of a plane over where people are."""
    X = np.asarray(people.X)
    names = people.feature_names or tuple(map(str, range(X.shape[1])))
    return FeatureGrid.over(X, names, plane)


def _recalibrating(
    fitter: MapFitter | None, calibration: Dataset | None
) -> Recalibrating | None:
    """How runs are repaired, if they are."""
    if (fitter is None) != (calibration is None):
        raise ValueError("Expected recalibrate and calibration together, got one of them.")
    if fitter is None or calibration is None:
        return None
    return Recalibrating(fitter, calibration.y)


def _decided(deployed: Any, people: Dataset, classes: Sequence[Label]) -> Array | None:
    """Decisions of the model in use, as numbers of classes."""
    if deployed is None or not hasattr(deployed, "predict"):
        return None if deployed is None else np.asarray(deployed)
    place = {label: at for at, label in enumerate(classes)}
    said = deployed.predict(np.asarray(people.X)).tolist()
    strange = sorted({str(label) for label in said if label not in place})
    if strange:
        raise DataError(
            "deployed",
            f"decisions for {list(classes)}"[:200],
            ", ".join(strange)[:100],
            "Give a model of the same classes.",
        )
    return np.array([place[label] for label in said])
