"""Private classifiers of tables and features, with costs known before the fit."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.training.arbitrariness import (
        Arbitrariness,
        describe_scope,
        failure_probability,
        is_informative,
        objective_certificate,
    )
    from veracal.training.base import (
        LinearClassifier,
        PrivateEstimator,
        TrainingData,
        check_dataset,
        check_size,
        describe_initial_weights,
        margins,
        one_vs_rest_logits,
        record_trained_weights,
    )
    from veracal.training.batched import (
        BatchedFits,
        bytes_per_model,
        independent_batches,
        prepare_fits,
        shared_batches,
        standard_normals,
        train_batched,
        unsupported_settings,
    )
    from veracal.training.batched_newton import BatchedProblem
    from veracal.training.dp_sgd import (
        Ablation,
        Average,
        DPSGDClassifier,
        ExponentialAverage,
        StepCallback,
        TrainingSpec,
    )
    from veracal.training.logistic import PrivateLogisticRegression, StepHook
    from veracal.training.newton import MAX_RESIDUAL, minimize
    from veracal.training.objective_perturbation import ObjectivePerturbation
    from veracal.training.output_perturbation import OutputPerturbation, spherical_gamma
    from veracal.training.perturbation import PerturbedClassifier
    from veracal.training.pipeline import PrivatePipeline, make_private_pipeline
    from veracal.training.pipeline_steps import fit_event
    from veracal.training.preprocessing import (
        BoundedScaler,
        DeclaredOneHot,
        NormClipper,
    )
    from veracal.training.search import PrivateSearch
    from veracal.training.standardizer import PrivateChannelStandardizer, PrivateStandardizer
    from veracal.training.weight_noise import (
        GammaNoise,
        GaussianNoise,
        WeightNoise,
        gaussian_disagreement,
        output_arbitrariness,
    )

__all__ = [
    "MAX_RESIDUAL",
    "Ablation",
    "Arbitrariness",
    "Average",
    "BatchedFits",
    "BatchedProblem",
    "BoundedScaler",
    "DPSGDClassifier",
    "DeclaredOneHot",
    "ExponentialAverage",
    "GammaNoise",
    "GaussianNoise",
    "LinearClassifier",
    "NormClipper",
    "ObjectivePerturbation",
    "OutputPerturbation",
    "PerturbedClassifier",
    "PrivateChannelStandardizer",
    "PrivateEstimator",
    "PrivateLogisticRegression",
    "PrivatePipeline",
    "PrivateSearch",
    "PrivateStandardizer",
    "StepCallback",
    "StepHook",
    "TrainingData",
    "TrainingSpec",
    "WeightNoise",
    "bytes_per_model",
    "check_dataset",
    "check_size",
    "describe_initial_weights",
    "describe_scope",
    "failure_probability",
    "fit_event",
    "gaussian_disagreement",
    "independent_batches",
    "is_informative",
    "make_private_pipeline",
    "margins",
    "minimize",
    "objective_certificate",
    "one_vs_rest_logits",
    "output_arbitrariness",
    "prepare_fits",
    "record_trained_weights",
    "shared_batches",
    "spherical_gamma",
    "standard_normals",
    "train_batched",
    "unsupported_settings",
]

__getattr__, __dir__ = attach(__name__)
