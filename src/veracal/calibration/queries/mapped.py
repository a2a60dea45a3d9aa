"""Questions about scores that are mapped first."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from veracal._types import Frozen, Ints
from veracal.calibration.maps import Identity, Map
from veracal.calibration.maps.base import digest
from veracal.calibration.queries.records import labeled
from veracal.data import Scores
from veracal.data.checked import frozen
from veracal.privacy.answers.grid import Grid
from veracal.privacy.answers.queries import NotASum, Query, Setting
from veracal.privacy.answers.sums import blocks
from veracal.privacy.budget import Relation


@dataclass(frozen=True)
class OfMapped:
    r"""A question about the scores that a public map makes of those that are there.

    Whoever holds the records maps them and answers: sources far away need not be told which
    kind of map it is. A map reads one record at a time, so a record that is added, removed or
    replaced is one mapped record that is, and the answer moves no further than the question
    says of any scores.

    Parameters
    ----------
    query : Query
        A sum over records.
    map : Map
        With public parameters.

    Guarantees
    ----------
    Sensitivities are those of the query, which hold for all scores of the right form, mapped
    ones included. Records are mapped in blocks of one shape (:func:`mapped_rows`), so that
    other records do not move a bit of one that stays.

    Examples
    --------
    >>> from veracal.calibration.bins import Bins
    >>> from veracal.calibration.maps import Temperature
    >>> from veracal.calibration.queries import BinnedGap
    >>> from veracal.data import Scores
    >>> scores = Scores.from_logits([[4.0, 0.0]], [0])
    >>> asked = OfMapped(BinnedGap(Bins(1)), Temperature(0.5))
    >>> asked.evaluate(scores) == BinnedGap(Bins(1), 0.5).evaluate(scores)
    array([ True])
    """

    query: Query
    map: Map

    def __post_init__(self) -> None:
        if not isinstance(self.map, Map):
            raise ValueError(f"Expected a map of calibration, got {self.map!r}.")
        if isinstance(self.query, NotASum) != isinstance(self, NotASum):
            raise ValueError(f"Expected of_mapped to be used for {self.query!r}.")

    @property
    def name(self) -> str:
        """What is asked."""
        return f"{self.query.name}, mapped"

    @property
    def grid(self) -> Grid:
        """The grid of the answer."""
        return self.query.grid

    @property
    def entries(self) -> int:
        """Length of the answer."""
        return self.query.entries

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Those of the question, and the map by all of its parameters.

        The question may be about a map itself: its settings get a prefix, so that none of them
        is written over, and no two questions look like one.
        """
        asked = {f"of {name}": value for name, value in self.query.settings.items()}
        told = {"map": self.map.kind, "parameters": digest(self.map)}
        return Frozen({**asked, "of": type(self.query).__name__, **told})

    def sensitivity(self, relation: Relation) -> int:
        """Most that the answer moves in the L1 norm, in units."""
        return self.query.sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """Most that it moves in the L2 norm, in units."""
        return self.query.sensitivity_l2(relation)

    def evaluate(self, records: Any) -> Ints:
        """Map, then evaluate."""
        return self.query.evaluate(mapped_rows(self.map, labeled(records)))


@dataclass(frozen=True)
class StatisticOfMapped(OfMapped, NotASum):
    """The same of a question whose answers do not add up, which one source alone is asked."""


def mapped_rows(map_: Map, scores: Scores) -> Scores:
    """Scores, mapped so that what becomes of a row does not depend on others that there are.

    Across the edge of a bin, a row that differs in its last bits is a whole record.
    """
    if not isinstance(map_, Identity):
        parts = list(blocks(scores, lambda part, real: (map_.transform(part), real)))
        values = np.concatenate([part.values[:real] for part, real in parts])
        first = parts[0][0]
        scores = replace(scores, values=frozen(values), kind=first.kind, name=first.name)
    return scores


def of_mapped(query: Query, map_: Map) -> OfMapped:
    """Ask about mapped scores; what does not add up still does not."""
    return (StatisticOfMapped if isinstance(query, NotASum) else OfMapped)(query, map_)
