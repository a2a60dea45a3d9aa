"""Why a fitted model may claim nothing."""

import math
from dataclasses import dataclass
from typing import Any

REPEATABLE = "its random draws can be repeated: random_state was set"
UNFINISHED = "its fit did not end"


@dataclass(frozen=True)
class NotPrivate:
    """Stands where a :class:`~veracal.privacy.Statement` would, and promises nothing.

    Attributes
    ----------
    reasons : tuple of str
        What was read from the records, or left out, that a guarantee would have needed.
    """

    reasons: tuple[str, ...]

    @property
    def epsilon(self) -> float:
        """Infinite: no bound is claimed."""
        return math.inf

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        return {"private": False, "epsilon": None, "reasons": list(self.reasons)}

    def text(self) -> str:
        """The reasons as a paragraph for people who decide."""
        listed = "".join(f"\n  - {reason}" for reason in self.reasons)
        return f"This model is NOT differentially private, and nothing is promised:{listed}"
