"""A vector of bounded norm for each record, summed; which vector is left to say."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from veracal._types import Array, Ints
from veracal.privacy.answers.grid import Grid
from veracal.privacy.answers.queries import Setting
from veracal.privacy.answers.sums import DenseSum
from veracal.privacy.budget import Relation


class VectorSum(ABC):
    """Sum of a vector for each record, shortened to a bound on its norm."""

    name: str
    bits: int
    power: Literal[1, 2]

    @property
    @abstractmethod
    def entries(self) -> int:
        """Length of the vectors."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """Longest norm of a vector."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, Setting]:
        """What tells this question from another of the same name."""

    @abstractmethod
    def per_record(self, records: Any) -> Array:
        """A vector for each record, of shape (n, entries), computed from that record alone."""

    @property
    def sums(self) -> DenseSum:
        """The sum of vectors."""
        return DenseSum(
            self.name,
            self.per_record,
            self.entries,
            self.bound,
            power=self.power,
            bits=self.bits,
        )

    @property
    def grid(self) -> Grid:
        """The grid of the answer."""
        return Grid(self.bits)

    def sensitivity(self, relation: Relation) -> int:
        """Most that the sum moves in the L1 norm, in units."""
        return self.sums.sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """Most that it moves in the L2 norm, in units."""
        return self.sums.sensitivity_l2(relation)

    def evaluate(self, records: Any) -> Ints:
        """The sum, in units."""
        return self.sums.evaluate(records)
