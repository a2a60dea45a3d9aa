"""Components of private computations: samplers, clip rules, noise, optimizers, DP-SGD."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.mechanisms.clipping import (
        Automatic,
        ClippedSum,
        ClipRule,
        ClipSelection,
        Flat,
        GlobalAdapt,
        GlobalV1,
        GlobalV2,
        add_gradient_noise,
        clipped_sum,
        is_continuous,
        select_and_scale,
    )
    from veracal.mechanisms.discrete_noise import (
        MAX_NOISE,
        add_discrete_gaussian,
        add_discrete_laplace,
        discrete_gaussian_bound,
        discrete_gaussian_std,
        discrete_laplace_bound,
        discrete_laplace_std,
        gaussian_noise,
        laplace_noise,
    )
    from veracal.mechanisms.dp_sgd import DPSGD, Step, TrainingResult, TrainingState
    from veracal.mechanisms.grid import (
        MAX_TOTAL,
        MAX_UNITS,
        Bounds,
        Grid,
        clip_to_grid,
        clip_vectors_to_grid,
        exact_total,
    )
    from veracal.mechanisms.optimizers import (
        SGD,
        Adam,
        Exponential,
        Langevin,
        Linear,
        Momentum,
        Optimizer,
        Schedule,
        group_noise_levels,
    )
    from veracal.mechanisms.progress import (
        StepProgress,
        TrainingCurve,
        hold_curves,
        hook_exposes_weights,
    )
    from veracal.mechanisms.rounded_noise import (
        SphericalNoise,
        rounded_gaussian,
        rounded_spherical,
    )
    from veracal.mechanisms.sampling import FullBatch, Poisson, TrainingPlan, plan_training

__all__ = [
    "DPSGD",
    "MAX_NOISE",
    "MAX_TOTAL",
    "MAX_UNITS",
    "SGD",
    "Adam",
    "Automatic",
    "Bounds",
    "ClipRule",
    "ClipSelection",
    "ClippedSum",
    "Exponential",
    "Flat",
    "FullBatch",
    "GlobalAdapt",
    "GlobalV1",
    "GlobalV2",
    "Grid",
    "Langevin",
    "Linear",
    "Momentum",
    "Optimizer",
    "Poisson",
    "Schedule",
    "SphericalNoise",
    "Step",
    "StepProgress",
    "TrainingCurve",
    "TrainingPlan",
    "TrainingResult",
    "TrainingState",
    "add_discrete_gaussian",
    "add_discrete_laplace",
    "add_gradient_noise",
    "clip_to_grid",
    "clip_vectors_to_grid",
    "clipped_sum",
    "discrete_gaussian_bound",
    "discrete_gaussian_std",
    "discrete_laplace_bound",
    "discrete_laplace_std",
    "exact_total",
    "gaussian_noise",
    "group_noise_levels",
    "hold_curves",
    "hook_exposes_weights",
    "is_continuous",
    "laplace_noise",
    "plan_training",
    "rounded_gaussian",
    "rounded_spherical",
    "select_and_scale",
]

__getattr__, __dir__ = attach(__name__)
