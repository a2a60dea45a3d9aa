"""A search runs the trials it is charged for, and releases one of them.

The number of trials has its distribution, settings and noise are drawn independently for each,
scores are noisy, the split is drawn once, and no attribute of a fit depends on the number of
trials. The cost is compared with that of dp-accounting for the same runs. Trials are counted by
a model that records its training data.
"""

import math
import pickle
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from unittest import mock

import numpy as np
from dp_accounting import dp_event as dp
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from veracal import _random
from veracal.accounting import Composed, Event, Gaussian, Search, epsilon_for
from veracal.data import Dataset
from veracal.training import search as module
from veracal.training import search as trials
from veracal.training.base import LinearClassifier, TrainingData
from veracal.training.preprocessing import shorten_rows
from veracal.training.search import (
    PrivateSearch,
    SearchTrial,
    draw_trial_count,
    noisy_correct_count,
    run_trials,
    search_event,
)

NAME = "search"
ALPHA = 1e-6
MEAN, NOISE, SCORE_NOISE = 4.0, 3.0, 5.0
FITS: list[tuple[Any, TrainingData]] = []  # models and their training data


class Means(LinearClassifier):
    """Noisy sums of clipped rows, class by class; negated for a sign of -1."""

    def __init__(
        self,
        noise_multiplier: float = NOISE,
        sign: float = 1,
        classes: Any = None,
        size: Any = None,
        relation: Any = "add-remove",
        unit: Any = None,
        random_state: Any = None,
    ) -> None:
        self.noise_multiplier, self.sign, self.classes = noise_multiplier, sign, classes
        self.size, self.relation, self.unit = size, relation, unit
        self.random_state = random_state

    def _check_settings(self) -> None:
        pass

    def _cost(self, size: int | None) -> Event:
        return Gaussian(self.noise_multiplier)

    def _learn(self, data: TrainingData, rng: np.random.Generator) -> tuple[str, ...]:
        rows = shorten_rows(np.asarray(data.X[:]), 1.0)
        sums = np.eye(2)[data.codes].T @ rows
        noisy = sums + rng.normal(0, self.noise_multiplier, sums.shape)
        self.coef_ = self.sign * np.diff(noisy, axis=0) / data.size
        self.intercept_ = np.zeros(1)
        FITS.append((self, data))
        return ()


@dataclass(frozen=True)
class Subject:
    """A search and its functions."""

    search: type[PrivateSearch] = PrivateSearch
    draw_trial_count: Callable[..., int] = draw_trial_count
    run_trials: Callable[..., SearchTrial | None] = run_trials
    noisy_correct_count: Callable[..., float] = noisy_correct_count
    search_event: Callable[..., Event] = search_event


# ---------------------------------------------------------------- mutants


def fixed_number(mean: float, law: Any, *, rng: np.random.Generator) -> int:
    """Run exactly the expected number of trials."""
    return round(mean)


def capped_number(mean: float, law: Any, *, rng: np.random.Generator) -> int:
    """Draw a number and stop at twice the mean."""
    return min(draw_trial_count(mean, law, rng=rng), round(2 * mean))


def geometric_number(mean: float, law: Any, *, rng: np.random.Generator) -> int:
    """Draw from the wrong distribution."""
    return draw_trial_count(mean, "geometric", rng=rng)


def zeros_dropped(mean: float, law: Any, *, rng: np.random.Generator) -> int:
    """Run at least one trial."""
    return max(1, draw_trial_count(mean, law, rng=rng))


def by_score(rng: np.random.Generator) -> Callable[[SearchTrial], tuple[float, float]]:
    """The rank of a trial, with random numbers for ties."""
    return lambda one: (one.score, rng.random())


def grid(trial: Any, settings: int, number: int, *, rng: np.random.Generator) -> Any:
    """Try every setting once."""
    return max((trial(position) for position in range(settings)), key=by_score(rng))


def in_turn(trial: Any, settings: int, number: int, *, rng: np.random.Generator) -> Any:
    """Use the settings one after the other."""
    result = [trial(position % settings) for position in range(number)]
    return max(result, key=by_score(rng)) if result else None


