"""Predictions of what a search has found.

Trials of a search: how many, and which one wins.

Hyper-parameter search that is charged.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from veracal import _checks, _random
from veracal._types import Array, Floats
from veracal.accounting import (
    LAWS,
    REPEATABLE,
    Composed,
    DiscreteGaussian,
    Event,
    Law,
    Parallel,
    Relation,
    Search,
    Unit,
    rdp_at,
    stopping_rate,
)
from veracal.data import Dataset, Label, split
from veracal.mechanisms import add_discrete_gaussian
from veracal.training.base import PrivateEstimator, TrainingData
from veracal.training.pipeline import PrivatePipeline
from veracal.training.pipeline_steps import is_private_step, synthesize_records

Method = TypeVar("Method", bound=Callable[..., Any])


def _if_estimator_has(method: str) -> Callable[[Method], Method]:
    """A decorator: the method is there where what is searched has it."""

    def check(search: "BestEstimatorMixin") -> bool:
        getattr(search.estimator, method)  # raises what scikit-learn expects
        return True

    decorator: Callable[[Method], Method] = available_if(check)
    return decorator


class BestEstimatorMixin(MetaEstimatorMixin):  # type: ignore[misc]
    """Whatever predicts by ``best_estimator_``, of the kind of ``estimator``."""

    estimator: Any
    best_estimator_: Any
    classes_: Array

    def predict(self, X: ArrayLike) -> Array:
        """The likeliest class of each row, by the winner."""
        check_is_fitted(self)
        labels: Array = self.best_estimator_.predict(X)
        return labels.astype(self.classes_.dtype, copy=False)

    @_if_estimator_has("predict_proba")
    def predict_proba(self, X: ArrayLike) -> Floats:
        """Probabilities of the classes, of shape (n, k), by the winner."""
        check_is_fitted(self)
        result: Floats = self.best_estimator_.predict_proba(X)
        return result

    @_if_estimator_has("predict_log_proba")
    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Logarithms of the probabilities, of shape (n, k), by the winner."""
        check_is_fitted(self)
        result: Floats = self.best_estimator_.predict_log_proba(X)
        return result

    @_if_estimator_has("decision_function")
    def decision_function(self, X: ArrayLike) -> Floats:
        """Scores of the winner, of shape (n,) for two classes, (n, k) for more."""
        check_is_fitted(self)
        result: Floats = self.best_estimator_.decision_function(X)
        return result

    @_if_estimator_has("logits")
    def logits(self, X: ArrayLike) -> Floats:
        """Scores of shape (n, k) of the winner, whose softmax are the probabilities."""
        check_is_fitted(self)
        result: Floats = self.best_estimator_.logits(X)
        return result


_BLOCK = 256  # rows that are predicted together


@dataclass(frozen=True, eq=False)
class SearchTrial:
    """One run of a search.

    Attributes
    ----------
    setting : int
        Its position in the public list.
    model : estimator
        Fitted.
    score : float
        Noisy number of correct predictions; NaN where nothing was tried.
    """

    setting: int
    model: Any
    score: float


def search_event(
    trainings: Sequence[Event], score: Event, mean: float, law: Law, *, apart: bool
) -> Event:
    r"""What a search costs.

    A trial draws the position j of a setting uniformly among m, and shows j, a model and its
    noisy score. Given j, neighbors differ by the divergence of training with setting j
    composed with the score's; the position is drawn alike for both. So for every order
    :math:`\alpha` a trial's divergence is

    .. math:: \frac{1}{\alpha - 1} \ln \frac1m \sum_j e^{(\alpha - 1) \rho_j(\alpha)}
        \le \max_j \rho_j(\alpha).

    ``Parallel`` without weights is that maximum. It stands *inside* the search, where it is
    taken at every order: the theorem uses two orders, at which different settings may be the
    worst.

    Parameters
    ----------
    trainings : sequence of events
        What training costs, with each setting of the public list.
    score : Event
        What a noisy score costs.
    mean, law
        Of the number of trials.
    apart : bool
        Whether scores are taken on records that no trial is trained on. One record then moves
        all trainings and no score, or all scores and no training, and the cost is the larger
        of two searches.
    """
    distinct = tuple(dict.fromkeys(trainings))
    if apart:
        return Parallel((Search(_worst_event(distinct), mean, law), Search(score, mean, law)))
    return Search(_worst_event(tuple(Composed((one, score)) for one in distinct)), mean, law)


def _worst_event(events: tuple[Event, ...]) -> Event:
    """Whichever event costs most, order by order."""
    return events[0] if len(events) == 1 else Parallel(events)


