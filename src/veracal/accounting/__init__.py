"""Privacy events, loss distributions, Rényi divergences, epsilon and statements."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.accounting.components import (
        MICRO,
        micro_epsilon,
        pure_epsilon,
        round_up_float,
        to_micro,
        without_sampling,
    )
    from veracal.accounting.epsilon import (
        clt_epsilon_not_a_bound,
        delta_for,
        epsilon_for,
        noise_for,
    )
    from veracal.accounting.events import (
        RELATIONS,
        RUN_DISTRIBUTIONS,
        Approximate,
        AsReplaceOne,
        Budget,
        Composed,
        DiscreteGaussian,
        DiscreteLaplace,
        Event,
        Gaussian,
        Laplace,
        Parallel,
        PoissonGaussian,
        Pure,
        Relation,
        Repeated,
        RunDistribution,
        Search,
        Unit,
        event_from_json,
        event_to_json,
    )
    from veracal.accounting.rdp import MAX_ORDER, rdp_at, rdp_epsilon, stopping_rate
    from veracal.accounting.statement_text import (
        REPEATABLE,
        UNCHARGED,
        UNFINISHED,
        NotPrivate,
        Statement,
        format_down,
        format_up,
        statement,
    )

__all__ = [
    "MAX_ORDER",
    "MICRO",
    "RELATIONS",
    "REPEATABLE",
    "RUN_DISTRIBUTIONS",
    "UNCHARGED",
    "UNFINISHED",
    "Approximate",
    "AsReplaceOne",
    "Budget",
    "Composed",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Event",
    "Gaussian",
    "Laplace",
    "NotPrivate",
    "Parallel",
    "PoissonGaussian",
    "Pure",
    "Relation",
    "Repeated",
    "RunDistribution",
    "Search",
    "Statement",
    "Unit",
    "clt_epsilon_not_a_bound",
    "delta_for",
    "epsilon_for",
    "event_from_json",
    "event_to_json",
    "format_down",
    "format_up",
    "micro_epsilon",
    "noise_for",
    "pure_epsilon",
    "rdp_at",
    "rdp_epsilon",
    "round_up_float",
    "statement",
    "stopping_rate",
    "to_micro",
    "without_sampling",
]

__getattr__, __dir__ = attach(__name__)