def stops_early(trial: Any, settings: int, number: int, *, rng: np.random.Generator) -> Any:
    """Stop at a sufficient score."""
    model: list[SearchTrial] = []
    for _ in range(number):
        model.append(trial(int(rng.integers(settings))))
        if model[-1].score > 60:
            break
    return max(model, key=by_score(rng)) if model else None


def first_of_equals(trial: Any, settings: int, number: int, *, rng: Any) -> Any:
    """Keep the earlier of two equal trials."""
    result = [trial(int(rng.integers(settings))) for _ in range(number)]
    return max(result, key=lambda one: one.score) if result else None


def exact_score(model: Any, dataset: Dataset, noise: float, *, rng: Any) -> float:
    """Count without noise."""
    return float(trials.count_correct(model, dataset))


def half_noise(model: Any, dataset: Dataset, noise: float, *, rng: Any) -> float:
    """Count with half the noise."""
    return noisy_correct_count(model, dataset, noise / 2, rng=rng)


def rounded_share(model: Any, dataset: Dataset, noise: float, *, rng: Any) -> float:
    """Score by the share of the real number of records."""
    return noisy_correct_count(model, dataset, noise, rng=rng) / max(1, len(dataset))


def one_trial(trainings: Any, score: Any, mean: float, law: Any, *, held_out: bool) -> Event:
    """Charge for one trial."""
    return Composed((trainings[0], score))


def score_forgotten(
    trainings: Any, score: Any, mean: float, law: Any, *, held_out: bool
) -> Event:
    """Charge for training alone."""
    return Search(trainings[0], mean, law)


def cheapest(trainings: Any, score: Any, mean: float, law: Any, *, held_out: bool) -> Event:
    """Charge every trial like the cheapest setting."""
    return search_event(
        [max(trainings, key=lambda e: e.noise)], score, mean, law, held_out=held_out
    )


def always_held_out(
    trainings: Any, score: Any, mean: float, law: Any, *, held_out: bool
) -> Event:
    """Charge as if scores were taken on other records, though they are not."""
    return search_event(trainings, score, mean, law, held_out=True)


def fewer(trainings: Any, score: Any, mean: float, law: Any, *, held_out: bool) -> Event:
    """Charge for half as many trials."""
    return search_event(trainings, score, 1 + (mean - 1) / 2, law, held_out=held_out)


class CountKept(PrivateSearch):
    """Keep the number of trials."""

    def _learn(self, data: TrainingData, rng: np.random.Generator) -> tuple[str, ...]:
        before = len(FITS)
        result = super()._learn(data, rng)
        self.n_trials_ = len(FITS) - before
        return result


class TableKept(PrivateSearch):
    """Keep a table of all trials."""

    def _learn(self, data: TrainingData, rng: np.random.Generator) -> tuple[str, ...]:
        before = len(FITS)
        result = super()._learn(data, rng)
        self.results_ = [dict(model.get_params()) for model, _ in FITS[before:]]
        return result


class ScoredOnTraining(PrivateSearch):
    """Hold out records, but score on the training records."""

    def _split(self, dataset: Dataset, rng: np.random.Generator) -> tuple[Dataset, Dataset]:
        train, _ = super()._split(dataset, rng)
        return train, train


class SplitPerTrial(PrivateSearch):
    """Split the records again for every trial."""

    def _fit_model(self, position: int, records: Dataset, rng: Any) -> Any:
        whole = self.__dict__["_whole"]
        return super()._fit_model(position, super()._split(whole, rng)[0], rng)

    def _split(self, dataset: Dataset, rng: np.random.Generator) -> tuple[Dataset, Dataset]:
        self.__dict__["_whole"] = dataset
        return super()._split(dataset, rng)


