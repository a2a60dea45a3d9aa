"""Public contract suites for clip rules, mechanisms, queries and sources."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.testing.mechanisms import (
        DRAWS,
        check_clip_rule,
        check_mechanism,
        check_optimizer,
        noise_pvalues,
    )
    from veracal.testing.queries import (
        adversarial_scores,
        check_query,
        check_source,
        check_statistic,
    )

__all__ = [
    "DRAWS",
    "adversarial_scores",
    "check_clip_rule",
    "check_mechanism",
    "check_optimizer",
    "check_query",
    "check_source",
    "check_statistic",
    "noise_pvalues",
]

__getattr__, __dir__ = attach(__name__)
