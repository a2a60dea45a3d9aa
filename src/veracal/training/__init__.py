"""Private classifiers of tables and features, with costs known before the fit."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.training.arbitrariness import (
        Arbitrariness,
        informative,
        objective_certificate,
        spare_of,
        whom,
    )
    from veracal.training.base import (
        LinearClassifier,
        PrivateEstimator,
        TrainingData,
        apart_logits,
        check_numbers,
        check_size,
        margins,
        not_covered,
        remember,
    )
    from veracal.training.batched import (
        BatchedFits,
        bytes_of_model,
        descend,
        fits_of,
        normals,
        obstacles,
        own_batches,
        shared_batches,
    )
    from veracal.training.batched_newton import BatchedProblem
    from veracal.training.dp_sgd import (
        Ablation,
        Average,
        DescentClassifier,
        ExponentialAverage,
        TrainingSpec,
        Watch,
    )
    from veracal.training.logistic import Hook, PrivateLogisticRegression
    from veracal.training.newton import RESIDUAL, minimize
    from veracal.training.objective_perturbation import ObjectivePerturbation
    from veracal.training.output_perturbation import OutputPerturbation, spherical_gamma
    from veracal.training.perturbation import PerturbedClassifier
    from veracal.training.pipeline import PrivatePipeline, make_private_pipeline
    from veracal.training.pipeline_steps import event_of
    from veracal.training.preprocessing import (
        BoundedScaler,
        DeclaredOneHot,
        NormClipper,
        float_type,
    )
    from veracal.training.search import PrivateSearch
    from veracal.training.standardizer import MomentTransformer, PrivateStandardizer
    from veracal.training.weight_noise import (
        GammaNoise,
        GaussianNoise,
        Noise,
        gaussian_disagreement,
        output_arbitrariness,
    )

__all__ = [
    "RESIDUAL",
    "Ablation",
    "Arbitrariness",
    "Average",
    "BatchedFits",
    "BatchedProblem",
    "BoundedScaler",
    "DeclaredOneHot",
    "DescentClassifier",
    "ExponentialAverage",
    "GammaNoise",
    "GaussianNoise",
    "Hook",
    "LinearClassifier",
    "MomentTransformer",
    "Noise",
    "NormClipper",
    "ObjectivePerturbation",
    "OutputPerturbation",
    "PerturbedClassifier",
    "PrivateEstimator",
    "PrivateLogisticRegression",
    "PrivatePipeline",
    "PrivateSearch",
    "PrivateStandardizer",
    "TrainingData",
    "TrainingSpec",
    "Watch",
    "apart_logits",
    "bytes_of_model",
    "check_numbers",
    "check_size",
    "descend",
    "event_of",
    "fits_of",
    "float_type",
    "gaussian_disagreement",
    "informative",
    "make_private_pipeline",
    "margins",
    "minimize",
    "normals",
    "not_covered",
    "objective_certificate",
    "obstacles",
    "output_arbitrariness",
    "own_batches",
    "remember",
    "shared_batches",
    "spare_of",
    "spherical_gamma",
    "whom",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "arbitrariness": (
            "Arbitrariness",
            "informative",
            "objective_certificate",
            "spare_of",
            "whom",
        ),
        "base": (
            "TrainingData",
            "LinearClassifier",
            "PrivateEstimator",
            "apart_logits",
            "check_numbers",
            "check_size",
            "margins",
            "not_covered",
            "remember",
        ),
        "batched": (
            "BatchedFits",
            "bytes_of_model",
            "descend",
            "fits_of",
            "normals",
            "obstacles",
            "own_batches",
            "shared_batches",
        ),
        "batched_newton": ("BatchedProblem",),
        "dp_sgd": (
            "Ablation",
            "Average",
            "DescentClassifier",
            "TrainingSpec",
            "ExponentialAverage",
            "Watch",
        ),
        "logistic": (
            "Hook",
            "PrivateLogisticRegression",
        ),
        "newton": (
            "RESIDUAL",
            "minimize",
        ),
        "objective_perturbation": ("ObjectivePerturbation",),
        "output_perturbation": (
            "OutputPerturbation",
            "spherical_gamma",
        ),
        "perturbation": ("PerturbedClassifier",),
        "pipeline": (
            "PrivatePipeline",
            "make_private_pipeline",
        ),
        "pipeline_steps": ("event_of",),
        "preprocessing": (
            "BoundedScaler",
            "DeclaredOneHot",
            "NormClipper",
            "float_type",
        ),
        "search": ("PrivateSearch",),
        "standardizer": (
            "MomentTransformer",
            "PrivateStandardizer",
        ),
        "weight_noise": (
            "GammaNoise",
            "GaussianNoise",
            "Noise",
            "gaussian_disagreement",
            "output_arbitrariness",
        ),
    },
)
