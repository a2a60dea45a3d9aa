"""The audit of a model: trained again and again, how far does it disagree with itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Progress
from veracal.calibration.fitters import MapFitter
from veracal.data import Dataset, Group
from veracal.data.labels import Label
from veracal.errors import DataError
from veracal.multiplicity.auditing import MOST, Number, Question, audit_engine
from veracal.multiplicity.engines.base import Kind
from veracal.multiplicity.engines.choosing import engine_for
from veracal.multiplicity.engines.stored import StoredEngine
from veracal.multiplicity.engines.streams import Varied
from veracal.multiplicity.plane import Grid
from veracal.multiplicity.recalibrating import Recalibrating
from veracal.multiplicity.results import Audit


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
    asked = Question(
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
    asked = Question(
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


def _grid(people: Dataset, plane: tuple[str, str]) -> Grid:
    """Points of a plane over where people are."""
    X = np.asarray(people.X)
    names = people.feature_names or tuple(map(str, range(X.shape[1])))
    return Grid.over(X, names, plane)


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
