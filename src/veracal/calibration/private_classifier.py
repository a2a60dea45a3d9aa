"""A private classifier with a private calibration map under one guarantee and one budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from veracal import _checks, _random
from veracal._display import DisplayMixin
from veracal._types import Array
from veracal.accounting import (
    RELATIONS,
    REPEATABLE,
    UNFINISHED,
    Budget,
    Composed,
    Event,
    NotPrivate,
    Parallel,
    Relation,
    Statement,
    Unit,
    statement,
)
from veracal.calibration.classifier import MappedPredictions, rows_for
from veracal.calibration.maps.base import Identity
from veracal.calibration.planning import (
    keep_budget,
    plan_temperatures,
    supports_two_temperatures,
    training_event,
)
from veracal.calibration.prepaid_source import PrepaidSource
from veracal.calibration.private.guard import GuardResult, guard_event, guard_map
from veracal.calibration.private.session import PrivateFitter
from veracal.calibration.private.temperature import PrivateTemperature, PrivateTwoTemperatures
from veracal.data import (
    Dataset,
    Label,
    MappedRows,
    Scores,
    check_classes,
    compute_logits,
    encode_labels,
    scoring_method,
    split,
)
from veracal.errors import DataError
from veracal.queries import (
    Release,
    charge_terms,
    check_protected,
    record_charge,
)

Recalibrate = Literal["reuse", "split"]
RecordShares = tuple[float, float, float]
RECALIBRATE: tuple[Recalibrate, ...] = ("reuse", "split")
EPSILON = 0.1  # default cost of a map or a guard without a total
CLASSES = "the classes were read from the labels; declare classes=..."
SIZE = "the number of records was read from them; declare size=..."
PART = "it is part of a calibrated classifier; see the statement of that classifier"
SAME_RECORDS = "the records that the classifier and the map were fitted to, which is optimistic"
SEPARATE_RECORDS = "records that neither the classifier nor the map was fitted to"
COVERS = (
    "the weights of the classifier",
    "the calibration map and all answers used to fit it",
    "the guard's decision and its noisy gain",
)


@dataclass(frozen=True)
class Guard:
    """Settings of the guard, which keeps a map only if it improves the Brier score.

    Attributes
    ----------
    epsilon : float, optional
        Cost of its query. None: half of the map's share of a total, or 0.1 without a total; on
        separate records, the whole total.
    beta : float in (0, 0.5)
        Upper bound on the probability of keeping a map that is no better on these records.
    """

    epsilon: float | None = None
    beta: float = 0.05

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            _checks.positive(epsilon=self.epsilon)
        if not 0 < self.beta < 0.5:
            raise ValueError(f"Expected beta between 0 and 0.5, got beta={self.beta!r}.")


@dataclass(frozen=True, eq=False)
class BudgetPlan:
    """The parts of a calibrated classifier with their final settings and costs."""

    estimator: Any
    method: Any
    guard: Guard | None
    recalibrate: Recalibrate
    training: Event
    mapping: Event
    guarding: Event | None

    @property
    def event(self) -> Event:
        """Cost of all parts: composed on the same records, or in parallel on disjoint ones."""
        parts = (self.training, self.mapping, self.guarding)
        events = tuple(event for event in parts if event is not None)
        return Composed(events) if self.recalibrate == "reuse" else Parallel(events)


class PrivateCalibratedClassifier(
    MappedPredictions,
    ClassifierMixin,  # type: ignore[misc]
    MetaEstimatorMixin,  # type: ignore[misc]
    DisplayMixin,
):
    r"""A private classifier and a private calibration map of its scores, charged as one.

    ``"reuse"`` trains on all records and fits the map to the scores of the *same* records. A
    model trained with differential privacy is hardly more confident on its training records
    than on others, so these scores suffice. ``"split"`` holds out records for the map, as Zhang
    et al. 2022 (https://arxiv.org/abs/2210.08248, Proposition A.1) do; each part may then cost
    the whole budget.

    Parameters
    ----------
    estimator : private classifier
        States its cost (``event``), fits data sets (``check_records``, ``fit_records``) and has
        ``logits`` or a ``decision_function``.
    method : PrivateFitter, optional
        Fitter of the map. None: two temperatures if the declared ``size`` is large enough,
        otherwise one (:mod:`veracal.calibration.planning`). A missing number of classes, size,
        delta or epsilon is filled in from the declarations here.
    recalibrate : {"reuse", "split"}
    epsilon : float > 0, optional
        Total of all parts. The noise of training is then computed and replaces the estimator's
        setting. None: the parts' own settings are used, a map or guard without an epsilon
        costs 0.1, and the total is their composition.
    delta : float in [0, 1)
        Delta of the guarantee, here and in ``statement_``.
    share : float in (0, 1), optional
        Share of the total for the map and its guard, with ``"reuse"``. None: the advice of
        :func:`~veracal.calibration.plan_temperatures` for the declared size; 0.02 without one.
    noise_parameter : str, optional
        Name of the estimator's parameter that is set to meet the total: a noise multiplier
        or an epsilon. None: ``noise_multiplier`` or ``epsilon``, whichever exists first. It is
        required for a pipeline.
    holdout : float in (0, 1)
        Share of the held-out records, with ``"split"``; the guard uses half of them.
    guard : Guard, optional
        Keep the map only if a noisy query shows an improvement; otherwise use the identity. The
        cost does not depend on the decision. With ``"reuse"`` the query is evaluated on the
        records of the fit, which is optimistic; with ``"split"``, on separate records.
    classes : sequence of str or int, optional
        Declared classes. None: those of the data set or, in :meth:`fit`, read from the
        labels, so not private.
    size : int, optional
        Declared number of all records. None: the data set's or, in :meth:`fit`, counted, so
        not private under add-remove.
    relation : {"add-remove", "replace-one"}
        The estimator's.
    unit : Unit, optional
        Privacy unit; must equal the estimator's.
    random_state : int, Generator or None
        None, fresh secret entropy, is the only private choice.

    Attributes
    ----------
    estimator_ : private classifier
        Fitted; it makes no privacy statement of its own.
    map_ : CalibrationMap
        The calibration map in use: the identity if the guard rejected the fitted one.
    guard_result_ : GuardResult or None
        Decision of the guard, and on which records.
    releases_ : tuple of Release
        All noisy answers used for the map and the guard.
    classes_ : array of shape (k,)
    event_ : Event or None
    private_ : bool
    not_private_because_ : tuple of str
    statement_ : Statement or NotPrivate
        ``NotPrivate`` gives the reasons if there is no guarantee.

    Guarantees
    ----------
    *Reuse.* Training is a mechanism M₁ on all records. The map is made from answers M₂ about
    scores, which are a function of a record and of what M₁ released; its noises are fixed
    beforehand. This is adaptive composition on the same records, and ``Composed`` is its
    cost, the privacy losses of all parts convolved.

    *Split.* Every unit (under replace-one, every index) is assigned to a split by its own
    secret random number, independently of other records and row numbers. Given the assignment,
    neighbors differ in one split. If that is the training split, map and guard are functions of
    the released model and of unchanged records, so the cost is that of training; if it is
    another split, the model has the same distribution, and the cost is that of this split. For
    every assignment the cost is at most the largest of the parts, ``Parallel``, and so it is on
    average over assignments. Splits have *declared* sizes, their shares of the declared total;
    the actual sizes are not used (under replace-one they are public).

    *Charged first.* :meth:`event` depends on the settings alone. Inside the fit, queries are
    answered by a ``PrepaidSource`` (:mod:`veracal.calibration.prepaid_source`), which uses every
    noise of the event exactly once. The logits of a record depend only on that record and the
    model, and after :meth:`check_records` no error or warning of :meth:`fit_records` depends on
    a record.

    Examples
    --------
    >>> from veracal.data import load
    >>> from veracal.training import PrivateLogisticRegression
    >>> data = load("breast-cancer")
    >>> model = PrivateCalibratedClassifier(
    ...     PrivateLogisticRegression(), epsilon=3.0, delta=1e-5, share=0.1
    ... )
    >>> fitted = model.fit_records(data)
    >>> fitted.private_, fitted.statement_.epsilon <= 3, fitted.map_.kind
    (True, True, 'temperature')
    """

    event_: Event | None
    guard_result_: GuardResult | None
    not_private_because_: tuple[str, ...]
    releases_: tuple[Release, ...]

    def __init__(
        self,
        estimator: Any,
        *,
        method: PrivateFitter | None = None,
        recalibrate: Recalibrate = "reuse",
        epsilon: float | None = None,
        delta: float = 1e-5,
        share: float | None = None,
        noise_parameter: str | None = None,
        holdout: float = 0.1,
        guard: Guard | None = None,
        classes: Sequence[Label] | None = None,
        size: int | None = None,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.recalibrate = recalibrate
        self.epsilon = epsilon
        self.delta = delta
        self.share = share
        self.noise_parameter = noise_parameter
        self.holdout = holdout
        self.guard = guard
        self.classes = classes
        self.size = size
        self.relation = relation
        self.unit = unit
        self.random_state = random_state

    # ------------------------------------------------------------ cost

    def event(self) -> Event:
        """Cost of one fit, known before any record is read.

        Raises
        ------
        ValueError
            If the settings are invalid, if the estimator states no cost, or if it protects
            another unit.
        """
        return self._plan_budget(self.size).event

    def trainer(self) -> Any:
        """A copy of the estimator with its final noise."""
        return self._plan_budget(self.size).estimator

    def _plan_budget(self, size: int | None) -> BudgetPlan:
        """The parts with their final settings; ``size`` may be that of a data set.

        With a total and the same records, the map and the guard get their shares, and training
        gets the smallest noise for which the composition stays within the total. On disjoint
        records each part may cost the whole total. No cost depends on ``size``, because it is
        announced before a data set is given.
        """
        self._check_settings()
        guard, unit = self.guard, self.unit or Unit()
        if self.epsilon is None:
            epsilon = EPSILON
        elif self.recalibrate == "split":
            epsilon = self.epsilon
        else:
            epsilon = self._budget_share() * self.epsilon / (1 if guard is None else 2)
        if guard is not None and guard.epsilon is None:
            guard = replace(guard, epsilon=epsilon)
        method = self._complete_method(epsilon, self._map_size(size))
        mapping: Event = method.event(self.relation, self.unit)
        guarding = None
        if guard is not None:
            guarding = guard_event(
                Identity(), epsilon=guard.epsilon, relation=self.relation, unit=self.unit
            )
        estimator = clone(self.estimator)
        if self.epsilon is not None:
            budget = Budget(self.epsilon, float(self.delta), self.relation, unit)
            other: tuple[Event, ...] = ()
            if self.recalibrate == "reuse":
                other = (mapping,) if guarding is None else (mapping, guarding)
            estimator = keep_budget(estimator, budget, other, self.noise_parameter)
        training = training_event(estimator, self.relation, unit)
        return BudgetPlan(
            estimator, method, guard, self.recalibrate, training, mapping, guarding
        )

    def _check_settings(self) -> None:
        """Check the settings that no part checks."""
        _checks.one_of(RECALIBRATE, recalibrate=self.recalibrate)
        _checks.one_of(RELATIONS, relation=self.relation)
        for name, kind in (("guard", Guard), ("unit", Unit)):
            if not isinstance(getattr(self, name), kind | None):
                raise ValueError(
                    f"Expected {name} to be a {kind.__name__} or None, got "
                    f"{getattr(self, name)!r}."
                )
        if self.method is not None and not isinstance(self.method, PrivateFitter):
            raise ValueError(
                f"Expected a private fitter such as PrivateTemperature, got {self.method!r}."
            )
        if self.epsilon is not None:
            _checks.positive(epsilon=self.epsilon)
        _checks.open_fraction(holdout=self.holdout)
        if self.share is not None:
            _checks.open_fraction(share=self.share)
        if self.size is not None:
            _checks.whole(size=self.size)
        _checks.fraction(delta=self.delta)
        if self.delta * (self.size or 1) >= 1:
            raise ValueError(
                f"Expected delta below 1 / size, got delta={self.delta!r} with "
                f"size={self.size}: it would allow publishing single records."
            )
        scoring_method(self.estimator)
        _checks.reject_unsplittable_fit(estimator=self.estimator)

    def _complete_method(self, epsilon: float, size: int | None) -> Any:
        """A copy of the fitter, with missing settings filled in from public facts."""
        if self.method is None:
            n, unit = self._map_size(self.size) or 0, self.unit or Unit()
            two = supports_two_temperatures(n, epsilon, self.relation, unit)
            method: Any = PrivateTwoTemperatures() if two else PrivateTemperature()
        else:
            method = clone(self.method)
        known = method.get_params(deep=False)
        if known.get("reads") == "probabilities":
            raise ValueError(
                f"Expected a fitter that reads logits, got {method!r}. Omit reads."
            )
        if known.get("epsilon") is None and known.get("micro_epsilon") is None:
            method.set_params(epsilon=epsilon)
        # The number of records is only a divisor; no event depends on it.
        defaults = {
            "classes": None if self.classes is None else len(set(self.classes)),
            "size": size or 1,
            "delta": float(self.delta),
        }
        missing = {k: value for k, value in defaults.items() if known.get(k, 0) is None}
        return method.set_params(**missing)

    def _budget_share(self) -> float:
        """Share of the total for the map and its guard."""
        if self.share is not None:
            return self.share
        if self.size is None or self.epsilon is None:
            return 0.02
        budget = Budget(self.epsilon, self.delta, self.relation, self.unit or Unit())
        classes = 2 if self.classes is None else len(set(self.classes))
        return plan_temperatures(self.size, classes, budget).share

    def _record_shares(self) -> RecordShares:
        """Shares of the records for training, map and guard, with "split"."""
        calibration = self.holdout if self.guard is None else self.holdout / 2
        return 1 - self.holdout, calibration, self.holdout - calibration

    def _map_size(self, size: int | None) -> int | None:
        """Declared number of records for the map, given that of all records."""
        share = self._record_shares()[1] if self.recalibrate == "split" else 1.0
        return None if size is None else max(1, round(size * share))

    # ------------------------------------------------------------ fit

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to rows X of shape (n, d) and labels y of shape (n,); record what was inferred.

        As scikit-learn requires, errors may depend on records.
        """
        self._check_settings()
        given = X[:] if isinstance(X, MappedRows) else X
        rows, labels = validate_data(self, given, y, **rows_for(self.estimator))
        check_classification_targets(labels)
        size = self.size
        if size is None and self.recalibrate == "reuse":
            size = self.estimator.get_params(deep=False).get("size")
        dataset, classes, reasons = dataset_of(rows, labels, self.classes, size, self.relation)
        self._fit(dataset, self._check_records(dataset), reasons)
        self.classes_ = classes
        return self

    def check_records(self, dataset: Dataset) -> None:
        """Reject a data set that cannot be fitted, by public facts only.

        :meth:`veracal.queries.Curator.fit` calls this before anything is charged.
        """
        self._check_records(dataset)

    def fit_records(self, dataset: Dataset) -> Self:
        """Fit to a data set with declared classes, size and norm."""
        parts = self._check_records(dataset)
        self.n_features_in_ = dataset.X.shape[1]
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit; arrays have none
        return self._fit(dataset, parts, ())

    def _check_records(self, dataset: Dataset) -> BudgetPlan:
        """Check a data set by public facts, and return the parts with their final settings."""
        if not isinstance(dataset, Dataset):
            raise ValueError(
                f"Expected a data set of veracal.data, got {type(dataset).__name__}. Use "
                "fit(X, y) for arrays."
            )
        check_protected(dataset, self.relation, self.unit)
        if self.classes is not None and set(self.classes) != set(dataset.classes):
            raise DataError(
                f"{dataset.name}: classes",
                f"the classes of the model, {list(self.classes)}",
                repr(list(dataset.classes)),
                "Declare the same classes on both sides.",
            )
        _random.check_state(self.random_state)
        whole = self._with_size(dataset)
        parts = self._plan_budget(whole.size)
        if self.recalibrate == "split":
            if whole.size is None:
                raise DataError(
                    dataset.name,
                    "a declared number of records",
                    "none",
                    "Pass size=... to the model or to the data set: the actual number is "
                    "private.",
                )
            # An empty training split, to check the form of the records before the fit.
            rows = len(whole) if self.relation == "replace-one" else 0
            unused = np.random.default_rng(0)  # the assignment is discarded
            form = whole.take(np.arange(rows))
            whole = split_records(form, self._record_shares(), self.relation, rng=unused)[0]
        parts.estimator.check_records(whole)
        return parts

    def _with_size(self, dataset: Dataset) -> Dataset:
        """The data set with a size that is declared here, or public."""
        size = self.size
        if size is None and dataset.size is None and self.relation == "replace-one":
            size = len(dataset)
        return dataset if size in (None, dataset.size) else replace(dataset, size=size)

    def _fit(self, dataset: Dataset, parts: BudgetPlan, reasons: tuple[str, ...]) -> Self:
        """Train, recalibrate and store the guarantee."""
        rng = _random.generator(self.random_state)
        # An interrupted fit must not keep the statement of an earlier one.
        self.event_, self.not_private_because_ = None, (UNFINISHED,)
        record_charge(self)
        train = fitting = guarding = self._with_size(dataset)
        if self.recalibrate == "split":
            train, fitting, guarding = split_records(
                train, self._record_shares(), self.relation, rng=rng
            )
        model, repeats = parts.estimator, list[str]()
        if not _random.is_secret(rng):
            repeats.append(REPEATABLE)
            for name in model.get_params():
                if name.split("__")[-1] == "random_state":
                    model.set_params(**{name: int(rng.integers(2**32))})
        model = model.fit_records(train)
        if model.event_ != parts.training:
            raise ValueError(
                f"Training was charged as {parts.training!r}, but its fit reports "
                f"{model.event_!r}. Do not release this model."
            )
        self.estimator_, self.classes_ = model, model.classes_
        self._fit_map(parts, fitting, guarding, rng)
        own = tuple(model.not_private_because_)
        model.not_private_because_ = (*own, PART)
        self.not_private_because_ = tuple(dict.fromkeys((*reasons, *own, *repeats)))
        self.event_ = parts.event
        return self

    def _fit_map(
        self, parts: BudgetPlan, fitting: Dataset, guarding: Dataset, rng: np.random.Generator
    ) -> None:
        """Fit the map and query the guard."""
        scores = self._score(fitting)
        fitter = parts.method.fit(PrepaidSource(scores, parts.mapping, unit=self.unit, rng=rng))
        self.map_, self.releases_, self.guard_result_ = fitter.map_, fitter.releases_, None
        if parts.guard is not None and parts.guarding is not None:
            separate = parts.recalibrate == "split"
            guard_scores = self._score(guarding) if separate else scores
            result = guard_map(
                self.map_,
                PrepaidSource(guard_scores, parts.guarding, unit=self.unit, rng=rng),
                epsilon=parts.guard.epsilon,
                beta=parts.guard.beta,
                records=SEPARATE_RECORDS if separate else SAME_RECORDS,
            )
            self.guard_result_ = replace(result, statement=None)  # a part makes none of its own
            self.map_, self.releases_ = result.map, (*self.releases_, result.release)
        self.gives_ = self.map_.transform(scores.take(np.arange(0))).kind

    def _score(self, dataset: Dataset) -> Scores:
        """Labeled scores by the fitted estimator, without record-dependent errors."""
        classes = self.estimator_.classes_.tolist()
        index = np.array([classes.index(label) for label in dataset.classes])
        logits = compute_logits(self.estimator_, dataset.X, len(classes), without_errors=True)
        return Scores(logits, "logits", tuple(classes), index[dataset.y], name=dataset.name)

    # ------------------------------------------------------------ claims

    @property
    def private_(self) -> bool:
        """Whether the guarantee of ``event_`` holds for this fit."""
        check_is_fitted(self)
        return self.event_ is not None and not self.not_private_because_

    @property
    def statement_(self) -> Statement | NotPrivate:
        """The privacy guarantee of this fit."""
        check_is_fitted(self)
        if self.event_ is None or self.not_private_because_:
            return NotPrivate(self.not_private_because_)
        has_guard = self.guard_result_ is not None
        return statement(
            self.event_,
            self.delta,
            self.unit,
            covers=COVERS[: 2 + has_guard],
            **charge_terms(self, self.estimator_),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return "map_" in vars(self)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # At the budgets of small test tables the noise dominates the signal.
        tags.classifier_tags.poor_score = True
        return tags


def split_records(
    dataset: Dataset, shares: RecordShares, relation: Relation, *, rng: np.random.Generator
) -> tuple[Dataset, Dataset, Dataset]:
    """Split records into those for training, for the map and for the guard.

    The shares sum to 1; if the last is 0, the guard uses the records of the map. The generator
    of the assignment is secret.

    Guarantees
    ----------
    As in :func:`veracal.data.split`: each unit (under replace-one, each index) is assigned
    independently, so neighboring data sets differ in one split only. The declared size of a
    split is its share of the declared total; under replace-one, the public actual size.
    """
    exact = relation == "replace-one"
    result = split(dataset, shares, relation=relation, fixed_size=exact, rng=rng)
    train, calibration, guard_records = result.train, result.calibration, result.test
    assert calibration is not None
    if exact:  # rounding may change a size by one
        train, calibration = (
            replace(train, size=len(train)),
            replace(calibration, size=len(calibration)),
        )
    return train, calibration, calibration if guard_records is None else guard_records


def dataset_of(
    rows: Array,
    labels: Array,
    classes: Sequence[Label] | None,
    size: int | None,
    relation: Relation,
) -> tuple[Dataset, Array, tuple[str, ...]]:
    """Arrays as a data set; undeclared classes and sizes are read from them.

    Also returns the classes in ascending order, of the labels' own type, and what was read from
    the records: if anything, the fit is not private.
    """
    reasons: tuple[str, ...] = ()
    if classes is not None:
        values = np.unique(np.asarray(check_classes(list(classes), "model")))
        codes = encode_labels(labels, values.tolist(), "labels")
    else:
        reasons = (CLASSES,)
        values, codes = np.unique(labels, return_inverse=True)
        if len(values) < 2:
            raise ValueError(
                f"Expected two classes or more, got one class ({values[0]!r}) in the labels. "
                "Declare every class that records may have: classes=..."
            )
    if size is None and relation == "add-remove":
        reasons += (SIZE,)
    # Data sets do not allow bool or float labels.
    names = values.astype(np.int64) if values.dtype.kind in "fb" else values
    size = len(rows) if size is None else size
    return Dataset(rows, codes, tuple(names.tolist()), size=size), values, reasons
