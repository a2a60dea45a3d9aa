"""Base classes of private classifiers, and the training data they share.

:class:`PrivateEstimator` takes records to a fit and keeps track of what the fit may claim;
:class:`LinearClassifier` predicts from weighted sums of features.

*Initial weights.* A guarantee covers what a fit adds. Weights that were trained before are
taken as public; if they were trained on the same records, the cost of that training adds to the
cost of this one. A fit in this process stores a digest of each of its weight arrays, so that a
later fit that starts from any of them can name it. Weights from a file or from another process
are not recognized.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_expit, log_softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

from veracal import _checks, _random
from veracal._display import DisplayMixin
from veracal._types import Array, Floats, Ints, aligned
from veracal.accounting import (
    RELATIONS,
    REPEATABLE,
    UNFINISHED,
    Event,
    NotPrivate,
    Relation,
    Statement,
    Unit,
    statement,
)
from veracal.data import (
    Dataset,
    Label,
    MappedRows,
    check_classes,
    encode_labels,
    equivalent_positions,
    score_at_positions,
)
from veracal.errors import DataError
from veracal.queries import charge_terms, check_protected, record_charge

_NORM_ENTRIES = 1 << 22  # entries of the rows whose norms are computed together


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class TrainingData:
    """The records of one fit, and the facts about them that are public."""

    X: Array | MappedRows  # of shape (n, d)
    codes: Ints  # positions of the labels among the classes; empty until they are read
    classes: Array
    # Declared number of records. It is the real number if ``reasons`` says so, if replace-one
    # makes it public, or if the model does not use it.
    size: int
    norm: float | None = None  # declared bound on the norm of a row, if any
    # What was read from the records because it was not declared: then the fit is not private.
    reasons: tuple[str, ...] = ()


def infer_training_data(
    X: Array | MappedRows,
    y: Array,
    *,
    classes: Sequence[Label] | None,
    size: int | None,
    relation: Relation,
    needs_size: bool = True,
) -> TrainingData:
    """Use what is declared, and infer the rest, as scikit-learn's interface requires."""
    reasons = []
    codes: Ints
    if classes is None:
        known, codes = np.unique(y, return_inverse=True)
        reasons.append("the classes were read from the labels; declare classes=...")
        if len(known) < 2:
            raise ValueError(
                f"Expected two classes or more, got one class ({known[0]!r}) in the labels. "
                "Declare every class the records may have: classes=..."
            )
    else:
        known = sort_classes(classes)
        codes = encode_labels(y, known.tolist(), "labels")
    if size is None:
        if relation == "add-remove" and needs_size:
            reasons.append("the number of records was read from them; declare size=...")
        size = len(X)
    check_size(size, len(X), relation)
    return TrainingData(X, codes, known, int(size), None, tuple(reasons))


def add_labels(data: TrainingData, dataset: Dataset) -> TrainingData:
    """Read the labels of a data set, as positions among the model's classes."""
    positions = {label: position for position, label in enumerate(data.classes.tolist())}
    codes = np.array([positions[label] for label in dataset.classes])[dataset.y]
    return replace(data, codes=codes)


def sort_classes(classes: Sequence[Label]) -> Array:
    """Declared classes in ascending order, as scikit-learn keeps them."""
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise DataError(
            "model: classes", "a list of labels", repr(classes), "Write classes=[...]."
        )
    return np.unique(np.asarray(check_classes(list(classes), "model")))


def check_dataset(dataset: object) -> None:
    """Reject anything but a data set."""
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"Expected a data set of veracal.data, got {type(dataset).__name__}. Use fit(X, y) "
            "for arrays."
        )


def check_numeric(dataset: Dataset) -> None:
    """Reject anything but a data set of numeric features, by shape and type alone."""
    check_dataset(dataset)
    if dataset.X.ndim != 2 or dataset.X.dtype.kind not in "fu":
        raise DataError(
            f"{dataset.name}: features",
            "numbers of shape (n, d)",
            f"{dataset.X.dtype} of shape (n, {', '.join(map(str, dataset.X.shape[1:]))})",
            "Turn images or text into frozen features first (veracal.neural).",
        )


