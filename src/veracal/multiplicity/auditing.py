"""The audit of a training: which engine repeats it, what is measured, and the result."""

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
from veracal.multiplicity.collecting import PerRunRecalibration, RunConsumer, collect
from veracal.multiplicity.engines.base import (
    AuditEngine,
    Kind,
    Seed,
    StoredEngine,
    Varied,
    fingerprint,
)
from veracal.multiplicity.engines.linear import DPSGDEngine, ObjectiveEngine, OutputEngine
from veracal.multiplicity.engines.retraining import RetrainEngine
from veracal.multiplicity.results import Audit, FeatureGrid, RecalibrationEffect
from veracal.multiplicity.runs import Runs, validate_codes
from veracal.multiplicity.summary import (
    AuditDescription,
    difference_of_means,
    mean_over_individuals,
    summarize,
    worst_error,
)
from veracal.training import (
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateLogisticRegression,
    unsupported_settings,
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
    """Choose the engine that repeats the training of a model.

    Parameters
    ----------
    model : estimator, training function or AuditEngine
        An engine is returned unchanged. A subclass of a Veracal estimator may override
        anything, and is retrained run by run, like any other estimator.
    train : Dataset
    X : array of shape (individuals, d)
    jobs, backend, address
        Of :class:`RetrainEngine`, for models that are trained one by one.

    Examples
    --------
    >>> from veracal.data import load
    >>> data = load("breast-cancer")
    >>> engine_for(PrivateLogisticRegression(), data, data.X).name
    'batched DP-SGD'
    """
    if isinstance(model, AuditEngine):
        return model
    if type(model) is OutputPerturbation:
        return OutputEngine(model, train, X)
    if type(model) is ObjectivePerturbation:
        return ObjectiveEngine(model, train, X)
    if type(model) is PrivateLogisticRegression and not unsupported_settings(model, train):
        return DPSGDEngine(model, train, X)
    if callable(prepare := getattr(model, "resolve_settings", None)):
        model = prepare(train)  # a network is prepared once for all runs
    joblib_backend: Any = backend  # checked by the engine
    return RetrainEngine(model, train, X, jobs=jobs, backend=joblib_backend, address=address)


MAX_RUNS = 10_000  # runs of an audit that ends when its intervals are short enough
_HASHES = ("records", "individuals", "fingerprint")  # settings of engines that hash records
RunCount = int | Literal["auto"]


@dataclass(frozen=True)
class AuditSettings:
    """What an audit measures, apart from the training that it repeats.

    Attributes
    ----------
    runs : int or "auto"
        A number of runs fixed in advance; or as many as ``error`` requires, at most
        ``max_runs``.
    error : float in (0, 1)
        With "auto": largest allowed error of any individual's disagreement.
    max_runs : int
        With "auto".
    level : float in (0, 1)
        Confidence level of the intervals.
    threshold : float, optional
        Of two classes, the second is predicted above it. By default 0.5.
    groups : sequence of str
        Attributes by which results are broken down: ``"age"``, or several, ``"age & sex"``.
    accuracy_levels : sequence of float
        Also report disagreement among the runs whose accuracy is at least each of these.
    review_above : float in [0, 1]
        Disagreement above which a decision should be reviewed.
    varied : {"noise", "noise and batches", "all"}
        What differs between runs.
    """

    runs: RunCount = "auto"
    error: float = 0.1
    max_runs: int = MAX_RUNS
    level: float = 0.95
    threshold: float | None = None
    groups: Sequence[str] = ()
    accuracy_levels: Sequence[float] = ()
    review_above: float = 0.5
    varied: Varied = "all"

    def __post_init__(self) -> None:
        _checks.whole(least=2, max_runs=self.max_runs)
        if self.runs != "auto":
            _checks.whole(least=2, runs=self.runs)
        _checks.open_fraction(error=self.error, level=self.level)
        _checks.fraction(review_above=self.review_above)
        if isinstance(self.groups, str):
            raise ValueError(f"Expected a list of groups, got one string: [{self.groups!r}]?")

    @property
    def run_limit(self) -> int:
        """Largest possible number of runs."""
        return self.max_runs if self.runs == "auto" else int(self.runs)


def audit_engine(
    engine: AuditEngine,
    individuals: Dataset | None = None,
    settings: AuditSettings | None = None,
    *,
    grid: FeatureGrid | None = None,
    recalibration: PerRunRecalibration | None = None,
    deployed: Array | None = None,
    labeled: bool = True,
    keep: str | Path | None = None,
    random_state: int | None = None,
    on_progress: Progress | None = None,
) -> Audit:
    """Audit the runs of an engine; the entry point for custom engines.

    Parameters
    ----------
    engine : AuditEngine
        Scores ``individuals``, then the points of ``grid``, then the calibration records of
        ``recalibration``.
    individuals : Dataset, optional
        With labels and groups. None: the rows that the engine scores, without either.
    settings : AuditSettings, optional
    grid : FeatureGrid, optional
        Points of a plane of two features, for a map of disagreement.
    recalibration : PerRunRecalibration, optional
    deployed : array of ints of shape (individuals,), optional
        Decisions of the deployed model.
    labeled : bool
        Whether the labels of ``individuals`` are known.
    keep : path, optional
        As for :func:`~.collecting.collect`.
    random_state : int, optional
        Makes an audit repeatable. None: fresh entropy.
    on_progress : callable, optional
    """
    settings = AuditSettings() if settings is None else settings
    points = 0 if grid is None else len(grid.rows)
    calibration = 0 if recalibration is None else recalibration.count
    count = engine.individuals - points - calibration
    labels = None if individuals is None else _label_codes(individuals, engine.classes, count)
    labels = labels if labeled else None
    groups = _select_groups(individuals, settings.groups)
    if deployed is not None:
        deployed = validate_codes("deployed", deployed, count, len(engine.classes))
    consumers = _make_consumers(engine, settings, labels, count, points, recalibration)
    runs, auto, level = consumers["individuals"].runs, settings.runs == "auto", settings.level

    def runs_needed() -> int:
        """Estimate how many runs make every individual's interval short enough."""
        worst = worst_error(runs, level)
        if worst <= settings.error:
            return runs.runs
        return max(runs.runs + 1, math.ceil(runs.runs * (worst / settings.error) ** 2))

    collection = collect(
        engine,
        consumers,
        settings.run_limit,
        random_state=random_state,
        seed=Seed.from_random_state(random_state, settings.varied),
        keep=keep,
        identity={
            "threshold": 0.5 if settings.threshold is None else settings.threshold,
            "accuracy_levels": list(settings.accuracy_levels),
            "labels": None if labels is None else fingerprint(labels),
            "recalibration": None
            if recalibration is None
            else [recalibration.method, fingerprint(recalibration.labels)],
        },
        stopping_rule=runs_needed if auto else None,
        on_progress=on_progress,
    )
    effect = None
    if recalibration is not None:
        after = consumers["after"].runs
        effect = RecalibrationEffect(
            recalibration.method,
            mean_over_individuals(runs, level=level),
            mean_over_individuals(after, level=level),
            difference_of_means(runs, after, level=level),
            float(runs.score_deviation.max(axis=1).mean()),
            float(after.score_deviation.max(axis=1).mean()),
        )
    shareable = _shareable(engine.settings())
    return summarize(
        runs,
        AuditDescription(
            engine_settings={"engine": engine.name, "varied": settings.varied, **shareable},
            classes=engine.classes,
            resumed=collection.resumed,
            anytime_valid=not collection.fixed,
            error=settings.error if auto else None,
            error_reached=not auto or worst_error(runs, level) <= settings.error,
            level=level,
            review_above=settings.review_above,
        ),
        groups=groups,
        deployed=deployed,
        plane=None if grid is None else grid.summarize(consumers["grid"].runs),
        recalibrated=effect,
    )


def _shareable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the hashes of records, which would let a reader confirm guesses about them.

    Only the checkpoint of an interrupted audit contains the hashes.
    """
    return {name: value for name, value in settings.items() if name not in _HASHES}


def _make_consumers(
    engine: AuditEngine,
    settings: AuditSettings,
    labels: Ints | None,
    count: int,
    points: int,
    recalibration: PerRunRecalibration | None,
) -> dict[str, RunConsumer]:
    """Create the consumers of scores: individuals, plane, and individuals after a map."""
    k, kind = len(engine.classes), engine.kind
    if kind == "decision" and settings.threshold is not None:
        raise ValueError("Expected no threshold: the runs are decisions already.")
    individual_runs = Runs(
        count, k, labels=labels, threshold=settings.threshold, levels=settings.accuracy_levels
    )
    consumers = {
        "individuals": RunConsumer(individual_runs, lambda scores: (scores[:, :count], kind))
    }
    if points:
        plane = Runs(points, k, threshold=settings.threshold, blocks=2)
        upto = count + points
        consumers["grid"] = RunConsumer(plane, lambda scores: (scores[:, count:upto], kind))
    if recalibration is not None:
        after = Runs(count, k, labels=labels, threshold=settings.threshold)
        consumers["after"] = RunConsumer(after, recalibration.view(count, kind, engine.classes))
    return consumers


def _label_codes(individuals: Dataset, classes: Sequence[Label], count: int) -> Ints:
    """Labels as class indices in the engine's order of classes."""
    if len(individuals) != count or set(individuals.classes) != set(classes):
        raise DataError(
            individuals.name,
            f"{count} individuals with classes {list(classes)}",
            f"{len(individuals)} with {list(individuals.classes)}"[:200],
            "Give the individuals that the engine scores, with the classes of training.",
        )
    index = {label: position for position, label in enumerate(classes)}
    codes: Ints = np.array([index[label] for label in individuals.classes])[individuals.y]
    return codes


def _select_groups(individuals: Dataset | None, names: Sequence[str]) -> dict[str, Group]:
    """Look up the requested attributes, and build their intersections."""
    known: Mapping[str, Group] = {} if individuals is None else individuals.groups
    groups = {}
    for name in names:
        parts = [part.strip() for part in name.split("&")]
        unknown = [part for part in parts if part not in known]
        if unknown:
            raise DataError(
                "groups",
                f"declared groups: {', '.join(known) or 'none'}",
                ", ".join(map(repr, unknown)),
                "Declare it as a group in the schema, or choose another attribute.",
            )
        groups[name] = cross(*[known[part] for part in parts])
    return groups


def audit(
    model: Any,
    train: Dataset,
    individuals: Dataset,
    *,
    runs: RunCount = "auto",
    error: float = 0.1,
    max_runs: int = MAX_RUNS,
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
    r"""Measure how arbitrary the decisions of a training are, per individual and per group.

    The same training is run m times on the same records, with fresh noise in each run (and, by
    default, fresh batches and initialization). With :math:`\hat p` the share of runs that
    predict a class, the disagreement of an individual is
    :math:`4\,\tfrac{m}{m-1}\,\hat p(1-\hat p)`: 0 if all runs agree, about 1 if the decision is
    as good as a coin toss (Kulynych et al. 2023, https://arxiv.org/abs/2302.14517); with K
    classes
    :math:`\tfrac{K}{K-1}\tfrac{m}{m-1}(1-\sum\hat p_c^2)`.

    Parameters
    ----------
    model : estimator, training function or AuditEngine
        Not fitted. Output perturbation only redraws its noise; objective perturbation and
        DP-SGD of linear models train many runs at a time; anything else is retrained run by
        run.
    train : Dataset
        Records that every run is trained on.
    individuals : Dataset
        Individuals whose decisions are audited.
    runs : int or "auto"
        A number of runs fixed in advance, or as many as it takes until every individual's
        disagreement is within ``error`` of its estimate, at most ``max_runs``. The intervals of
        "auto" are wider for the same number of runs, because they are valid at any stopping
        time.
    error, max_runs, level : float, int, float
    threshold : float, optional
        Of two classes, the second is predicted above it; by default 0.5.
    groups : sequence of str
        Attributes of ``individuals``, or intersections: ``"age & sex"``.
    accuracy_levels : sequence of float
        Also report disagreement among the runs that reach each accuracy.
    review_above : float
        Disagreement above which a decision is listed for review.
    deployed : array of ints, or a fitted model, optional
        The deployed model, or its decisions as class indices: measures how many runs contradict
        it.
    plane : pair of str, optional
        Names of two features, for a map of disagreement.
    recalibrate : MapFitter, optional
        Fits a calibration map to every run, to measure whether recalibration changes
        disagreement.
    calibration : Dataset, optional
        Records that the maps are fitted on.
    varied : {"noise", "noise and batches", "all"}
        What differs between runs.
    jobs : int, optional
        Concurrent runs, where models are trained one by one; by default one for each core.
    backend : {"loky", "ray", "dask"}, optional
        The joblib backend of these runs.
    address : str, optional
        Address of a Ray or Dask cluster.
    keep : path, optional
        Checkpoint file. Results are saved there as they arrive; if it exists, the audit
        resumes.
    random_state : int, optional
        Makes an audit repeatable.
    on_progress : callable, optional

    Returns
    -------
    Audit

    Guarantees
    ----------
    None of privacy: m runs read the records m times, and the result for one individual may
    depend on any training record. The result is *internal*. The guarantee of the audited model
    is unchanged, because nothing is released here.

    Examples
    --------
    >>> from veracal.data import load, split
    >>> from veracal.training import OutputPerturbation
    >>> parts = split(load("breast-cancer"), key="example")
    >>> model = OutputPerturbation(2.0, norm=2.0, C=0.1)
    >>> result = audit(model, parts.train, parts.test, runs=200, random_state=0)
    >>> result.runs, 0 < result.mean.value < 1
    (200, True)
    """
    grid = None
    if plane is not None:
        values = np.asarray(individuals.X)
        names = individuals.feature_names or tuple(map(str, range(values.shape[1])))
        grid = FeatureGrid.over(values, names, plane)
    if (recalibrate is None) != (calibration is None):
        raise ValueError(
            "Expected both recalibrate and calibration, or neither; got one of them."
        )
    rows = [individuals.X] if grid is None else [individuals.X, grid.rows]
    recalibration = None
    if recalibrate is not None and calibration is not None:
        recalibration = PerRunRecalibration(recalibrate, calibration.y)
        rows.append(calibration.X)
    X = np.concatenate([np.asarray(part, dtype=individuals.X.dtype) for part in rows])
    engine = engine_for(model, train, X, jobs=jobs, backend=backend, address=address)
    settings = AuditSettings(
        runs,
        error,
        max_runs,
        level,
        threshold,
        tuple(groups),
        tuple(accuracy_levels),
        review_above,
        varied,
    )
    return audit_engine(
        engine,
        individuals,
        settings,
        grid=grid,
        recalibration=recalibration,
        deployed=_deployed_decisions(deployed, individuals, engine.classes),
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
    """Audit runs that were made elsewhere, from their predictions.

    Parameters
    ----------
    values : array of shape (m, individuals) or (m, individuals, k)
        Decisions as class indices, or scores.
    kind : {"decision", "probability", "logit"}, optional
        By default decisions for an integer type, else probabilities.
    classes : sequence of str or int, optional
    labels : array of ints, optional
        Labels as class indices.
    groups : mapping of str to Group, optional
    deployed, level, threshold, accuracy_levels, review_above
        As for :func:`audit`.

    Examples
    --------
    >>> result = audit_predictions([[0, 1, 1], [0, 1, 0], [0, 1, 1], [0, 1, 0]])
    >>> result.individuals.disagreement.round(2)
    array([0.  , 0.  , 1.33])
    """
    engine = StoredEngine(np.asarray(values), classes, kind)
    known = dict(groups or {})
    individuals = None
    if labels is not None or known:
        codes = np.zeros(engine.individuals, np.int64) if labels is None else np.asarray(labels)
        individuals = Dataset(np.zeros((len(codes), 1)), codes, engine.classes, known)
    settings = AuditSettings(
        engine.runs,
        level=level,
        threshold=threshold,
        groups=tuple(known),
        accuracy_levels=tuple(accuracy_levels),
        review_above=review_above,
    )
    return audit_engine(
        engine, individuals, settings, deployed=deployed, labeled=labels is not None
    )


def _deployed_decisions(
    deployed: Any, individuals: Dataset, classes: Sequence[Label]
) -> Array | None:
    """Decisions of the deployed model as class indices."""
    if deployed is None or not hasattr(deployed, "predict"):
        return None if deployed is None else np.asarray(deployed)
    index = {label: position for position, label in enumerate(classes)}
    decisions = deployed.predict(np.asarray(individuals.X)).tolist()
    unknown = sorted({str(label) for label in decisions if label not in index})
    if unknown:
        raise DataError(
            "deployed",
            f"decisions for {list(classes)}"[:200],
            ", ".join(unknown)[:100],
            "Give a model with the same classes.",
        )
    return np.array([index[label] for label in decisions])