def draw_trial_count(mean: float, law: Law, *, rng: np.random.Generator) -> int:
    """Draw the number of trials K from its law, which the event of the search names.

    See :func:`veracal.accounting.rdp.stopping_rate` for the laws. It must be told to
    nobody.
    """
    if law == "poisson":
        return int(rng.poisson(mean))
    rate = stopping_rate(mean, law)
    return int(rng.geometric(rate) if law == "geometric" else rng.logseries(1 - rate))


def run_trials(
    trial: Callable[[int], SearchTrial], settings: int, number: int, *, rng: np.random.Generator
) -> SearchTrial | None:
    """Run trials of settings drawn afresh, and keep the one with the highest noisy score.

    Parameters
    ----------
    trial : callable
        Fits and scores the setting at a position.
    settings : int
        How many there are in the public list.
    number : int
        Of trials.

    Returns
    -------
    Trial or None
        Ties go to the highest of independent coins: neither the order of the trials nor any
        record has a say. None without a trial.

    Guarantees
    ----------
    Of all trials but the winner nothing is kept.
    """
    best, highest = None, (-np.inf, -1.0)
    for _ in range(number):
        found = trial(int(rng.integers(settings)))
        rank = (found.score, rng.random())
        if rank > highest:
            best, highest = found, rank
    return best


def noisy_correct_count(
    model: Any, dataset: Dataset, noise: float, *, rng: np.random.Generator
) -> float:
    """Number of correct predictions, with discrete Gaussian noise.

    Guarantees
    ----------
    One record, present, absent or replaced, moves the number by at most 1. The noise is exact
    and comes from the system's randomness. A generator that can be repeated gives rounded
    Gaussian noise instead, for tests and public records.
    """
    exact = count_correct(model, dataset)
    if not _random.is_secret(rng):
        return exact + float(np.rint(rng.normal(0.0, noise)))
    return float(add_discrete_gaussian(np.array([exact]), noise)[0])


def count_correct(model: Any, dataset: Dataset) -> int:
    """Number of records whose label a model predicts; never released as it is.

    Every block has the same shape, the last one filled up with copies of a row of its own:
    whoever stands beside a record, its prediction has the same bits.
    """
    dataset, model = unwrap_classifier(model, dataset)
    labels, total = dataset.labels, 0
    for start in range(0, len(dataset), _BLOCK):
        index = np.minimum(np.arange(start, start + _BLOCK), len(dataset) - 1)
        real = min(_BLOCK, len(dataset) - start)
        with np.errstate(all="ignore"):  # no warning tells of a record
            predicted = model.predict(dataset.X[index])
        total += int((predicted == labels[index])[:real].sum())
    return total


def unwrap_classifier(model: Any, dataset: Dataset) -> tuple[Dataset, Any]:
    """The classifier inside pipelines and searches, and the records as they reach it.

    Scikit-learn would raise an error for numbers that overflow on the way; steps that are
    walked through one by one put zero there, as they did in the fit.
    """
    while isinstance(model, PrivatePipeline | BestEstimatorMixin):
        if isinstance(model, BestEstimatorMixin):
            model = model.best_estimator_
        else:
            dataset, model = model.transform_dataset(dataset), model.steps[-1][1]
    return dataset, model


Setting = Mapping[str, Any]
WINNER = "it is the winner of a search, whose statement counts"


