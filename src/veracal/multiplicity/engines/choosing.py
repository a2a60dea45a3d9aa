"""The fastest engine that runs a model as it is."""

from typing import Any

from veracal._types import Array
from veracal.data import Dataset
from veracal.multiplicity.engines.base import Engine
from veracal.multiplicity.engines.descents import DescentEngine
from veracal.multiplicity.engines.perturbed import ObjectiveEngine, OutputEngine
from veracal.multiplicity.engines.retraining import RetrainEngine
from veracal.training import (
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateLogisticRegression,
)
from veracal.training.many_descents import obstacles


def engine_for(
    model: Any,
    train: Dataset,
    X: Array,
    *,
    jobs: int | None = None,
    backend: str | None = None,
    address: str | None = None,
) -> Engine:
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
    if isinstance(model, Engine):
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
