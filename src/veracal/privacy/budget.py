"""What is promised to whom: the neighbors, the unit, the budget."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from veracal import _checks

Relation = Literal["add-remove", "replace-one"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)


@dataclass(frozen=True)
class Unit:
    """Whom a guarantee protects.

    Parameters
    ----------
    name : str
        What the unit is called in a statement: "record", "patient".
    at_most : int
        Most rows one unit contributes. With more than one, every event is charged for
        that many rows at once.

    Examples
    --------
    >>> print(Unit("patient", at_most=3))
    one patient (at most 3 rows)
    """

    name: str = "record"
    at_most: int = 1

    def __post_init__(self) -> None:
        _checks.whole(at_most=self.at_most)
        if not (isinstance(self.name, str) and self.name.strip()):
            raise ValueError(f"Expected a name for the unit, got name={self.name!r}.")
        object.__setattr__(self, "at_most", int(self.at_most))

    def __str__(self) -> str:
        rows = "" if self.at_most == 1 else f" (at most {self.at_most} rows)"
        return f"one {self.name}{rows}"


@dataclass(frozen=True)
class Budget:
    r"""The most that all releases together may cost.

    A randomized release M keeps the budget if for all neighbors D, D' and every event S

    .. math:: P[M(D) \in S] \le e^\varepsilon P[M(D') \in S] + \delta

    (Dwork et al. 2006). Neighbors differ in one unit: its rows are present or absent
    (``"add-remove"``), or are exchanged for others (``"replace-one"``).

    Parameters
    ----------
    epsilon : float > 0
    delta : float in [0, 1)
        Zero asks for pure differential privacy.
    relation : {"add-remove", "replace-one"}
    unit : Unit

    Examples
    --------
    >>> Budget(1.0, 1e-5).relation
    'add-remove'
    """

    epsilon: float
    delta: float = 0.0
    relation: Relation = "add-remove"
    unit: Unit = field(default_factory=Unit)

    def __post_init__(self) -> None:
        _checks.positive(epsilon=self.epsilon)
        _checks.fraction(delta=self.delta)
        if self.delta >= 1:
            raise ValueError(f"Expected delta below 1, got delta={self.delta!r}.")
        _checks.one_of(RELATIONS, relation=self.relation)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))

    @property
    def pure(self) -> bool:
        """Whether the budget allows no failure probability."""
        return math.isclose(self.delta, 0.0, abs_tol=0.0)
