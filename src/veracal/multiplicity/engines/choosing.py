"""The fastest engine that runs a model as it is."""

from typing import Any

from veracal._types import Array
from veracal.data import Dataset
from veracal.multiplicity.engines.base import Engine
from veracal.multiplicity.engines.perturbed import ObjectiveEngine, OutputEngine
from veracal.training import ObjectivePerturbation, OutputPerturbation


def engine_for(
    model: Any, train: Dataset, X: Array, *, jobs: int = 1, backend: str | None = None
) -> Engine:
    """Choose how a model is run again.

    Parameters
    ----------
    model : estimator, training function or Engine
        An engine is taken as it is.
    train : Dataset
    X : array of shape (people, d)
    jobs, backend
        Of models that are trained one by one.
    """
    if isinstance(model, Engine):
        return model
    if type(model) is OutputPerturbation:
        return OutputEngine(model, train, X)
    if type(model) is ObjectivePerturbation:
        return ObjectiveEngine(model, train, X)
    raise NotImplementedError
