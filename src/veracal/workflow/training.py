"""The private model that a config describes, with its whole budget."""

from typing import Any

from veracal.accounting import Budget
from veracal.calibration import AUTO, METHODS, NONE, PrivateCalibratedClassifier
from veracal.data import Dataset
from veracal.mechanisms import SGD, Adam
from veracal.training import (
    Hook,
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateEstimator,
    PrivateLogisticRegression,
)
from veracal.workflow.config import PERTURBED, Config
from veracal.workflow.steps import private_network


def private_model(
    config: Config, train: Dataset, budget: Budget, on_step: Hook | None = None
) -> Any:
    """The model to fit, which says what it costs before it sees a record.

    Parameters
    ----------
    config : Config
    train : Dataset
        Of which only what is declared is looked at: classes, size and norm.
    budget : Budget
        Of everything that is learnt from these records.
    on_step : callable, optional
        Called as ``on_step(model, step)`` after each step of a descent. What it makes of
        records is internal.
    """
    public: dict[str, Any] = {
        "classes": train.classes,
        "size": train.size,
        "relation": budget.relation,
        "unit": budget.unit,
    }
    method = config.recalibration.method
    trainer = _trainer(config, train, budget, public, on_step)
    if method == NONE:
        return trainer
    fitter = None if method == AUTO else METHODS[method].unpriced_fitter()
    return PrivateCalibratedClassifier(
        trainer,
        method=fitter,
        epsilon=budget.epsilon,
        delta=budget.delta,
        share=config.recalibration.share,
        **public,
    )


def _trainer(
    config: Config,
    train: Dataset,
    budget: Budget,
    public: dict[str, Any],
    on_step: Hook | None,
) -> PrivateEstimator:
    """The classifier alone."""
    chosen = config.model.settled()
    if chosen.kind not in PERTURBED:
        assert chosen.learning_rate is not None
        kind_of_update = Adam if chosen.optimizer == "adam" else SGD
        descent: dict[str, Any] = {
            "epochs": chosen.epochs,
            "sampling_rate": chosen.sampling_rate,
            "clip": chosen.clip,
            "update": kind_of_update(chosen.learning_rate),
            "weight_decay": chosen.weight_decay,
            "on_step": on_step,
            **public,
        }
        if chosen.kind == "logistic":
            return PrivateLogisticRegression(budget.epsilon, budget.delta, **descent)
        return private_network(chosen, train, budget, descent)
    kind = ObjectivePerturbation if chosen.kind == "objective" else OutputPerturbation
    norm = train.norm if chosen.norm is None else chosen.norm
    return kind(budget.epsilon, C=chosen.strength, norm=norm, **public)
