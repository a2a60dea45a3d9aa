"""What every private classifier shares: the way from records to a fit, and what it claims."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

from veracal import _random
from veracal._shown import Shown
from veracal._types import Array
from veracal.data import Dataset
from veracal.data.labels import Label
from veracal.data.rows import MappedRows
from veracal.privacy import Event, Relation, Statement, Unit, statement
from veracal.privacy.answers.models import charge_terms, note_charge
from veracal.privacy.costs.not_private import REPEATABLE, UNFINISHED, NotPrivate
from veracal.training.facts import (
    Facts,
    check_numbers,
    facts_of_arrays,
    public_facts,
    with_labels,
)

_ENTRIES = 1 << 22  # of rows on disk that are checked together
# What is about the records, or about the process that holds them, and not about the model.
_INTERNAL = ("internal_", "_blank", "_given", "_link", "_paid")


class PrivateEstimator(ClassifierMixin, Shown, ABC):  # type: ignore[misc]
    """A classifier that knows its cost before it sees a record.

    A final class stores ``classes``, ``size``, ``relation``, ``unit`` and ``random_state``
    among its parameters, states its cost in ``_cost``, and learns in ``_learn`` from records
    that were checked here.

    Guarantees
    ----------
    :meth:`fit` may stop with an error that depends on a record, as scikit-learn demands (a
    NaN, an undeclared label), and infers what was not declared; ``private_`` is then False
    and ``statement_`` gives the reasons. :meth:`fit_records` infers nothing, and what
    :meth:`check_records` lets pass raises no error that depends on a record. Copies and pickles
    hold no figure that is internal.
    """

    classes: Sequence[Label] | None
    size: int | None
    relation: Relation
    unit: Unit | None
    random_state: int | np.random.Generator | None
    event_: Event | None
    not_private_because_: tuple[str, ...]
    charged_: bool
    _ledger_total: str | None = None
    _began_with: tuple[str, ...]  # what a statement does not cover of its first weights
    _records_name: str = "arrays"
    _needs_size: bool = True  # whether anything depends on the number of records
    _exact_noise: bool = False  # whether the noise on a release is sampled exactly, on a grid

    def event(self) -> Event:
        """Cost of one fit, known before any record is read.

        Raises
        ------
        ValueError
            If the settings are wrong, or have no cost because they are not private.
        """
        self._check_settings()
        cost = self._cost(self.size)
        if cost is None:
            raise ValueError(
                f"Expected settings with a guarantee, got {self!r}, which is not private: "
                "it has no cost that could be charged."
            )
        return cost

    @abstractmethod
    def _cost(self, size: int | None) -> Event | None:
        """Cost of one fit with that declared size; None where it is not private."""

    @abstractmethod
    def _check_settings(self) -> None:
        """Raise unless the settings make sense, private or not."""

    @abstractmethod
    def _learn(self, facts: Facts, rng: np.random.Generator) -> tuple[str, ...]:
        """Learn from checked records; return why the result is not private, if it is not."""

    def _check_kind(self, dataset: Dataset) -> None:
        """Refuse records of another kind than the model takes, by their form alone."""
        check_numbers(dataset)

    def _check_form(self, facts: Facts) -> None:
        """Refuse records whose form does not fit, by their width and their classes alone."""

    def _delta(self) -> float:
        """The delta at which ``statement_`` states epsilon; 0 where the cost is pure."""
        return 0.0

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, classes: Sequence[Label] | None = None
    ) -> Self:
        """Fit to rows X of shape (n, d) and labels y of shape (n,).

        Parameters
        ----------
        X : array, numpy.memmap or MappedRows of shape (n, d)
            Numbers, all finite. A matrix on disk is read some rows at a time.
        y : array of shape (n,)
        classes : sequence of str or int, optional
            Declared classes, where the model was not given them.
        """
        self.__dict__.pop("_records_name", None)
        return self._fitted(self._facts(X, y, classes))

    def _facts(self, X: Any, y: Any, classes: Sequence[Label] | None = None) -> Facts:
        """Rows and labels, checked; nothing is learned from them yet."""
        self._check_settings()
        _random.check_state(self.random_state)
        rows, labels = self._validated(X, y)
        facts = facts_of_arrays(
            rows,
            labels,
            classes=self.classes if classes is None else classes,
            size=self.size,
            relation=self.relation,
            needs_size=self._needs_size,
        )
        self._check_form(facts)
        return facts

    def check_records(self, dataset: Dataset) -> None:
        """Refuse a data set that cannot be fitted, by what is public about it.

        :meth:`veracal.privacy.Holder.fit` calls this before anything is charged.
        """
        self._check_kind(dataset)
        self._check_settings()
        _random.check_state(self.random_state)
        self._check_form(self._public(dataset))

    def fit_records(self, dataset: Dataset) -> Self:
        """Fit to a data set, whose declared classes, size and norm are taken."""
        self.check_records(dataset)
        self.n_features_in_ = dataset.X.shape[1]
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit; arrays have none
        self._records_name = dataset.name
        return self._fitted(with_labels(self._public(dataset), dataset))

    def _public(self, dataset: Dataset) -> Facts:
        """What is public about a data set."""
        return public_facts(
            dataset,
            classes=self.classes,
            size=self.size,
            relation=self.relation,
            unit=self.unit,
            needs_size=self._needs_size,
            all_here=self._all_here,
        )

    @property
    def _all_here(self) -> bool:
        """Whether all records are in the data set that is fitted."""
        return True

    def _fitted(self, facts: Facts) -> Self:
        """Learn, and write down what may be claimed."""
        cost = self._cost(facts.size)
        rng = _random.generator(self.random_state)
        reasons = facts.reasons
        if not _random.is_secret(rng):
            reasons += (REPEATABLE,)
        self.classes_ = facts.classes
        # What an earlier fit claimed must not outlive one that is interrupted.
        self.event_, self.not_private_because_ = None, (UNFINISHED,)
        self._note_charge()
        self._began_with = ()
        with np.errstate(all="ignore"):  # an error, or a warning, would tell of a record
            reasons += self._learn(facts, rng)
        if cost is None and not reasons:
            reasons = ("its settings have no cost that could be stated",)
        self.not_private_because_ = reasons
        self.event_ = cost  # of before the fit: nothing that happened in it can change it
        return self

    @property
    def private_(self) -> bool:
        """Whether the guarantee of ``event_`` holds for this fit."""
        check_is_fitted(self)
        return self.event_ is not None and not self.not_private_because_

    @property
    def statement_(self) -> Statement | NotPrivate:
        """What this fit promises, in words and as JSON; computed when asked for."""
        check_is_fitted(self)
        if self.event_ is None or self.not_private_because_:
            return NotPrivate(self.not_private_because_)
        return statement(
            self.event_,
            self._delta(),
            self.unit,
            covers=("the weights of the classifier",),
            exact_noise=self._exact_noise,
            **charge_terms(self),
        )

    def _note_charge(self) -> None:
        """Note whether a ledger was charged for this fit, and the ledger's total."""
        note_charge(self)

    def _validated(self, X: Any, y: Any) -> tuple[Array | MappedRows, Array]:
        """Rows and labels, as scikit-learn wants them checked."""
        mapped = MappedRows.of(X) if isinstance(X, np.memmap) and X.ndim == 2 else X
        if not isinstance(mapped, MappedRows):
            rows, labels = validate_data(
                self, X, y, dtype=[np.float64, np.float32], ensure_min_samples=1
            )
            check_classification_targets(labels)
            return rows, labels
        for block in mapped.windows(max(1, _ENTRIES // max(1, mapped.shape[1]))):
            check_array(block, dtype=None, estimator=self)
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        if len(labels) != len(mapped):
            raise ValueError(
                f"Expected one label for each of {len(mapped)} rows, got {len(labels)}."
            )
        self.n_features_in_ = mapped.shape[1]
        return mapped, labels

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a file gets: the model, and nothing internal.

        It serves pickle, joblib, copy.deepcopy and torch.save, and every estimator around this
        one.
        """
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in _INTERNAL}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # At the budgets of small test tables the noise outweighs what there is to learn.
        tags.classifier_tags.poor_score = True
        return tags
