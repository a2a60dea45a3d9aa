"""Private classifiers with calibrated probabilities and audited decisions.

The names that most users need are here, and are imported when they are first used. The packages
below have all others.
"""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.accounting import Budget, Unit, epsilon_for, noise_for
    from veracal.artifact import PrivateClassifier
    from veracal.calibration import (
        PrivateCalibratedClassifier,
        measure,
        measure_private,
        plan_recalibration,
        recalibrate,
    )
    from veracal.data import Dataset, Schema, Scores, load, split
    from veracal.ledger import Item, Ledger, open_ledger
    from veracal.multiplicity import audit
    from veracal.neural import PrivateNetwork
    from veracal.queries import Count, Curator, Pool
    from veracal.report import render
    from veracal.training import (
        ObjectivePerturbation,
        OutputPerturbation,
        PrivateLogisticRegression,
        PrivatePipeline,
        PrivateSearch,
        make_private_pipeline,
    )
    from veracal.workflow import Config, run

__version__ = "0.1.0.dev0"

__all__ = [
    "Budget",
    "Config",
    "Count",
    "Curator",
    "Dataset",
    "Item",
    "Ledger",
    "ObjectivePerturbation",
    "OutputPerturbation",
    "Pool",
    "PrivateCalibratedClassifier",
    "PrivateClassifier",
    "PrivateLogisticRegression",
    "PrivateNetwork",
    "PrivatePipeline",
    "PrivateSearch",
    "Schema",
    "Scores",
    "Unit",
    "audit",
    "epsilon_for",
    "load",
    "make_private_pipeline",
    "measure",
    "measure_private",
    "noise_for",
    "open_ledger",
    "plan_recalibration",
    "recalibrate",
    "render",
    "run",
    "split",
]

__getattr__, __dir__ = attach(__name__)
