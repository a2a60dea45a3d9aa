"""Records for training, for the map and for the guard.

A private classifier whose probabilities are repaired within the same guarantee.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, MetaEstimatorMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from veracal import _checks, _random
from veracal._display import DisplayMixin
from veracal._types import Array, Ints
from veracal.accounting import (
    RELATIONS,
    REPEATABLE,
    UNFINISHED,
    Budget,
    Event,
    NotPrivate,
    Relation,
    Statement,
    Unit,
    statement,
)
from veracal.calibration.budgeting import (
    RECALIBRATE,
    BudgetPlan,
    BudgetSettings,
    Guard,
    Recalibrate,
    arranged,
)
from veracal.calibration.classifier import MappedPredictions, rows_for
from veracal.calibration.planning import plan_recalibration
from veracal.calibration.prepaid import PrepaidSource
from veracal.calibration.private.guard import GuardResult, guard_map
from veracal.calibration.private.session import PrivateFitter
from veracal.data import (
    Dataset,
    Label,
    MappedRows,
    Scores,
    check_classes,
    encode_labels,
    logits_of,
    split,
    way_of,
)
from veracal.errors import DataError
from veracal.queries import Release, charge_terms, check_protected, note_charge

CLASSES = "the classes were read from the labels; declare classes=..."
SIZE = "the number of records was read from them; declare size=..."
Shares = tuple[float, float, float]


def dealt(
    dataset: Dataset, shares: Shares, relation: Relation, *, rng: np.random.Generator
) -> tuple[Dataset, Dataset, Dataset]:
    """Deal records to train on, to fit the map to and to ask the guard of.

    Parameters
    ----------
    dataset : Dataset
    shares : three floats that sum to 1
        Without a last part, the guard's records are the map's.
    relation : {"add-remove", "replace-one"}
    rng : Generator
        Of the coins; a secret one.

    Guarantees
    ----------
    As of :func:`veracal.data.split`: each unit has a coin of its own, or under replace-one
    each place, so neighbors differ in one part. The declared size of a part is its share of
    the whole's; under replace-one, where it is public, its real size.
    """
    exact = relation == "replace-one"
    made = split(dataset, shares, relation=relation, fixed_size=exact, rng=rng)
    train, held, last = made.train, made.calibration, made.test
    assert held is not None
    if exact:  # rounding may put a part one off its share
        train, held = replace(train, size=len(train)), replace(held, size=len(held))
    return train, held, held if last is None else last


def in_form(dataset: Dataset, shares: Shares, relation: Relation) -> Dataset:
    """What training gets after the deal, in form alone: of no use but to be checked."""
    rows = len(dataset) if relation == "replace-one" else 0
    coins = np.random.default_rng(0)  # public ones, for what is thrown away
    return dealt(dataset.take(np.arange(rows)), shares, relation, rng=coins)[0]


def sized(dataset: Dataset, size: int | None, relation: Relation) -> Dataset:
    """The data set with a size that was declared elsewhere, or that is public."""
    if size is None and dataset.size is None and relation == "replace-one":
        size = len(dataset)
    return dataset if size in (None, dataset.size) else replace(dataset, size=size)


def check_declared(
    dataset: object, classes: Sequence[Label] | None, relation: Relation, unit: Unit | None
) -> None:
    """Refuse a data set that is not what was declared, by what is public about it."""
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"Expected a data set of veracal.data, got {type(dataset).__name__}. Use fit(X, y) "
            "for arrays."
        )
    check_protected(dataset, relation, unit)
    if classes is not None and set(classes) != set(dataset.classes):
        raise DataError(
            f"{dataset.name}: classes",
            f"the classes of the model, {list(classes)}",
            repr(list(dataset.classes)),
            "Declare the same classes on both sides.",
        )


def dataset_of(
    rows: Array,
    labels: Array,
    classes: Sequence[Label] | None,
    size: int | None,
    relation: Relation,
) -> tuple[Dataset, Array, tuple[str, ...]]:
    """Arrays as a data set, with what was not declared read from them.

    Returns
    -------
    dataset : Dataset
    classes : array of shape (k,)
        In ascending order, of the labels' own type.
    reasons : tuple of str
        What was read. Not empty: not private.
    """
    known, codes, reasons = _known_classes(classes, labels)
    if size is None and relation == "add-remove":
        reasons += (SIZE,)
    # A data set has no labels that are truth values or floats.
    plain = known.astype(np.int64) if known.dtype.kind in "fb" else known
    size = len(rows) if size is None else size
    return Dataset(rows, codes, tuple(plain.tolist()), size=size), known, reasons


def _known_classes(
    classes: Sequence[Label] | None, labels: Array
) -> tuple[Array, Ints, tuple[str, ...]]:
    """Classes in ascending order, labels among them, and the reason if they were read."""
    if classes is not None:
        known = np.unique(np.asarray(check_classes(list(classes), "model")))
        return known, encode_labels(labels, known.tolist(), "labels"), ()
    known, codes = np.unique(labels, return_inverse=True)
    if len(known) < 2:
        raise ValueError(
            f"Expected two classes or more, got one class ({known[0]!r}) in the labels. "
            "Declare every class the records may have: classes=..."
        )
    return known, codes, (CLASSES,)


PART = "it is a part of a calibrated classifier, whose statement counts"
SAME = "the records that the classifier and the map were fitted to, which is optimistic"
COVERS = (
    "the weights of the classifier",
    "the map, and every answer that led to it",
    "whether the map was kept, and the noisy gain that decided it",
)
APART = "records that neither the classifier nor the map was fitted to"


class PrivateCalibratedClassifier(
    MappedPredictions,
    ClassifierMixin,  # type: ignore[misc]
    MetaEstimatorMixin,  # type: ignore[misc]
    DisplayMixin,
):
    r"""A private classifier and a private map of its scores, charged as one.

    ``"reuse"`` trains on all records and fits the map to the scores of the *same* records. A
    model trained with differential privacy is nearly as sure of records it has seen as of
    others, so these scores will do, and no record is lost to training. ``"split"`` holds some
    records back for the map, as Zhang et al. 2022 (https://arxiv.org/abs/2210.08248,
    Proposition A.1) do; each part may then cost the whole budget.

    Parameters
    ----------
    estimator : private classifier
        Says what it costs (``event``), takes data sets (``check_records``, ``fit_records``)
        and gives ``logits`` or a ``decision_function``.
    method : PrivateFitter, optional
        How the map is fitted. None: two temperatures where the ``size`` declared here is
        enough for them, otherwise one (:mod:`veracal.calibration.planning`). A number of
        classes, a size, a delta or an epsilon that it was not given is filled in from what is
        declared here.
    recalibrate : {"reuse", "split"}
    epsilon : float > 0, optional
        Total of all parts. The noise of training is then found, whatever the estimator was
        told. None: the parts' own settings count, a map or a guard without an epsilon costs
        0.1, and the total is what they compose to.
    delta : float in [0, 1)
        At which epsilon is meant, here and in ``statement_``.
    share : float in (0, 1), optional
        Share of the total for the map and its guard, with ``"reuse"``. None: what
        :func:`~veracal.calibration.plan_recalibration` advises for the declared size; 0.02
        without one.
    level : str, optional
        Name of the estimator's parameter that is set to meet the total: a noise multiplier,
        or an epsilon. None: ``noise_multiplier`` if there is one, or ``epsilon``. Inside a
        pipeline it must be named.
    holdout : float in (0, 1)
        Share of the records held back, with ``"split"``; with a guard, half of them for it.
    guard : Guard, optional
        Keep the map only if a noisy answer says that it helps; otherwise the identity. It
        costs the same either way. With ``"reuse"`` it is asked of the records of the fit,
        which is optimistic; with ``"split"``, of records of its own.
    classes : sequence of str or int, optional
        Declared classes. None: those of the data set or, in :meth:`fit`, read from the
        labels, so not private.
    size : int, optional
        Declared number of all records. None: the data set's or, in :meth:`fit`, counted, so
        not private under add-remove.
    relation : {"add-remove", "replace-one"}
        The estimator's.
    unit : Unit, optional
        Whom to protect; the estimator's.
    random_state : int, Generator or None
        None, fresh secret entropy, is the only private choice.

    Attributes
    ----------
    estimator_ : private classifier
        Fitted; by itself it claims nothing.
    map_ : Map
        The map that is used: the identity if the guard did not keep what was fitted.
    guarded_ : Guarded or None
        What the guard decided, on which records.
    releases_ : tuple of Release
        Every noisy answer that map and guard were made from.
    classes_ : array of shape (k,)
    event_ : Event or None
    private_ : bool
    not_private_because_ : tuple of str
    statement_ : Statement or NotPrivate
        Where nothing is promised, ``NotPrivate`` says why.

    Guarantees
    ----------
    *Reuse.* Training is a mechanism M₁ on all records. The map is made from answers M₂ about
    scores, which are a function of a record and of what M₁ released; its noises are fixed
    beforehand. This is adaptive composition on the same records, and ``Composed`` is its
    cost, the privacy losses of all parts convolved.

    *Split.* Every unit (under replace-one, every place) draws a secret coin of its own, which
    depends on no other record and on no row number. Given the coins, neighbors differ in one
    part. If that is the training part, map and guard are functions of the released model and
    of records that are the same, so all of it costs what training costs; if it is another
    part, the model has the same law, and the cost is that part's. Whatever the coins, the
    cost is at most the largest of the parts, ``Parallel``, and so it is on average. Parts
    have *declared* sizes, their shares of the whole's; how many records a part has enters
    nowhere (under replace-one it is public).

    *Charged first.* :meth:`event` depends on the settings alone. Inside the fit, answers come
    from a source that was paid for (:class:`veracal.calibration.prepaid.PrepaidSource`): it has
    exactly the noises of the event, each once. The logits of a record depend on that record and
    the model alone, and after :meth:`check_records` no error or warning of :meth:`fit_records`
    tells of a record.

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
    guarded_: GuardResult | None
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
        level: str | None = None,
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
        self.level = level
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
            If the settings are wrong, if the estimator has no cost, or if it protects
            somebody else.
        """
        return self._arranged(self.size).event

    def trainer(self) -> Any:
        """The estimator as it is fitted: with what map and guard leave it of the budget."""
        return self._arranged(self.size).estimator

    def _arranged(self, size: int | None) -> BudgetPlan:
        """The parts, with the settings that they are fitted with."""
        self._check_settings()
        return arranged(
            BudgetSettings(
                self.estimator,
                self.method,
                self.guard,
                self.recalibrate,
                self.epsilon,
                float(self.delta),
                self._share(),
                self.level,
                None if self.classes is None else len(set(self.classes)),
                self._size_of_map(size),
                self._size_of_map(self.size),
                self.relation,
                self.unit,
            )
        )

    def _check_settings(self) -> None:
        """Raise unless the settings of the whole make sense."""
        _checks.one_of(RECALIBRATE, recalibrate=self.recalibrate)
        _checks.one_of(RELATIONS, relation=self.relation)
        for name, kind in (("guard", Guard), ("unit", Unit)):
            if not isinstance(getattr(self, name), kind | None):
                raise ValueError(
                    f"Expected {name} to be a {kind.__name__} or None, got "
                    f"{getattr(self, name)!r}."
                )
        if self.epsilon is not None:
            _checks.positive(epsilon=self.epsilon)
        shares = {"holdout": self.holdout, "share": 0.5 if self.share is None else self.share}
        for name, value in shares.items():
            _checks.fraction(**{name: value})
            if value in (0, 1):
                raise ValueError(f"Expected {name} between 0 and 1, got {name}={value!r}.")
        if self.size is not None:
            _checks.whole(size=self.size)
        _checks.fraction(delta=self.delta)
        if self.delta * (self.size or 1) >= 1:
            raise ValueError(
                f"Expected delta below 1 / size, got delta={self.delta!r} with "
                f"size={self.size}: it would allow publishing some record whole."
            )
        way_of(self.estimator)
        _checks.as_part(estimator=self.estimator)

    def _share(self) -> float:
        """Share of the total for the map and its guard."""
        if self.share is not None:
            return self.share
        if self.size is None or self.epsilon is None:
            return 0.02
        budget = Budget(self.epsilon, self.delta, self.relation, self.unit or Unit())
        classes = 2 if self.classes is None else len(set(self.classes))
        return plan_recalibration(self.size, classes, budget).share

    def _shares(self) -> tuple[float, float, float]:
        """Shares of the records for training, map and guard, if they are dealt."""
        held = self.holdout if self.guard is None else self.holdout / 2
        return 1 - self.holdout, held, self.holdout - held

    def _size_of_map(self, size: int | None) -> int | None:
        """Declared number of records for the map, of all of them."""
        share = self._shares()[1] if self.recalibrate == "split" else 1.0
        return None if size is None else max(1, round(size * share))

    # ------------------------------------------------------------ fit

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to rows X of shape (n, d) and labels y of shape (n,), and say what was inferred.

        It may stop with an error that depends on a record, as scikit-learn demands.
        """
        self._check_settings()
        given = X[:] if isinstance(X, MappedRows) else X
        rows, labels = validate_data(self, given, y, **rows_for(self.estimator))
        check_classification_targets(labels)
        dataset, classes, reasons = dataset_of(
            rows, labels, self.classes, self._known_size(), self.relation
        )
        self._fitted(dataset, self._checked(dataset), reasons)
        self.classes_ = classes
        return self

    def _known_size(self) -> int | None:
        """The declared number of all records, here or by the estimator that gets them all."""
        if self.size is not None or self.recalibrate == "split":
            return self.size
        size: int | None = self.estimator.get_params(deep=False).get("size")
        return size

    def check_records(self, dataset: Dataset) -> None:
        """Refuse a data set that cannot be fitted, by what is public about it.

        :meth:`veracal.queries.Curator.fit` calls this before anything is charged.
        """
        self._checked(dataset)

    def fit_records(self, dataset: Dataset) -> Self:
        """Fit to a data set, whose declared classes, size and norm are taken."""
        parts = self._checked(dataset)
        self.n_features_in_ = dataset.X.shape[1]
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit; arrays have none
        return self._fitted(dataset, parts, ())

    def _fitted(self, dataset: Dataset, parts: BudgetPlan, reasons: tuple[str, ...]) -> Self:
        """Train, repair, and write down what may be claimed."""
        rng = _random.generator(self.random_state)
        # What an earlier fit claimed must not outlive one that is interrupted.
        self.event_, self.not_private_because_ = None, (UNFINISHED,)
        note_charge(self)
        whole = sized(dataset, self.size, self.relation)
        train, fitting, guarding = whole, whole, whole
        if self.recalibrate == "split":
            train, fitting, guarding = dealt(whole, self._shares(), self.relation, rng=rng)
        model = _seeded(parts.estimator, rng).fit_records(train)
        if model.event_ != parts.training:
            raise ValueError(
                f"Training was charged as {parts.training!r}, but its fit says it was "
                f"{model.event_!r}. Do not release anything of this."
            )
        self.estimator_, self.classes_ = model, model.classes_
        self._repair(parts, fitting, guarding, rng)
        own = tuple(model.not_private_because_)
        repeats = () if _random.is_secret(rng) else (REPEATABLE,)
        model.not_private_because_ = (*own, PART)
        self.not_private_because_ = tuple(dict.fromkeys((*reasons, *own, *repeats)))
        self.event_ = parts.event
        return self

    def _repair(
        self, parts: BudgetPlan, fitting: Dataset, guarding: Dataset, rng: np.random.Generator
    ) -> None:
        """Fit the map, and ask the guard."""
        scores = self._scored(fitting)
        made = parts.method.fit(PrepaidSource(scores, parts.mapping, unit=self.unit, rng=rng))
        self.map_, self.releases_, self.guarded_ = made.map_, made.releases_, None
        if parts.guard is not None and parts.guarding is not None:
            apart = parts.recalibrate == "split"
            asked = self._scored(guarding) if apart else scores
            found = guard_map(
                self.map_,
                PrepaidSource(asked, parts.guarding, unit=self.unit, rng=rng),
                epsilon=parts.guard.epsilon,
                beta=parts.guard.beta,
                records=APART if apart else SAME,
            )
            self.guarded_ = replace(found, statement=None)  # it is a part, and claims nothing
            self.map_, self.releases_ = found.map, (*self.releases_, found.release)
        self.gives_ = self.map_.transform(scores.take(np.arange(0))).kind

    def _scored(self, dataset: Dataset) -> Scores:
        """Labeled scores of records by the fitted estimator, without any error."""
        known = self.estimator_.classes_.tolist()
        place = np.array([known.index(label) for label in dataset.classes])
        logits = logits_of(self.estimator_, dataset.X, len(known), without_errors=True)
        return Scores(logits, "logits", tuple(known), place[dataset.y], name=dataset.name)

    def _checked(self, dataset: Dataset) -> BudgetPlan:
        """Refuse what cannot be fitted; otherwise the parts and their settings."""
        check_declared(dataset, self.classes, self.relation, self.unit)
        _random.check_state(self.random_state)
        whole = sized(dataset, self.size, self.relation)
        parts = self._arranged(whole.size)
        if whole.size is None and self.recalibrate == "split":
            raise DataError(
                dataset.name,
                "a declared number of records",
                "none",
                "Give size=... to the model or to the data set: the real number is private.",
            )
        if self.recalibrate == "split":
            whole = in_form(whole, self._shares(), self.relation)
        parts.estimator.check_records(whole)
        return parts

    # ------------------------------------------------------------ claims

    @property
    def private_(self) -> bool:
        """Whether the guarantee of ``event_`` holds for this fit."""
        check_is_fitted(self)
        return self.event_ is not None and not self.not_private_because_

    @property
    def statement_(self) -> Statement | NotPrivate:
        """What this fit promises to whom, computed when asked for."""
        check_is_fitted(self)
        if self.event_ is None or self.not_private_because_:
            return NotPrivate(self.not_private_because_)
        guarded = self.guarded_ is not None
        return statement(
            self.event_,
            self.delta,
            self.unit,
            covers=COVERS[: 2 + guarded],
            **charge_terms(self, self.estimator_),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return "map_" in vars(self)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # At the budgets of small test tables the noise outweighs what there is to learn.
        tags.classifier_tags.poor_score = True
        return tags


def _seeded(model: Any, rng: np.random.Generator) -> Any:
    """A model whose draws repeat themselves if the generator's do."""
    if not _random.is_secret(rng):
        for name in model.get_params():
            if name.split("__")[-1] == "random_state":
                model.set_params(**{name: int(rng.integers(2**32))})
    return model
