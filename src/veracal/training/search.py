"""Private hyperparameter search, charged for all of its trials.

:class:`PrivateSearch` makes a random number of trials and releases the best by a noisy score.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from veracal import _checks, _random
from veracal._types import Array, Floats
from veracal.accounting import (
    REPEATABLE,
    RUN_DISTRIBUTIONS,
    Composed,
    DiscreteGaussian,
    Event,
    Parallel,
    RunDistribution,
    Search,
    rdp_at,
    stopping_rate,
)
from veracal.data import Dataset, Label, split
from veracal.mechanisms import add_discrete_gaussian
from veracal.training.base import PrivateEstimator, TrainingData
from veracal.training.pipeline import PrivatePipeline
from veracal.training.pipeline_steps import is_private_step, synthetic_dataset

Method = TypeVar("Method", bound=Callable[..., Any])


def _if_estimator_has(method: str) -> Callable[[Method], Method]:
    """Decorator: the method exists only if the estimator that is searched has it."""
    decorator: Callable[[Method], Method] = available_if(
        lambda search: hasattr(search.estimator, method)
    )
    return decorator


_BLOCK = 256  # rows that are predicted together


class SearchTrial(NamedTuple):
    """A setting's index in the public list, the fitted model, and its noisy correct count."""

    setting: int
    model: Any
    score: float  # NaN if there was no trial


def search_event(
    trainings: Sequence[Event],
    score: Event,
    mean: float,
    distribution: RunDistribution,
    *,
    held_out: bool,
) -> Event:
    r"""Cost of a search.

    A trial draws the index j of a setting uniformly among m, and releases j, a model and its
    noisy score. Given j, neighbors differ by the divergence of training with setting j
    composed with the score's; the distribution of j is the same for both. So for each order
    :math:`\alpha` a trial's divergence is

    .. math:: \frac{1}{\alpha - 1} \ln \frac1m \sum_j e^{(\alpha - 1) \rho_j(\alpha)}
        \le \max_j \rho_j(\alpha).

    ``Parallel`` without weights is that maximum. It is *inside* the search, where it is taken
    at each order: the theorem uses two orders, at which different settings may cost most.

    Parameters
    ----------
    trainings : sequence of events
        Cost of training with each setting of the public list.
    score : Event
        Cost of a noisy score.
    mean, distribution
        Mean and distribution of the number of trials.
    held_out : bool
        Whether scores use records that no trial is trained on. One record then affects all
        trainings and no score, or all scores and no training, and the cost is the larger of two
        searches.
    """
    distinct = tuple(dict.fromkeys(trainings))
    trials = distinct if held_out else tuple(Composed((one, score)) for one in distinct)
    worst = trials[0] if len(trials) == 1 else Parallel(trials)  # at each order
    search = Search(worst, mean, distribution)
    return Parallel((search, Search(score, mean, distribution))) if held_out else search


def draw_trial_count(
    mean: float, distribution: RunDistribution, *, rng: np.random.Generator
) -> int:
    """Draw the number of trials K from its distribution, which the search's event states.

    See :func:`veracal.accounting.rdp.stopping_rate` for the distributions. K must be kept
    secret.
    """
    if distribution == "poisson":
        return int(rng.poisson(mean))
    rate = stopping_rate(mean, distribution)
    return int(rng.geometric(rate) if distribution == "geometric" else rng.logseries(1 - rate))


def run_trials(
    trial: Callable[[int], SearchTrial], settings: int, number: int, *, rng: np.random.Generator
) -> SearchTrial | None:
    """Run trials of randomly drawn settings, and keep the one with the highest noisy score.

    ``trial`` fits and scores the setting at an index of the public list. Ties are broken by
    independent random numbers, which depend neither on the order of the trials nor on any
    record. The result is None without a trial.

    Guarantees
    ----------
    Nothing is kept of any trial but the best.
    """
    best, highest = None, (-np.inf, -1.0)
    for _ in range(number):
        candidate = trial(int(rng.integers(settings)))
        rank = (candidate.score, rng.random())
        if rank > highest:
            best, highest = candidate, rank
    return best


def noisy_correct_count(
    model: Any, dataset: Dataset, noise: float, *, rng: np.random.Generator
) -> float:
    """Number of correct predictions, with discrete Gaussian noise.

    Guarantees
    ----------
    Adding, removing or replacing one record changes the number by at most 1. The noise is exact
    and uses the system's randomness. A repeatable generator gives rounded Gaussian noise
    instead, for tests and public records.
    """
    exact = count_correct(model, dataset)
    if not _random.is_secret(rng):
        return exact + float(np.rint(rng.normal(0.0, noise)))
    return float(add_discrete_gaussian(np.array([exact]), noise)[0])