class FirstRowsHeldOut(PrivateSearch):
    """Hold out the first rows, so that one more record moves another between parts."""

    def _split(self, dataset: Dataset, rng: np.random.Generator) -> tuple[Dataset, Dataset]:
        cut = round(len(dataset) * (self.holdout or 0))
        train = dataset.take(np.arange(cut, len(dataset)))
        size = None if dataset.size is None else round(dataset.size * (1 - (self.holdout or 0)))
        return replace(train, size=size), dataset.take(np.arange(cut))


class SameNoise(PrivateSearch):
    """Give every trial the same noise."""

    def _fit_model(self, position: int, records: Dataset, rng: Any) -> Any:
        return self._model(position).set_params(random_state=7).fit_records(records)


class DefaultFitted(PrivateSearch):
    """Fit the default to the records."""

    def _synthetic(self, data: TrainingData) -> Dataset:
        if len(data.codes) < len(data.X):  # labels that have not been read
            return super()._synthetic(data)
        labels = module._labels(data)
        return Dataset(data.X, data.codes, labels, size=data.size, norm=data.norm)


CORRECT = Subject()
MUTANTS = {
    "a fixed number of trials": Subject(draw_trial_count=fixed_number),
    "a number that is cut off": Subject(draw_trial_count=capped_number),
    "a number of another law": Subject(draw_trial_count=geometric_number),
    "never no trial": Subject(draw_trial_count=zeros_dropped),
    "every setting once (a grid)": Subject(run_trials=grid),
    "settings in turn": Subject(run_trials=in_turn),
    "the search stops early": Subject(run_trials=stops_early),
    "ties to the first": Subject(run_trials=first_of_equals),
    "exact scores": Subject(noisy_correct_count=exact_score),
    "M2 half the noise on scores": Subject(noisy_correct_count=half_noise),
    "M12 scores over the real number": Subject(noisy_correct_count=rounded_share),
    "one trial charged": Subject(search_event=one_trial),
    "scores not charged": Subject(search_event=score_forgotten),
    "the cheapest setting charged": Subject(search_event=cheapest),
    "charged as if held out": Subject(search_event=always_held_out),
    "half of the trials charged": Subject(search_event=fewer),
    "the number of trials is kept": Subject(CountKept),
    "a table of trials is kept": Subject(TableKept),
    "held out, and scored on training": Subject(ScoredOnTraining),
    "records dealt anew for every trial": Subject(SplitPerTrial),
    "first rows held out": Subject(FirstRowsHeldOut),
    "M16 the same noise in every trial": Subject(SameNoise),
    "the default fitted to the records": Subject(DefaultFitted),
}


def run(subject: Subject, *, long: bool) -> str:
    """Check charges, draws, scores and what a search keeps."""
    rng = np.random.default_rng(0)
    with using(subject):
        compare_costs(subject)
        laws = [
            compare_numbers(subject, law, 30 if long else 1) for law in module.RUN_DISTRIBUTIONS
        ]
        compare_ties(subject, rng)
        compare_scores(subject, 5_000 if long else 300)
        compare_trials(subject, rng, 300 if long else 40)
        compare_parts(subject, rng)
        compare_remains(subject, rng)
        compare_default(subject, rng)
    return f"laws of the number of trials at p = {', '.join(f'{p:.2f}' for p in laws)}"


@contextmanager
def using(subject: Subject) -> Any:
    """Let the search call the subject's functions."""
    names = ("draw_trial_count", "run_trials", "noisy_correct_count", "search_event")
    with mock.patch.multiple(module, **{name: getattr(subject, name) for name in names}):
        yield


def searching(subject: Subject, settings: Any = None, **more: Any) -> PrivateSearch:
    """The subject's search over two opposite settings."""
    usual = {"mean": MEAN, "score_noise": SCORE_NOISE, **more}
    return subject.search(Means(), settings or [{"sign": 1}, {"sign": -1}], **usual)


def records(rng: np.random.Generator, n: int = 80) -> Dataset:
    """Records whose first column decides."""
    X = rng.normal(size=(n, 3))
    return Dataset(X, (X[:, 0] > 0).astype(int), ("no", "yes"), size=80)


@contextmanager
def number_of_trials(number: int) -> Any:
    """Fix the number of trials, to compare what they leave."""
    FITS.clear()
    with mock.patch.object(module, "draw_trial_count", return_value=number):
        yield