class PrivateSearch(BestEstimatorMixin, PrivateEstimator):
    r"""Try settings of a private classifier and keep the best, charged for all of it.

    A random number of trials is made, each with a setting drawn afresh from a public list,
    fresh noise in training, and a *noisy* score: the number of correct predictions with
    discrete Gaussian noise. The trial with the highest score leaves, and nothing else
    (Papernot and Steinke 2022, https://arxiv.org/abs/2110.03620).

    Parameters
    ----------
    estimator : private classifier or PrivatePipeline
    settings : sequence of dicts, or dict of sequences
        Public list of settings for ``estimator.set_params``. A dict of sequences stands for
        all combinations.
    mean : float > 1
        Expected number of trials.
    law : {"logarithmic", "geometric", "poisson"}
        Law of their number. The logarithmic one costs least.
    holdout : float in (0, 1), optional
        Share of the records that are kept for scores, dealt by secret coins before the first
        trial. None: trials are scored on the records that they are trained on.
    score_noise : float > 0
        Parameter of the discrete Gaussian noise on the number of correct predictions, which
        one record moves by 1.
    default : int
        Position of the setting that is returned where the Poisson law draws no trial at all.
    delta : float in (0, 1)
        For ``statement_``.
    classes : sequence of str or int, optional
        Declared classes. None: read from the labels, so not private.
    size : int, optional
        Declared number of all records, of which parts get their shares; a size of the
        estimator's own is that of the records it is trained on. None: counted, so not private
        under add-remove.
    relation : {"add-remove", "replace-one"}
        The estimator's.
    unit : Unit, optional
        Whom to protect; a search is charged for units of one row only.
    random_state : int, Generator or None
        None, fresh secret entropy, is the only private choice.

    Attributes
    ----------
    best_params_ : dict
        The setting of the winner.
    best_estimator_ : estimator
        The winner, as it was fitted.
    biased_score_ : float
        Noisy share of correct predictions of the winner. It is the best of several, so it is
        biased up: **not a result**. NaN where no trial was made.
    classes_ : array of shape (k,)
    event_ : Event or None
    private_ : bool
    not_private_because_ : tuple of str
    statement_ : Statement or NotPrivate

    Guarantees
    ----------
    *Cost.* One trial is training with the costliest setting and its noisy score; the search is
    charged by :func:`veracal.training.search.search_event`, where the argument is given. The
    number of trials K has the stated law, is independent of the records and is not shown.

    *No trial.* Under the Poisson law K may be 0. The default setting is then fitted to
    made-up records (:func:`veracal.training.pipeline_steps.synthetic_dataset`), so that what is returned
    has the same law for all records; that no trial was made may be seen, and is as likely with
    any records.

    *K is not kept.* There is no attribute, log or table of trials. The time that a fit takes
    does tell of K, and is **not** hidden: do not show it, nor what a hook of the estimator
    (``on_step``) sees of the trials.

    *Errors.* Settings and the form of the records are checked before anything is charged, by
    what is public; a trial then raises none that depends on a record.

    Examples
    --------
    >>> from veracal.training import PrivateLogisticRegression
    >>> model = PrivateLogisticRegression(epsilon=0.5, sampling_rate=1.0)
    >>> search = PrivateSearch(model, {"update": [0.1, 1.0, 10.0]}, mean=5.0)
    >>> search.event().mean, search.event().law
    (5.0, 'logarithmic')
    """

    def __init__(
        self,
        estimator: Any,
        settings: Sequence[Setting] | Mapping[str, Sequence[Any]],
        *,
        mean: float = 10.0,
        law: Law = "logarithmic",
        holdout: float | None = None,
        score_noise: float = 10.0,
        default: int = 0,
        delta: float = 1e-5,
        classes: Sequence[Label] | None = None,
        size: int | None = None,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.estimator = estimator
        self.settings = settings
        self.mean = mean
        self.law = law
        self.holdout = holdout
        self.score_noise = score_noise
        self.default = default
        self.delta = delta
        self.classes = classes
        self.size = size
        self.relation = relation
        self.unit = unit
        self.random_state = random_state

    # ------------------------------------------------------------ settings

    def _check_settings(self) -> None:
        _checks.positive(mean=self.mean, score_noise=self.score_noise, delta=self.delta)
        _checks.one_of(LAWS, law=self.law)
        Search(self._score_event(), self.mean, self.law)
        if self.holdout is not None and not 0 < self.holdout < 1:
            raise ValueError(
                f"Expected a holdout between 0 and 1, got holdout={self.holdout!r}."
            )
        if not is_private_step(self.estimator):
            raise ValueError(
                f"Expected an estimator of veracal.training, got {self.estimator!r}: others "
                "do not say what they cost. Put scikit-learn's steps into a PrivatePipeline."
            )
        listed = self._settings()
        if not listed or not all(isinstance(one, Mapping) for one in listed):
            raise ValueError(
                f"Expected one setting or more, each a dict, got settings={self.settings!r}."
            )
        _checks.whole(default=self.default, least=0)
        if self.default >= len(listed):
            raise ValueError(
                f"Expected a default below {len(listed)}, got default={self.default!r}."
            )
        for position in range(len(listed)):
            _checks.as_part(estimator=self._model(position))

    def _settings(self) -> list[Setting]:
        """The public list."""
        if isinstance(self.settings, Mapping):
            return list(ParameterGrid(dict(self.settings)))
        return list(self.settings)

    def _model(self, position: int) -> Any:
        """A fresh model with the setting at a position."""
        return clone(self.estimator).set_params(**self._settings()[position])

    # ------------------------------------------------------------ cost

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
            self.law,
            apart=self.holdout is not None,
        )
        rdp_at(cost, 2.0, self.unit)  # raises where the accounting of searches has no answer
        return cost

    def _cost(self, size: int | None) -> Event | None:
        # Settings that make no sense were refused before; others have no cost, and the fit
        # then says that it is not private.
        with suppress(ValueError):
            return self.event()
        return None

    def _training_events(self) -> list[Event]:
        """What training costs, with each setting."""
        events: list[Event] = []
        for position, setting in enumerate(self._settings()):
            cost = self._model(position).event()
            if cost is None or cost.relation != self.relation:
                found = "nothing" if cost is None else cost.relation
                raise ValueError(
                    f"Expected every setting to be charged under {self.relation}, as the "
                    f"search is, got {found} for {setting!r}."
                )
            events.append(cost)
        return events

    def _score_event(self) -> DiscreteGaussian:
        """The cost of one noisy score."""
        return DiscreteGaussian(self.score_noise, 1, self.relation)

    def _delta(self) -> float:
        return self.delta

    # ------------------------------------------------------------ fit

    def _check_form(self, data: TrainingData) -> None:
        stand_in = self._stand_in(data)
        for position in range(len(self._settings())):
            self._model(position).check_records(stand_in)

    def _learn(self, data: TrainingData, rng: np.random.Generator) -> tuple[str, ...]:
        train, scored = self._parts(_to_dataset(data), rng)
        charged = None if self._cost(data.size) is None else self._training_events()
        number = draw_trial_count(self.mean, self.law, rng=rng)
        why: dict[str, None] = {}  # of every trial: those that lose are compared, too

        def trial(position: int) -> SearchTrial:
            model = self._fitted_model(position, train, rng)
            if charged is not None and model.event_ != charged[position]:
                raise ValueError(
                    f"{self._settings()[position]!r} was charged as {charged[position]!r}, but "
                    f"its fit says it was {model.event_!r}. Do not release anything of this."
                )
            why.update(dict.fromkeys(model.not_private_because_))
            score = noisy_correct_count(model, scored, self.score_noise, rng=rng)
            return SearchTrial(position, model, score)

        best = run_trials(trial, len(self._settings()), number, rng=rng)
        if best is None:
            model = self._fitted_model(self.default, self._stand_in(data), rng)
            best = SearchTrial(self.default, model, math.nan)
        self.best_params_ = dict(self._settings()[best.setting])
        self.best_estimator_ = best.model
        self._began_with = tuple(getattr(best.model, "_began_with", ()))
        told_by_winner = best.model.not_private_because_
        self.biased_score_ = best.score / (data.size * (self.holdout or 1.0))
        # What the search itself has to say of its random draws is said already.
        told = data.reasons if _random.is_secret(rng) else (*data.reasons, REPEATABLE)
        why.update(dict.fromkeys(told_by_winner))
        if any(self._seeded(position) for position in range(len(self._settings()))):
            why[REPEATABLE] = None  # whether or not a trial had that setting
        # Taken out of the search, the winner would state the cost of one trial.
        self.best_estimator_.not_private_because_ = (*told_by_winner, WINNER)
        return tuple(one for one in why if not one.endswith(told))

    def _seeded(self, position: int) -> bool:
        """Whether a setting has a seed of its own."""
        params = self._model(position).get_params().items()
        return any(n.split("__")[-1] == "random_state" and v is not None for n, v in params)

    def _fitted_model(self, position: int, records: Dataset, rng: np.random.Generator) -> Any:
        """A fresh model with the setting at a position, fitted."""
        model = self._model(position)
        if not _random.is_secret(rng):
            for name in model.get_params():
                if name.split("__")[-1] == "random_state":
                    model.set_params(**{name: int(rng.integers(2**32))})
        return model.fit_records(records)

    def _parts(self, dataset: Dataset, rng: np.random.Generator) -> tuple[Dataset, Dataset]:
        """The records to train on, and those to score on."""
        if self.holdout is None:
            return dataset, dataset
        dealt = split(
            dataset,
            (1 - self.holdout, 0.0, self.holdout),
            relation=self.relation,
            fixed_size=self.relation == "replace-one",
            rng=rng,
        )
        assert dealt.test is not None
        if self.relation == "replace-one":
            # The size of a part is public, and rounding may put it one off its share.
            return replace(dealt.train, size=len(dealt.train)), dealt.test
        return dealt.train, dealt.test

    def _stand_in(self, data: TrainingData) -> Dataset:
        """Made-up records in the form of those that a trial is trained on."""
        whole = synthesize_records(
            data.X,
            _labels(data),
            size=data.size,
            norm=data.norm,
            relation=self.relation,
        )
        train, _ = self._parts(whole, np.random.default_rng(0))  # public coins
        return train


def _labels(data: TrainingData) -> tuple[Label, ...]:
    """The classes as a data set takes them: whole floats and truth values as integers."""
    known = data.classes
    return tuple((known.astype(np.int64) if known.dtype.kind in "fb" else known).tolist())


def _to_dataset(data: TrainingData) -> Dataset:
    """The records of a fit as a data set."""
    return Dataset(data.X, data.codes, _labels(data), size=data.size, norm=data.norm)