def count_correct(model: Any, dataset: Dataset) -> int:
    """Number of records whose label a model predicts; never released without noise.

    All blocks have the same shape, the last one padded with copies of one of its rows, so that
    the prediction of a record has the same bits whatever the other records are.
    """
    dataset, model = unwrap_classifier(model, dataset)
    labels, total = dataset.labels, 0
    for start in range(0, len(dataset), _BLOCK):
        index = np.minimum(np.arange(start, start + _BLOCK), len(dataset) - 1)
        size = min(_BLOCK, len(dataset) - start)
        with np.errstate(all="ignore"):  # a warning would reveal a record
            predicted = model.predict(dataset.X[index])
        total += int((predicted == labels[index])[:size].sum())
    return total


def unwrap_classifier(model: Any, dataset: Dataset) -> tuple[Dataset, Any]:
    """The classifier inside pipelines and searches, and the records transformed for it.

    Scikit-learn would raise an error for values that overflow in a step; here they become zero,
    as they do in the fit.
    """
    while isinstance(model, PrivatePipeline | PrivateSearch):
        if isinstance(model, PrivateSearch):
            model = model.best_estimator_
        else:
            dataset, model = model.transform_dataset(dataset), model.steps[-1][1]
    return dataset, model


Setting = Mapping[str, Any]
WINNER = "it is the best model of a search, whose statement applies"


