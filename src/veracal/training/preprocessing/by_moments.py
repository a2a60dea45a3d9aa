"""What transformers share that divide by one noisy release of means and squares."""

from abc import abstractmethod

import numpy as np

from veracal import _checks, _random
from veracal._types import Array
from veracal.data import Dataset
from veracal.data.rows import MappedRows
from veracal.errors import DataError
from veracal.privacy import (
    Budget,
    Event,
    Gaussian,
    Relation,
    Statement,
    Unit,
    noise_for,
    statement,
)
from veracal.privacy.answers.holder import check_protected
from veracal.privacy.answers.models import charge_terms
from veracal.privacy.budget import RELATIONS
from veracal.privacy.costs.not_private import REPEATABLE, NotPrivate
from veracal.training.facts import check_size
from veracal.training.preprocessing.transformer import PrivateTransformer


class MomentTransformer(PrivateTransformer):
    """A transformer that is charged for one vector with Gaussian noise.

    A final class stores the settings below among its parameters, and sets what it learns from
    the noisy vector in ``_release``.
    """

    noise_multiplier: float | None
    epsilon: float | None
    delta: float
    size: int | None
    relation: Relation
    unit: Unit | None
    random_state: int | np.random.Generator | None
    _covers: str  # what the vector tells, for a statement

    def _check_settings(self) -> None:
        _checks.one_of(RELATIONS, relation=self.relation)
        _checks.positive(delta=self.delta)
        if self.noise_multiplier is not None:
            _checks.positive(noise_multiplier=self.noise_multiplier)
        if self.noise_multiplier is not None and self.epsilon is not None:
            raise ValueError(
                "Expected noise_multiplier or epsilon, got both: one follows from the other."
            )
        Budget(1.0 if self.epsilon is None else self.epsilon, self.delta, self.relation)
        if self.size is not None:
            _checks.whole(size=self.size)
        _random.check_state(self.random_state)

    def _undeclared(self) -> tuple[str, ...]:
        return ()

    def _cost(self) -> Event:
        return Gaussian(self._multiplier(), 1.0, self.relation)

    def _multiplier(self) -> float:
        """Noise in units of the sensitivity."""
        if self.noise_multiplier is not None:
            return float(self.noise_multiplier)
        epsilon = 1.0 if self.epsilon is None else self.epsilon
        budget = Budget(epsilon, self.delta, self.relation, self.unit or Unit())
        return noise_for(budget, lambda noise: Gaussian(noise, 1.0, self.relation))

    def _check_declared(self, dataset: Dataset) -> None:
        """Refuse a data set whose unit or size does not fit, or is not declared."""
        check_protected(dataset, self.relation, self.unit)
        if self.relation == "replace-one":
            check_size(self.size or len(dataset), len(dataset), self.relation)
        elif self.size is None and dataset.size is None:
            raise DataError(
                dataset.name,
                "a declared number of records",
                "none",
                "Give size=... to the standardizer or to the data set: the real number is "
                "private.",
            )

    def _learn(self, rows: Array | MappedRows, size: int | None) -> tuple[str, ...]:
        reasons: tuple[str, ...] = ()
        declared = size if self.size is None else self.size
        if self.relation == "replace-one":
            check_size(self.size or len(rows), len(rows), self.relation)
            declared = len(rows)
        elif declared is None:
            reasons += ("the number of records was read from them; declare size=...",)
            declared = len(rows)
        rng = _random.generator(self.random_state)
        if not _random.is_secret(rng):
            reasons += (REPEATABLE,)
        self._release(rows, declared, rng)
        return reasons

    @abstractmethod
    def _release(self, rows: Array | MappedRows, size: int, rng: np.random.Generator) -> None:
        """Set what follows from the noisy vector; exact sums never leave the fit."""

    @property
    def statement_(self) -> Statement | NotPrivate:
        """What this fit promises, in words and as JSON; computed when asked for."""
        if not self.private_:
            return NotPrivate(self.not_private_because_)
        assert self.event_ is not None
        return statement(
            self.event_,
            self.delta,
            self.unit,
            covers=(self._covers,),
            exact_noise=True,
            **charge_terms(self),
        )
