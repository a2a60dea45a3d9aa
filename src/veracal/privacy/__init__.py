"""What a release costs, who pays, and how the noise is added."""

from veracal.privacy.answers.grid import Grid
from veracal.privacy.answers.holder import Holder
from veracal.privacy.answers.pooling import PooledRelease
from veracal.privacy.answers.pools import Pool
from veracal.privacy.answers.queries import NotASum, Query, gaussian_event, laplace_event
from veracal.privacy.answers.score_queries import (
    Brier,
    Correct,
    Count,
    NegativeLogLikelihood,
)
from veracal.privacy.answers.sources import (
    Declared,
    GaussianSource,
    Payer,
    Public,
    Release,
    Source,
)
from veracal.privacy.answers.sums import BinnedSum, BoundedSum, DenseSum
from veracal.privacy.budget import Budget, Relation, Unit
from veracal.privacy.costs.accounting import delta_for, epsilon_for
from veracal.privacy.costs.approximate import clt_epsilon_not_a_bound
from veracal.privacy.costs.not_private import NotPrivate
from veracal.privacy.costs.planning import noise_for
from veracal.privacy.costs.pure import micro_epsilon, pure_epsilon
from veracal.privacy.costs.renyi import rdp_at, rdp_epsilon
from veracal.privacy.costs.statement import Statement, statement
from veracal.privacy.costs.unsampled import without_sampling
from veracal.privacy.descent.clipping import (
    Automatic,
    Clip,
    Clipped,
    Flat,
    GlobalAdapt,
    GlobalV1,
    GlobalV2,
    Selection,
    clipped_sum,
    pre_noised,
    selection,
)
from veracal.privacy.descent.loop import Descended, Descent, Standing, Step
from veracal.privacy.descent.progress import StepProgress
from veracal.privacy.descent.sampling import FullBatch, Poisson
from veracal.privacy.descent.schedules import Constant, Exponential, Linear, Schedule, levels
from veracal.privacy.descent.updates import SGD, Adam, Langevin, Momentum, Update
from veracal.privacy.events import (
    Approximate,
    AsReplaceOne,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Gaussian,
    Laplace,
    Parallel,
    PoissonGaussian,
    Pure,
    Repeated,
    Search,
)
from veracal.privacy.ledger.book import Amount, Ledger, Part, open_ledger
from veracal.privacy.ledger.caps import Extension
from veracal.privacy.ledger.chain import Entry
from veracal.privacy.ledger.default_location import default_ledger_path
from veracal.privacy.ledger.plan import Item
from veracal.privacy.ledger.plan_files import read_plan
from veracal.privacy.ledger.runs import Run
from veracal.privacy.ledger.stating import ledger_statement, ledger_total
from veracal.privacy.ledger.units import share
from veracal.privacy.plans import TrainingPlan, plan_training

__all__ = [
    "SGD",
    "Adam",
    "Amount",
    "Approximate",
    "AsReplaceOne",
    "Automatic",
    "BinnedSum",
    "BoundedSum",
    "Brier",
    "Budget",
    "Clip",
    "Clipped",
    "Composed",
    "Constant",
    "Correct",
    "Count",
    "Declared",
    "DenseSum",
    "Descended",
    "Descent",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Entry",
    "Event",
    "Exponential",
    "Extension",
    "Flat",
    "FullBatch",
    "Gaussian",
    "GaussianSource",
    "GlobalAdapt",
    "GlobalV1",
    "GlobalV2",
    "Grid",
    "Holder",
    "Item",
    "Langevin",
    "Laplace",
    "Ledger",
    "Linear",
    "Momentum",
    "NegativeLogLikelihood",
    "NotASum",
    "NotPrivate",
    "Parallel",
    "Part",
    "Payer",
    "Poisson",
    "PoissonGaussian",
    "Pool",
    "PooledRelease",
    "Public",
    "Pure",
    "Query",
    "Relation",
    "Release",
    "Repeated",
    "Run",
    "Schedule",
    "Search",
    "Selection",
    "Source",
    "Standing",
    "Statement",
    "Step",
    "StepProgress",
    "TrainingPlan",
    "Unit",
    "Update",
    "clipped_sum",
    "clt_epsilon_not_a_bound",
    "default_ledger_path",
    "delta_for",
    "epsilon_for",
    "gaussian_event",
    "laplace_event",
    "ledger_statement",
    "ledger_total",
    "levels",
    "micro_epsilon",
    "noise_for",
    "open_ledger",
    "plan_training",
    "pre_noised",
    "pure_epsilon",
    "rdp_at",
    "rdp_epsilon",
    "read_plan",
    "selection",
    "share",
    "statement",
    "without_sampling",
]