def check_size(size: int, n: int, relation: Relation) -> None:
    """Reject a size that is not a positive integer, or differs from a public n."""
    _checks.whole(size=size)
    if relation == "replace-one" and size != n:
        raise ValueError(
            f"Expected size={n}, the number of records, which is public under replace-one, "
            f"got size={size!r}."
        )


def row_norms(X: Array | MappedRows) -> Floats:
    """Euclidean norms of all rows in float64, computed block by block."""
    norms = np.empty(len(X))
    rows = max(1, _NORM_ENTRIES // max(1, X.shape[1]))
    for start in range(0, len(X), rows):
        block = np.asarray(X[start : start + rows], dtype=np.float64)
        norms[start : start + len(block)] = _block_norms(block)
    return norms


def _block_norms(rows: Floats) -> Floats:
    """Norms of some rows; rows whose squares would overflow or underflow are scaled first.

    NumPy sums each contiguous row separately, in an order that depends only on its width, so
    that a discontinuous clip rule cannot pick up other rows through rounding.
    """
    rows = np.ascontiguousarray(rows)
    with np.errstate(all="ignore"):
        norms: Floats = np.sqrt(np.square(rows).sum(axis=1))
        extreme = np.flatnonzero(~((norms > 1e-140) & (norms < 1e140)))
        if len(extreme):
            peaks = np.abs(rows[extreme]).max(axis=1, initial=0.0)
            scaled = rows[extreme] / np.where(peaks > 0, peaks, 1.0)[:, None]
            norms[extreme] = peaks * np.sqrt(np.square(scaled).sum(axis=1))
    return norms


PUBLIC_WEIGHTS = "the weights that the training began with, which are taken as public"
_MAX_DIGESTS = 1 << 16  # digests that are kept
_TRAINED_ON: dict[bytes, str] = {}


def record_trained_weights(weights: Iterable[Array], records: str) -> None:
    """Record that weights were trained on the records of a given name."""
    for array in weights:
        if len(_TRAINED_ON) >= _MAX_DIGESTS:
            del _TRAINED_ON[next(iter(_TRAINED_ON))]  # the oldest
        _TRAINED_ON[_digest(array)] = records


def describe_initial_weights(weights: Iterable[Array]) -> tuple[str, ...]:
    """Describe all initial weights of a fit, which its statement does not cover.

    Examples
    --------
    >>> start = np.array([0.25, -0.5])
    >>> describe_initial_weights([start]) == (PUBLIC_WEIGHTS,)
    True
    >>> record_trained_weights([start], "patients")
    >>> describe_initial_weights([start])[0][:73]
    "the weights that the training began with: an earlier fit on 'patients' tr"
    """
    names = dict.fromkeys(_TRAINED_ON.get(_digest(array)) for array in weights)
    known = [
        f"the weights that the training began with: an earlier fit on {name!r} trained them, "
        "and its cost adds to this one where the records are the same"
        for name in names
        if name is not None
    ]
    return tuple(known) or (PUBLIC_WEIGHTS,)


def _digest(weights: Array) -> bytes:
    """Digest of the values in float32, the precision of networks, which avoids a copy."""
    values = np.ascontiguousarray(weights, dtype=np.float32)
    return hashlib.blake2b(values.data, digest_size=16).digest()


_CHECKED_ENTRIES = 1 << 22  # entries of the rows on disk that are checked together
# Attributes about the records, or about the process that holds them, and not about the model.
_INTERNAL = ("internal_", "_blank", "_received_module", "_connection", "_paid")


class ChargedFit:
    """What a fit that is charged may claim: its event, and why it is not private, if so."""

    event_: Event | None
    not_private_because_: tuple[str, ...]
    unit: Unit | None
    _covers = "the weights of the classifier"
    _exact_noise = False  # whether the noise on a release is sampled exactly, on a grid

    @property
    def private_(self) -> bool:
        """Whether this fit has the guarantee of ``event_``."""
        check_is_fitted(self)
        return self.event_ is not None and not self.not_private_because_

    @property
    def statement_(self) -> Statement | NotPrivate:
        """The guarantee of this fit, as text and as JSON; computed on access.

        Epsilon is stated at the ``delta`` among the settings, or at 0 if there is none.
        """
        if not self.private_:
            return NotPrivate(self.not_private_because_)
        assert self.event_ is not None
        return statement(
            self.event_,
            float(getattr(self, "delta", 0.0)),
            self.unit,
            covers=(self._covers,),
            exact_noise=self._exact_noise,
            **charge_terms(self),
        )


@dataclass(eq=False, repr=False, kw_only=True)
class CommonSettings:
    """The settings of all private classifiers, which data classes of others extend."""

    classes: Sequence[Label] | None = None
    size: int | None = None
    relation: Relation = "add-remove"
    unit: Unit | None = None
    random_state: int | np.random.Generator | None = None


class PrivateEstimator(CommonSettings, ChargedFit, ClassifierMixin, DisplayMixin, ABC):  # type: ignore[misc]
    """A classifier whose cost is known before it reads a record.

    A final class is a data class of its settings, or stores them itself. It states its cost in
    ``_cost``, and learns in ``_learn`` from records that this class has checked.

    Guarantees
    ----------
    :meth:`fit` may stop with an error that depends on a record, as scikit-learn demands (a
    NaN, an undeclared label), and infers what was not declared; ``private_`` is then False
    and ``statement_`` gives the reasons. :meth:`fit_records` infers nothing, and records that
    pass :meth:`check_records` raise no error that depends on a record. Copies and pickles
    contain no internal figure.
    """

    charged_: bool
    _ledger_total: str | None = None
    _initial_weights_note: tuple[str, ...]  # what the statement says about the initial weights
    _records_name: str = "arrays"
    _needs_size: bool = True  # whether the fit depends on the number of records

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
        """Cost of one fit with a declared size; None if the fit is not private."""

    def _check_settings(self) -> None:
        """Raise unless the settings are valid, private or not; a final class extends it."""
        _checks.one_of(RELATIONS, relation=self.relation)
        if not isinstance(self.unit, Unit | None):
            raise ValueError(f"Expected unit to be a Unit or None, got {self.unit!r}.")
        if self.size is not None:
            _checks.whole(size=self.size)

    @abstractmethod
    def _learn(self, data: TrainingData, rng: np.random.Generator) -> tuple[str, ...]:
        """Learn from checked records; return the reasons why the result is not private."""

    def _check_kind(self, dataset: Dataset) -> None:
        """Reject records of a type that the model does not take, by shape and type alone."""
        check_numeric(dataset)

    def _check_form(self, data: TrainingData) -> None:
        """Reject records that do not fit the model, by their width and classes alone."""

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, classes: Sequence[Label] | None = None
    ) -> Self:
        """Fit to finite rows X of shape (n, d) and labels y of shape (n,).

        Parameters
        ----------
        X : array, numpy.memmap or MappedRows
            A matrix on disk is read block by block.
        y : array
        classes : sequence of str or int, optional
            Declared classes, if the model does not declare them.
        """
        self.__dict__.pop("_records_name", None)
        return self._fit_data(self._training_data(X, y, classes))

    def _training_data(
        self, X: Any, y: Any, classes: Sequence[Label] | None = None
    ) -> TrainingData:
        """Checked rows and labels, from which nothing is learned yet."""
        self._check_settings()
        _random.check_state(self.random_state)
        rows, labels = self._validate(X, y)
        data = infer_training_data(
            rows,
            labels,
            classes=self.classes if classes is None else classes,
            size=self.size,
            relation=self.relation,
            needs_size=self._needs_size,
        )
        self._check_form(data)
        return data

    def check_records(self, dataset: Dataset) -> None:
        """Reject a data set that cannot be fitted, by public facts alone.

        :meth:`veracal.queries.Curator.fit` calls this before anything is charged.
        """
        self._check_kind(dataset)
        self._check_settings()
        _random.check_state(self.random_state)
        self._check_form(self._public(dataset))

    def fit_records(self, dataset: Dataset) -> Self:
        """Fit to a data set, with its declared classes, size and norm."""
        self.check_records(dataset)
        self.n_features_in_ = dataset.X.shape[1]
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit; arrays have none
        self._records_name = dataset.name
        return self._fit_data(add_labels(self._public(dataset), dataset))

    def _public(self, dataset: Dataset) -> TrainingData:
        """What the data set or the model declares; reads no record, so infers nothing.

        If this process holds only a share of the records, the declared size is that of all of
        them. A :class:`~veracal.errors.DataError` depends on public facts alone, so that it may
        be raised before anything is charged.
        """
        check_protected(dataset, self.relation, self.unit)
        size = dataset.size if self.size is None else self.size
        if size is None and (self.relation == "replace-one" or not self._needs_size):
            size = len(dataset) if self._needs_size else max(1, len(dataset))
        if size is None:
            raise DataError(
                dataset.name,
                "a declared number of records",
                "none",
                "Give size=... to the model or to the data set: the real number is private.",
            )
        check_size(size, len(dataset) if self._all_here else size, self.relation)
        known = sort_classes(dataset.classes if self.classes is None else self.classes)
        if set(known.tolist()) != set(dataset.classes):
            raise DataError(
                f"{dataset.name}: classes",
                f"the classes of the model, {known.tolist()}",
                repr(list(dataset.classes)),
                "Declare the same classes on both sides.",
            )
        return TrainingData(dataset.X, np.empty(0, dtype=int), known, int(size), dataset.norm)

    @property
    def _all_here(self) -> bool:
        """Whether this process holds all records of the fit."""
        return True

    def _fit_data(self, data: TrainingData) -> Self:
        """Learn from the records, and record what the fit may claim."""
        cost = self._cost(data.size)
        rng = _random.generator(self.random_state)
        reasons = data.reasons
        if not _random.is_secret(rng):
            reasons += (REPEATABLE,)
        self.classes_ = data.classes
        # The claims of an earlier fit must not remain if this one is interrupted.
        self.event_, self.not_private_because_ = None, (UNFINISHED,)
        self._note_charge()
        self._initial_weights_note = ()
        with np.errstate(all="ignore"):  # an error or a warning would reveal a record
            reasons += self._learn(data, rng)
        if cost is None and not reasons:
            reasons = ("its settings have no cost that could be stated",)
        self.not_private_because_ = reasons
        self.event_ = cost  # computed before the fit, which therefore cannot change it
        return self

    def _note_charge(self) -> None:
        """Record whether a ledger was charged for this fit, and the ledger's total."""
        record_charge(self)

    def _validate(self, X: Any, y: Any) -> tuple[Array | MappedRows, Array]:
        """Rows and labels, validated as scikit-learn requires."""
        rows = MappedRows.of(X) if isinstance(X, np.memmap) and X.ndim == 2 else X
        if isinstance(rows, MappedRows):
            for block in rows.windows(max(1, _CHECKED_ENTRIES // max(1, rows.shape[1]))):
                check_array(block, dtype=None, estimator=self)
            labels = column_or_1d(y, warn=True)
            self.n_features_in_ = rows.shape[1]
        else:
            rows, labels = validate_data(
                self, X, y, dtype=[np.float64, np.float32], ensure_min_samples=1
            )
        check_classification_targets(labels)
        if len(labels) != len(rows):
            raise ValueError(
                f"Expected one label for each of {len(rows)} rows, got {len(labels)}."
            )
        return rows, labels

    @abstractmethod
    def logits(self, X: ArrayLike) -> Floats:
        """Scores of shape (n, k) whose softmax is :meth:`predict_proba`."""

    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Logarithms of the probabilities of the classes, of shape (n, k)."""
        result: Floats = log_softmax(self.logits(X), axis=1)
        return result

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Probabilities of the classes, of shape (n, k)."""
        return np.exp(self.predict_log_proba(X))

    def __getstate__(self) -> dict[str, Any]:
        """State for copies and files: the model without anything internal.

        pickle, joblib, copy.deepcopy and torch.save use it, also for estimators that contain
        this one.
        """
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in _INTERNAL}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # On the small tables of scikit-learn's checks the noise exceeds the signal.
        tags.classifier_tags.poor_score = True
        return tags


_BLOCK = 256  # rows multiplied together
_TRIAL_SUMS = 40  # sums over synthetic rows, enough to reveal another order of additions
_SATURATED = 700.0  # beyond it the logistic function is 1 in float64


def margins(X: Array | MappedRows, coef: Floats, intercept: Floats) -> Floats:
    r"""Weighted sums :math:`x_i \cdot w_c + b_c`, of shape (n, k).

    Guarantees
    ----------
    The sums of a row have the same bits whatever the other rows are, under the conditions of
    :func:`veracal.data.score_at_positions`.
    """
    k, d = coef.shape
    # Positions in a block at which a product sums in the same order. The weights of the trial
    # are synthetic: zeros among real weights would hide differences in the order of additions.
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((k, d)).astype(coef.dtype)
    trials = max(4, _TRIAL_SUMS // k)
    rows = rng.standard_normal((trials + 1, d)).astype(coef.dtype)
    positions = equivalent_positions(
        lambda block: block @ weights.T, np.resize(rows, (_BLOCK, d)), trials
    )
    result, done = np.empty((len(X), k), dtype=np.float64), 0
    block, coef = np.empty((_BLOCK, d), dtype=coef.dtype), aligned(coef)
    for sums in score_at_positions(lambda rows: rows @ coef.T, X, positions, block):
        result[done : done + len(sums)] = sums + intercept
        done += len(sums)
    return result


def one_vs_rest_logits(sums: Floats) -> Floats:
    r"""Logits :math:`\ln\sigma(s)` of classes learned one against the rest.

    Beyond s = 700 they soon underflow to 0 in float64. There :math:`700\ln\sigma(700)/s`
    replaces them, which differs by less than 1e-304 and keeps rising, so that the largest sum
    has the largest logit.

    Examples
    --------
    >>> int(one_vs_rest_logits(np.array([0.0, 1000.0, 2000.0])).argmax())
    2
    """
    logits: Floats = log_expit(np.minimum(sums, _SATURATED))
    return logits * (_SATURATED / np.maximum(sums, _SATURATED))


class LinearClassifier(PrivateEstimator):
    """A private classifier with ``coef_`` and ``intercept_``, in scikit-learn's shapes.

    Two classes have one row of weights, more have one row for each class. ``_one_vs_rest``
    says whether those rows were learned one against the rest.
    """

    coef_: Floats
    intercept_: Floats
    _one_vs_rest: bool = False
    rows_independent = True  # margins computes each row independently of the others

    def decision_function(self, X: ArrayLike) -> Floats:
        """Weighted sums: of shape (n,) for two classes, (n, k) for more."""
        sums = self._margins(X)
        return sums[:, 0] if sums.shape[1] == 1 else sums

    def logits(self, X: ArrayLike) -> Floats:
        """Scores of shape (n, k) whose softmax is :meth:`predict_proba`."""
        sums = self._margins(X)
        if sums.shape[1] == 1:
            return np.hstack([np.zeros_like(sums), sums])
        return one_vs_rest_logits(sums) if self._one_vs_rest else sums

    def predict(self, X: ArrayLike) -> Array:
        """The likeliest class of each row."""
        sums = self._margins(X)
        chosen = (sums[:, 0] > 0).astype(int) if sums.shape[1] == 1 else sums.argmax(axis=1)
        labels: Array = self.classes_[chosen]
        return labels

    def _margins(self, X: Any) -> Floats:
        """Weighted sums of checked rows, of shape (n, rows of weights)."""
        check_is_fitted(self)
        if not isinstance(X, MappedRows):
            X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        elif X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"Expected {self.n_features_in_} features, got {X.shape[1]} in {X!r}."
            )
        return margins(X, self.coef_, self.intercept_)