# ---------------------------------------------------------------- promises


def compare_costs(subject: Subject) -> None:
    """The charge is at least what dp-accounting computes for the same trials."""
    settings = {"noise_multiplier": [6.0, 2.0]}
    for law in module.RUN_DISTRIBUTIONS:
        for held_out in (False, True):
            model = searching(
                subject, settings, distribution=law, holdout=0.3 if held_out else None
            )
            charged, true = charged_for(model.event()), due(law, held_out)
            assert charged >= true * (1 - 1e-6), (
                f"{law}: {charged:.3f} is charged and {true:.3f} is due"
            )
            assert charged <= true * 1.01, f"{law}: {charged:.3f} is more than {true:.3f}"


@lru_cache
def charged_for(event: Event) -> float:
    """Epsilon of an event at a delta."""
    return epsilon_for(event, 1e-5)


@lru_cache
def due(law: str, held_out: bool) -> float:
    """Cost of trials with the costlier setting, by dp-accounting alone."""
    shape = {"poisson": math.inf, "geometric": 1.0, "logarithmic": 0.0}[law]
    training, score = dp.GaussianDpEvent(2.0), dp.ZCDpEvent(0.5 / SCORE_NOISE**2)
    most = 0.0
    for trial in [training, score] if held_out else [dp.ComposedDpEvent([training, score])]:
        accountant = RdpAccountant()
        accountant.compose(dp.RepeatAndSelectDpEvent(trial, MEAN, shape))
        most = max(most, accountant.get_epsilon(1e-5))
    return most


def compare_numbers(subject: Subject, law: Any, rounds: int) -> float:
    """Test the number of trials against its distribution."""
    # The power of the test is random; a fixed seed makes it reproducible.
    rng = _random.secret_generator() if rounds > 1 else np.random.default_rng(1)
    drawn = [subject.draw_trial_count(MEAN, law, rng=rng) for _ in range(3_000 * rounds)]
    hoped = len(drawn) * probabilities(law, 2_000)
    counts = np.bincount(np.minimum(drawn, 1_999), minlength=2_000)
    kept = hoped >= 10
    observed = np.append(counts[kept], counts[~kept].sum())
    expected = np.append(hoped[kept], hoped[~kept].sum())
    result = float(stats.chisquare(observed, expected, sum_check=False).pvalue)
    assert result > ALPHA, f"the number of trials is not {law}: p = {result:.1e}"
    return result


def probabilities(law: str, most: int) -> np.ndarray:
    """Probabilities of no trial, one trial, and so on."""
    k = np.arange(most)
    if law == "poisson":
        result: np.ndarray = stats.poisson.pmf(k, MEAN)
        return result
    if law == "geometric":
        return np.where(k > 0, (1 - 1 / MEAN) ** (k - 1.0) / MEAN, 0.0)
    terms = (1 - LOGARITHMIC) ** k / (np.maximum(k, 1) * math.log(1 / LOGARITHMIC))
    return np.where(k > 0, terms, 0.0)


def _logarithmic() -> float:
    """The parameter of the logarithmic distribution with a mean, by bisection."""
    low, high = 1e-9, 1 - 1e-9
    for _ in range(100):
        middle = (low + high) / 2
        smaller = (1 / middle - 1) / math.log(1 / middle) < MEAN
        low, high = (low, middle) if smaller else (middle, high)
    return low


LOGARITHMIC = _logarithmic()


def compare_scores(subject: Subject, draws: int) -> None:
    """Scores are the number of correct predictions plus noise of the charged distribution."""

    class Right:
        def predict(self, X: Any) -> Any:
            return np.where(X[:, 0] > 0, "yes", "no")

    rng, few = _random.secret_generator(), records(np.random.default_rng(1), 3)
    noise = np.array(
        [
            subject.noisy_correct_count(Right(), few, SCORE_NOISE, rng=rng) - 3
            for _ in range(draws)
        ]
    )
    total = float((noise**2).sum()) / SCORE_NOISE**2
    law = stats.chi2(draws)
    spread = 2 * min(float(law.cdf(total)), float(law.sf(total)))
    assert spread > ALPHA, f"the noise on scores has another spread: p = {spread:.1e}"