@dataclass(eq=False, repr=False)
class PrivateSearch(MetaEstimatorMixin, PrivateEstimator):  # type: ignore[misc]
    r"""Try settings of a private classifier and keep the best, charged for all trials.

    A random number of trials is made, each with a setting drawn at random from a public list,
    fresh noise in training, and a *noisy* score: the number of correct predictions with
    discrete Gaussian noise. Only the trial with the highest score is released
    (Papernot and Steinke 2022, https://arxiv.org/abs/2110.03620).

    Parameters
    ----------
    estimator : private classifier or PrivatePipeline
    settings : sequence of dicts, or dict of sequences
        Public list of settings for ``estimator.set_params``. A dict of sequences means
        all combinations.
    mean : float > 1
        Expected number of trials.
    distribution : {"logarithmic", "geometric", "poisson"}
        Distribution of the number of trials. The logarithmic one costs least.
    holdout : float in (0, 1), optional
        Share of the records that is held out for scores, drawn in secret before the first
        trial. None: trials are scored on the records that they are trained on.
    score_noise : float > 0
        Parameter of the discrete Gaussian noise on the number of correct predictions, which
        has sensitivity 1.
    default : int
        Index of the setting that is returned if the Poisson distribution draws no trial.
    delta : float in (0, 1)
        The delta at which ``statement_`` states epsilon.
    classes : sequence of str or int, optional
        Declared classes. None: read from the labels, so not private.
    size : int, optional
        Declared number of all records, which is divided like the records; a size declared by
        the estimator is that of the records it is trained on. None: counted, so not private
        under add-remove.
    relation : {"add-remove", "replace-one"}
        The estimator's.
    unit : Unit, optional
        The privacy unit; a search supports only units of one row.
    random_state : int, Generator or None
        Only None, fresh secret entropy, is private.

    Attributes
    ----------
    best_params_ : dict
        Setting of the best trial.
    best_estimator_ : estimator
        Fitted model of the best trial.
    biased_score_ : float
        Noisy share of correct predictions of the best trial. As the maximum of several scores
        it is biased upwards: **not a result**. NaN without a trial.
    classes_ : array of shape (k,)
    event_, private_, not_private_because_, statement_
        The cost, and what may be claimed.

    Guarantees
    ----------
    *Cost.* One trial is training with the costliest setting and its noisy score; the search is
    charged by :func:`veracal.training.search.search_event`, where the argument is given. The
    number of trials K has the stated distribution, is independent of the records and is not
    released.

    *No trial.* Under the Poisson distribution K may be 0. The default setting is then fitted to
    synthetic records (:func:`veracal.training.pipeline_steps.synthetic_dataset`), so that the
    result has the same distribution for all records; that there was no trial is visible, and
    equally likely for any records.

    *K is not kept.* There is no attribute, log or table of trials. The duration of a fit
    reveals K approximately, and is **not** hidden: do not publish it, nor what a hook of the
    estimator (``on_step``) observes of the trials.

    *Errors.* Settings and the form of the records are checked before anything is charged, by
    what is public; a trial then raises none that depends on a record.

    Examples
    --------
    >>> from veracal.training import PrivateLogisticRegression
    >>> model = PrivateLogisticRegression(epsilon=0.5, sampling_rate=1.0)
    >>> search = PrivateSearch(model, {"optimizer": [0.1, 1.0, 10.0]}, mean=5.0)
    >>> search.event().mean, search.event().distribution
    (5.0, 'logarithmic')
    """

    estimator: Any
    settings: Sequence[Setting] | Mapping[str, Sequence[Any]]
    _: KW_ONLY
    mean: float = 10.0
    distribution: RunDistribution = "logarithmic"
    holdout: float | None = None
    score_noise: float = 10.0
    default: int = 0
    delta: float = 1e-5

    def _check_settings(self) -> None:
        super()._check_settings()
        _checks.positive(mean=self.mean, score_noise=self.score_noise, delta=self.delta)
        _checks.one_of(RUN_DISTRIBUTIONS, distribution=self.distribution)
        Search(self._score_event(), self.mean, self.distribution)
        if self.holdout is not None and not 0 < self.holdout < 1:
            raise ValueError(
                f"Expected a holdout between 0 and 1, got holdout={self.holdout!r}."
            )
        if not is_private_step(self.estimator):
            raise ValueError(
                f"Expected an estimator of veracal.training, got {self.estimator!r}: others "
                "do not state their cost. Put scikit-learn's steps into a PrivatePipeline."
            )
        settings = self._settings()
        if not settings or not all(isinstance(setting, Mapping) for setting in settings):
            raise ValueError(
                f"Expected one setting or more, each a dict, got settings={self.settings!r}."
            )
        _checks.whole(default=self.default, least=0)
        if self.default >= len(settings):
            raise ValueError(
                f"Expected a default below {len(settings)}, got default={self.default!r}."
            )
        for position in range(len(settings)):
            _checks.reject_unsplittable_fit(estimator=self._model(position))

    def _settings(self) -> list[Setting]:
        """The public list of settings."""
        if isinstance(self.settings, Mapping):
            return list(ParameterGrid(dict(self.settings)))
        return list(self.settings)

    def _model(self, position: int) -> Any:
        """A new model with the setting at an index."""
        return clone(self.estimator).set_params(**self._settings()[position])

    def event(self) -> Event:
        """Cost of one fit, known before any record is read.

        Raises
        ------
        ValueError
            If the settings are wrong or not private, or if one trial has no Rényi bound, as
            Poisson batches have none under replace-one.
        """
        self._check_settings()
        cost = search_event(
            self._training_events(),
            self._score_event(),
            self.mean,
            self.distribution,
            held_out=self.holdout is not None,
        )
        rdp_at(cost, 2.0, self.unit)  # raises if the accounting of searches does not cover it
        return cost

    def _cost(self, size: int | None) -> Event | None:
        # Invalid settings were rejected before; others have no cost, and the fit then says that
        # it is not private.
        with suppress(ValueError):
            return self.event()
        return None

    def _training_events(self) -> list[Event]:
        """Cost of training with each setting."""
        events: list[Event] = []
        for position, setting in enumerate(self._settings()):
            cost = self._model(position).event()
            if cost is None or cost.relation != self.relation:
                relation = "nothing" if cost is None else cost.relation
                raise ValueError(
                    f"Expected every setting to be charged under {self.relation}, as the "
                    f"search is, got {relation} for {setting!r}."
                )
            events.append(cost)
        return events

    def _score_event(self) -> DiscreteGaussian:
        """The cost of one noisy score."""
        return DiscreteGaussian(self.score_noise, 1, self.relation)

    def _check_form(self, data: TrainingData) -> None:
        synthetic = self._synthetic(data)
        for position in range(len(self._settings())):
            self._model(position).check_records(synthetic)

    def _learn(self, data: TrainingData, rng: np.random.Generator) -> tuple[str, ...]:
        records = Dataset(data.X, data.codes, _labels(data), size=data.size, norm=data.norm)
        train, scoring = self._split(records, rng)
        charged = None if self._cost(data.size) is None else self._training_events()
        number = draw_trial_count(self.mean, self.distribution, rng=rng)
        reasons: dict[str, None] = {}  # of all trials, since the others are compared, too

        def trial(position: int) -> SearchTrial:
            model = self._fit_model(position, train, rng)
            if charged is not None and model.event_ != charged[position]:
                raise ValueError(
                    f"{self._settings()[position]!r} was charged as {charged[position]!r}, but "
                    f"its fit states {model.event_!r}. Do not release anything of this fit."
                )
            reasons.update(dict.fromkeys(model.not_private_because_))
            score = noisy_correct_count(model, scoring, self.score_noise, rng=rng)
            return SearchTrial(position, model, score)

        best = run_trials(trial, len(self._settings()), number, rng=rng)
        if best is None:
            model = self._fit_model(self.default, self._synthetic(data), rng)
            best = SearchTrial(self.default, model, math.nan)
        self.best_params_ = dict(self._settings()[best.setting])
        self.best_estimator_ = best.model
        self._initial_weights_note = tuple(getattr(best.model, "_initial_weights_note", ()))
        own_reasons = best.model.not_private_because_
        self.biased_score_ = best.score / (data.size * (self.holdout or 1.0))
        # The search states its own reasons separately.
        known = data.reasons if _random.is_secret(rng) else (*data.reasons, REPEATABLE)
        reasons.update(dict.fromkeys(own_reasons))
        if any(
            name.split("__")[-1] == "random_state" and value is not None
            for position in range(len(self._settings()))
            for name, value in self._model(position).get_params().items()
        ):
            reasons[REPEATABLE] = None  # whether or not a trial had that setting
        # On its own, the best model would state the cost of a single trial.
        self.best_estimator_.not_private_because_ = (*own_reasons, WINNER)
        return tuple(reason for reason in reasons if not reason.endswith(known))

    def _fit_model(self, position: int, records: Dataset, rng: np.random.Generator) -> Any:
        """A new model with the setting at an index, fitted."""
        model = self._model(position)
        if not _random.is_secret(rng):
            for name in model.get_params():
                if name.split("__")[-1] == "random_state":
                    model.set_params(**{name: int(rng.integers(2**32))})
        return model.fit_records(records)

    def _split(self, dataset: Dataset, rng: np.random.Generator) -> tuple[Dataset, Dataset]:
        """The records for training, and those for scoring."""
        if self.holdout is None:
            return dataset, dataset
        parts = split(
            dataset,
            (1 - self.holdout, 0.0, self.holdout),
            relation=self.relation,
            fixed_size=self.relation == "replace-one",
            rng=rng,
        )
        assert parts.test is not None
        if self.relation == "replace-one":
            # The size of a partition is public, and may differ from its share by rounding.
            return replace(parts.train, size=len(parts.train)), parts.test
        return parts.train, parts.test

    def _synthetic(self, data: TrainingData) -> Dataset:
        """Synthetic records of the same form as those that a trial is trained on."""
        records = synthetic_dataset(data, self.relation, _labels(data))
        train, _ = self._split(records, np.random.default_rng(0))  # public draws
        return train

    def predict(self, X: ArrayLike) -> Array:
        """The likeliest class of each row, by the best model."""
        check_is_fitted(self)
        labels: Array = self.best_estimator_.predict(X)
        return labels.astype(self.classes_.dtype, copy=False)

    @_if_estimator_has("predict_proba")
    def predict_proba(self, X: ArrayLike) -> Floats:
        """Probabilities of the classes, of shape (n, k), by the best model."""
        check_is_fitted(self)
        result: Floats = self.best_estimator_.predict_proba(X)
        return result

    @_if_estimator_has("predict_log_proba")
    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Logarithms of the probabilities, of shape (n, k), by the best model."""
        check_is_fitted(self)
        result: Floats = self.best_estimator_.predict_log_proba(X)
        return result

    @_if_estimator_has("decision_function")
    def decision_function(self, X: ArrayLike) -> Floats:
        """Scores of the best model, of shape (n,) for two classes, (n, k) for more."""
        check_is_fitted(self)
        result: Floats = self.best_estimator_.decision_function(X)
        return result

    @_if_estimator_has("logits")
    def logits(self, X: ArrayLike) -> Floats:
        """Scores of shape (n, k) of the best model, whose softmax is the probabilities."""
        check_is_fitted(self)
        result: Floats = self.best_estimator_.logits(X)
        return result


def _labels(data: TrainingData) -> tuple[Label, ...]:
    """The classes in a data set's types: integral floats and booleans become integers."""
    known = data.classes
    return tuple((known.astype(np.int64) if known.dtype.kind in "fb" else known).tolist())