def compare_ties(subject: Subject, rng: np.random.Generator) -> None:
    """Among equal trials, the first wins no more often than another."""
    firsts = []
    for _ in range(150):
        model: list[SearchTrial] = []

        def trial(position: int, model: list[SearchTrial] = model) -> SearchTrial:
            model.append(SearchTrial(position, None, 0.0))
            return model[-1]

        firsts.append(subject.run_trials(trial, 2, 3, rng=rng) is model[0])
    share = float(np.mean(firsts))
    assert 0.1 < share < 0.6, f"the first of equals wins in {share:.2f} of all searches"


def compare_trials(subject: Subject, rng: np.random.Generator, number: int) -> None:
    """The drawn number of trials is run, each with an independent setting and noise."""
    settings = [{"sign": sign} for sign in (1, 2, 3)]
    drawn: list[int] = []
    for _ in range(2):
        with number_of_trials(number):
            searching(subject, settings).fit_records(records(rng))
            assert len(FITS) == number, f"{len(FITS)} trials were made, and {number} drawn"
            drawn += [int(model.sign) - 1 for model, _ in FITS]
            noises = {(model.coef_ / model.sign).tobytes() for model, _ in FITS}
            assert len(noises) == number, "trials share their noise"
    pairs = np.zeros((3, 3))
    np.add.at(pairs, (drawn[:-1], drawn[1:]), 1)
    for what, result in (
        ("uniform", stats.chisquare(np.bincount(drawn, minlength=3)).pvalue),
        ("independent", stats.chi2_contingency(pairs + 0.5).pvalue),
    ):
        assert result > ALPHA, f"settings are not drawn {what}: p = {result:.1e}"


def compare_parts(subject: Subject, rng: np.random.Generator) -> None:
    """Held-out records are the same for all trials, and never trained on."""
    scored: list[Dataset] = []

    def watch(model: Any, dataset: Dataset, noise: float, *, rng: Any) -> float:
        scored.append(dataset)
        return subject.noisy_correct_count(model, dataset, noise, rng=rng)

    mine = records(rng)
    assigned = []
    for _ in range(2):
        scored.clear()
        with number_of_trials(4), mock.patch.object(module, "noisy_correct_count", watch):
            searching(subject, holdout=0.4).fit_records(mine)
        parts = [set(data.X[:, 0]) for _, data in FITS]
        held = [set(dataset.X[:, 0]) for dataset in scored]
        assert not any(a & b for a in parts for b in held), "a record is in both parts"
        assert all(a == parts[0] for a in parts), "records change their part between trials"
        assigned.append(parts[0])
    assert assigned[0] != assigned[1], "which records are held out can be foreseen"


def compare_remains(subject: Subject, rng: np.random.Generator) -> None:
    """A search leaves the same attributes after any number of trials."""
    mine = records(rng)
    looks = set()
    for number in (1, 2, 40):
        with number_of_trials(number):
            fitted = searching(subject, [{"sign": 1}]).fit_records(mine)
            names = tuple(sorted(vars(fitted)))
            # Only weights and noisy scores may differ between runs.
            fixed = tuple(repr(v) for v in vars(fitted).values() if isinstance(v, int | str))
            looks.add((names, fixed, len(pickle.dumps(fitted))))
    assert len(looks) == 1, "what is left of a search tells how many trials it made"


def compare_default(subject: Subject, rng: np.random.Generator) -> None:
    """Without a trial no record is used."""
    mine = records(rng)
    with number_of_trials(0):
        fitted = searching(subject, distribution="poisson", default=1).fit_records(mine)
        assert fitted.best_params_ == {"sign": -1}, "without a trial, not the default was taken"
        seen = [data for _, data in FITS if np.isin(np.asarray(data.X), mine.X).any()]
        assert not seen, "without a trial, the default was fitted to the records"
