"""A calibrated classifier costs what it says, and asks for nothing that was not paid.

Costs are compared with those of the parts, put together by hand. Noise on the answers is
compared with the law that was charged, through whole fits. Parts are disjoint, dealt by coins
that know neither rows nor classes, and have declared sizes. The source inside a fit gives every
announced answer once; a record's logits are its own bits, and no error tells of a record.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
from scipy import stats

from veracal.calibration import classifier as module
from veracal.calibration import scoring
from veracal.calibration.arranging import Arrangement, Guard
from veracal.calibration.bins import Bins
from veracal.calibration.classifier import PrivateCalibratedClassifier
from veracal.calibration.maps import Identity
from veracal.calibration.paid import Paid
from veracal.calibration.parts import dealt
from veracal.calibration.private import PrivateBinning, PrivateTemperature
from veracal.calibration.queries import BrierGain, CorrectWrong, Gap
from veracal.calibration.scoring import logits_of
from veracal.data import Dataset, Scores, split
from veracal.errors import BudgetError
from veracal.privacy import (
    Composed,
    Event,
    Gaussian,
    Parallel,
    Repeated,
    epsilon_for,
    laplace_event,
)
from veracal.training.facts import Facts
from veracal.training.linear import LinearClassifier

NAME = "recalibration"
ALPHA = 1e-6
NOISE, MAP, GUARD = 3.0, 400_000, 300_000  # of training; millionths of epsilon
ONE = Bins(1)
FITS: list[Facts] = []
ASKED: list[Scores] = []


class Known(LinearClassifier):
    """Public weights that are charged as if they had been learnt."""

    def __init__(
        self,
        noise_multiplier: float = NOISE,
        classes: Any = None,
        size: Any = None,
        relation: Any = "add-remove",
        unit: Any = None,
        random_state: Any = None,
    ) -> None:
        self.noise_multiplier, self.classes, self.size = noise_multiplier, classes, size
        self.relation, self.unit, self.random_state = relation, unit, random_state

    def _check_settings(self) -> None:
        pass

    def _cost(self, size: int | None) -> Event:
        return Gaussian(self.noise_multiplier, relation=self.relation)

    def _learn(self, facts: Facts, rng: np.random.Generator) -> tuple[str, ...]:
        FITS.append(facts)
        self.coef_, self.intercept_ = np.array([[1.0, 0.0]]), np.zeros(1)
        return ()


@dataclass(frozen=True)
class Subject:
    """A classifier, and what it is made of."""

    classifier: type[PrivateCalibratedClassifier] = PrivateCalibratedClassifier
    paid: type[Paid] = Paid
    dealt: Callable[..., Any] = dealt
    logits_of: Callable[..., Any] = logits_of


# ---------------------------------------------------------------- mutants


def charged_as(event: Callable[[Arrangement], Event]) -> Subject:
    """Charge something else, before and after the fit."""

    class Charged(PrivateCalibratedClassifier):
        def _arranged(self, size: int | None) -> Any:
            parts = super()._arranged(size)

            class Cheaper(Arrangement):
                @property
                def event(self) -> Event:
                    return event(parts)

            return Cheaper(**{name: getattr(parts, name) for name in vars(parts)})

    return Subject(Charged)


def scaled(factor: float) -> type[Paid]:
    """Noise of another size than announced."""

    class Scaled(Paid):
        __slots__ = ()

        def _release(self, query: Any, event: Any, micro_epsilon: Any) -> Any:
            least = replace(event, noise=max(factor * event.noise, 1e-9))
            return replace(super()._release(query, least, micro_epsilon), event=event)

    return Scaled


class FixedSeed(Paid):
    """Draw the noise of every fit from one seed, and call it private."""

    __slots__ = ()

    def _release(self, query: Any, event: Any, micro_epsilon: Any) -> Any:
        self._rng = np.random.default_rng(0)
        return replace(super()._release(query, event, micro_epsilon), private=True)


class Twice(Paid):
    """Never strike an answer off."""

    __slots__ = ()

    def _answered(self, query: Any, event: Any, micro_epsilon: Any, request: Any) -> Any:
        self._left[event] = max(self._left[event], 1 if event in self._left else 0)
        found = super()._answered(query, event, micro_epsilon, request)
        self._left[event] += 1
        return found


class AnyPrice(Paid):
    """Answer whatever is asked, as long as answers are left."""

    __slots__ = ()

    def _answered(self, query: Any, event: Any, micro_epsilon: Any, request: Any) -> Any:
        if event not in self._left and sum(self._left.values()):
            self._left.subtract([next(iter(+self._left))])
            self._left[event] += 1
        return super()._answered(query, event, micro_epsilon, request)


class FailuresFree(Paid):
    """Give an answer back that could not be computed."""

    __slots__ = ()

    def _release(self, query: Any, event: Any, micro_epsilon: Any) -> Any:
        try:
            return super()._release(query, event, micro_epsilon)
        except Exception:
            self._left[event] += 1
            raise


class Copied(Paid):
    """Let itself be copied."""

    __slots__ = ()

    def __deepcopy__(self, memo: Any) -> "Copied":
        twin = object.__new__(Copied)
        for name in Paid.__slots__:
            setattr(twin, name, getattr(self, name))
        twin._left, twin._given = self._left.copy(), {}
        return twin


def first_rows(dataset: Dataset, shares: Any, relation: Any, *, rng: Any) -> Any:
    """Hold the last rows back."""
    ends = np.cumsum(np.array(shares) * len(dataset)).astype(int)
    pieces = np.split(np.arange(len(dataset)), ends[:2])
    parts = [dataset.take(rows) for rows in pieces]
    sizes = [max(1, round((dataset.size or 0) * share)) for share in shares]
    made = [replace(part, size=size) for part, size in zip(parts, sizes, strict=True)]
    return made[0], made[1], made[2] if shares[2] else made[1]


def exact_shares(dataset: Dataset, shares: Any, relation: Any, *, rng: Any) -> Any:
    """Hold back exact shares, so that one record more moves another."""
    made = split(dataset, shares, relation="replace-one", fixed_size=True, rng=rng)
    assert made.calibration is not None
    return made.train, made.calibration, made.test or made.calibration


def published(dataset: Dataset, shares: Any, relation: Any, *, rng: Any) -> Any:
    """Deal by a seed that everybody knows."""
    return dealt(dataset, shares, relation, rng=np.random.default_rng(2026))


def balanced(dataset: Dataset, shares: Any, relation: Any, *, rng: Any) -> Any:
    """Hold back as many of each class."""
    order = np.argsort(dataset.y + 0.5 * rng.random(len(dataset)))
    coins = np.empty(len(dataset))
    coins[order] = ((np.arange(len(order)) * 7) % 10 + rng.random(len(order))) / 10
    place = np.searchsorted(np.cumsum(shares)[:2], coins, side="right")
    sizes = [max(1, round((dataset.size or 0) * share)) for share in shares]
    made = [replace(dataset.take(place == i), size=size) for i, size in enumerate(sizes)]
    return made[0], made[1], made[2] if shares[2] else made[1]


def counted(dataset: Dataset, shares: Any, relation: Any, *, rng: Any) -> Any:
    """Give parts the sizes that they have."""
    parts = dealt(dataset, shares, relation, rng=rng)
    return tuple(replace(part, size=max(1, len(part))) for part in parts)


def map_on_training(dataset: Dataset, shares: Any, relation: Any, *, rng: Any) -> Any:
    """Fit the map to records of the training, and charge as if apart."""
    train, _, last = dealt(dataset, shares, relation, rng=rng)
    return train, train, last


def guard_on_map(dataset: Dataset, shares: Any, relation: Any, *, rng: Any) -> Any:
    """Ask the guard of the map's records, and charge as if apart."""
    train, held, _ = dealt(dataset, shares, relation, rng=rng)
    return train, held, held


def all_at_once(model: Any, X: Any, classes: int, *, without_errors: bool = False) -> Any:
    """Score all rows in one product."""
    if not len(X):
        return np.empty((0, classes))
    values = np.asarray(model.logits(X[:]), dtype=np.float64)
    return np.nan_to_num(values) if without_errors else values


def padded_only(model: Any, X: Any, classes: int, *, without_errors: bool = False) -> Any:
    """Score blocks of one shape, wherever in it a row stands."""
    with mock.patch.object(scoring, "places_alike", return_value=np.arange(256)):
        return logits_of(model, X, classes, without_errors=without_errors)


def errors_shown(model: Any, X: Any, classes: int, *, without_errors: bool = False) -> Any:
    """Let errors of the model through."""
    return logits_of(model, X, classes)


def normalized(model: Any, X: Any, classes: int, *, without_errors: bool = False) -> Any:
    """Take the mean of all rows off each."""
    found = logits_of(model, X, classes, without_errors=without_errors)
    return found - found.mean(axis=0, keepdims=True) if len(found) else found


class PartClaims(PrivateCalibratedClassifier):
    """Leave the trained model with the statement of its own, smaller cost."""

    def _fitted(self, *given: Any) -> Any:
        result = super()._fitted(*given)
        self.estimator_.not_private_because_ = ()
        return result


class ReadsInSilence(PrivateCalibratedClassifier):
    """Infer classes and size, and say nothing of it."""

    def _fitted(self, dataset: Any, parts: Any, reasons: Any) -> Any:
        return super()._fitted(dataset, parts, ())


class SizeFromRecords(PrivateCalibratedClassifier):
    """Let the share of the map depend on how many records there are."""

    def _checked(self, dataset: Any) -> Any:
        parts = super()._checked(dataset)
        method = PrivateTemperature(epsilon=40 / (100 + len(dataset)))
        return replace(parts, method=method, mapping=method.event())


CORRECT = Subject()
MUTANTS = {
    "the map is not charged": charged_as(
        lambda parts: replace(parts, mapping=None).event  # type: ignore[arg-type]
    ),
    "the guard is not charged": charged_as(lambda parts: replace(parts, guarding=None).event),
    "reuse charged as a split": charged_as(
        lambda parts: replace(parts, recalibrate="split").event
    ),
    "training is not charged": charged_as(lambda parts: parts.mapping),
    "the cost depends on the records": Subject(SizeFromRecords),
    "M1 no noise on answers": Subject(paid=scaled(0.0)),
    "M2 half the noise on answers": Subject(paid=scaled(0.5)),
    "M3 less noise by a seventh": Subject(paid=scaled(0.85)),
    "M15 one seed for all fits": Subject(paid=FixedSeed),
    "the source answers twice": Subject(paid=Twice),
    "the source answers at any price": Subject(paid=AnyPrice),
    "failures are free": Subject(paid=FailuresFree),
    "copies of the source answer anew": Subject(paid=Copied),
    "split by row number": Subject(dealt=first_rows),
    "exact shares under add/remove": Subject(dealt=exact_shares),
    "split by a published seed": Subject(dealt=published),
    "split balanced by class": Subject(dealt=balanced),
    "sizes of parts are counted": Subject(dealt=counted),
    "split, and the map on training": Subject(dealt=map_on_training),
    "split, and the guard on the map's": Subject(dealt=guard_on_map),
    "logits of all rows in one product": Subject(logits_of=all_at_once),
    "logits by place in a block": Subject(logits_of=padded_only),
    "errors tell of a record": Subject(logits_of=errors_shown),
    "logits less their mean": Subject(logits_of=normalized),
    "a part states its own cost": Subject(PartClaims),
    "what was read is not said": Subject(ReadsInSilence),
}


def run(subject: Subject, *, long: bool) -> str:
    """Charge, deal, ask and look at what is claimed."""
    rng = np.random.default_rng(0)
    with using(subject):
        compare_costs(subject)
        compare_source(subject)
        compare_logits(subject, rng)
        compare_sizes(subject, rng)
        compare_parts(subject, rng, 200 if long else 30)
        compare_claims(subject, rng)
        found = compare_noise(subject, rng, 1_000 if long else 100)
    return f"noise of whole fits at p = {found:.2f}"


@contextmanager
def using(subject: Subject) -> Iterator[None]:
    """Let the classifier call the subject's functions, and watch whom it asks about."""

    class Watching(subject.paid):  # type: ignore[misc,name-defined]
        __slots__ = ()

        def __init__(self, scores: Scores, event: Event, **more: Any) -> None:
            ASKED.append(scores)
            super().__init__(scores, event, **more)

    changed = {"Paid": Watching, "dealt": subject.dealt, "logits_of": subject.logits_of}
    with mock.patch.multiple(module, **changed):
        yield


def fitted(subject: Subject, data: Dataset, **settings: Any) -> Any:
    """A fit, and in ``FITS`` and ``ASKED`` what it looked at."""
    FITS.clear()
    ASKED.clear()
    return made(subject, **settings).fit_records(data)


def made(subject: Subject, **settings: Any) -> PrivateCalibratedClassifier:
    """A classifier of the subject's, with everything to ask for."""
    usual = {"method": PrivateTemperature(micro_epsilon=MAP), "guard": Guard(GUARD / 1e6)}
    return subject.classifier(Known(), **{**usual, **settings})


def records(rng: np.random.Generator, n: int = 200, size: int = 200) -> Dataset:
    """Records whose first column decides."""
    X = rng.normal(size=(n, 2))
    return Dataset(X, (X[:, 0] + rng.normal(size=n) > 0).astype(int), (0, 1), size=size)


# ---------------------------------------------------------------- promises


def compare_costs(subject: Subject) -> None:
    """What is charged is what training, every answer and the guard cost, put together."""
    shares = [MAP * share // 100 for share in (15, 12, 24, 49)]
    counts = laplace_event(CorrectWrong(ONE), shares[0], "add-remove")
    gaps = [laplace_event(Gap(), share, "add-remove") for share in shares[1:]]
    gain = laplace_event(BrierGain(Identity()), GUARD, "add-remove")
    training, mapping = Gaussian(NOISE), Composed((counts, *gaps))
    for how, due in (
        ("reuse", Composed((training, mapping, gain))),
        ("split", Parallel((training, mapping, gain))),
    ):
        model = made(subject, recalibrate=how)
        charged, true = epsilon_for(model.event(), 1e-5), epsilon_for(due, 1e-5)
        assert charged >= true * (1 - 1e-6), f"{how}: {charged:.3f} charged, {true:.3f} due"
        assert charged <= true * 1.001, f"{how}: {charged:.3f} is more than {true:.3f}"
        for n in (0, 3, 500):
            told = model.fit_records(records(np.random.default_rng(1), n)).event_
            assert told == model.event(), f"{how}: another cost for {n} records"
            asked = [release.event for release in model.releases_]
            assert asked == [counts, *gaps, gain], f"{how}: answers have another noise"


def compare_source(subject: Subject) -> None:
    """Every announced answer is given once, at its price, and lost if it fails."""
    query, scores = CorrectWrong(ONE), Scores.from_logits(np.zeros((5, 2)), [0] * 5)
    event = laplace_event(query, MAP, "add-remove")

    class Broken(CorrectWrong):
        def evaluate(self, records: Any) -> Any:
            raise RuntimeError("on purpose")

    def answers(source: Paid, price: int, tries: int, asked: Any = query) -> int:
        given = 0
        for i in range(tries):
            with suppress(BudgetError):
                source.answer(asked, micro_epsilon=price, request=f"{price} {i}")
                given += 1
        return given

    source = subject.paid(scores, Repeated(event, 2))
    assert answers(source, 2 * MAP, 3) == 0, "an answer at another price was given"
    found = answers(source, MAP, 9)
    assert found == 2, f"{found} answers were given, and 2 announced"
    broken = subject.paid(scores, event)
    with suppress(RuntimeError):
        broken.answer(Broken(ONE), micro_epsilon=MAP, request="fails")
    assert answers(broken, MAP, 2) == 0, "an answer that failed was given once more"
    twin, source = None, subject.paid(scores, event)
    with suppress(TypeError):
        twin = copy.deepcopy(source)
    given = answers(source, MAP, 1) + (0 if twin is None else answers(twin, MAP, 1))
    assert given == 1, "a copy of the source answers anew"


def compare_logits(subject: Subject, rng: np.random.Generator) -> None:
    """Logits of a record are the same bits beside any others, and never an error."""

    class Product:
        weights = rng.normal(size=(300, 10)).astype(np.float32)

        def logits(self, X: Any) -> Any:
            sums = np.asarray(X, dtype=np.float32) @ self.weights
            # As some processors do by themselves: the last rows of a block round otherwise.
            sums[252:256] = np.nextafter(sums[252:256], np.float32(np.inf))
            return sums

    class Fails:
        def logits(self, X: Any) -> Any:
            if (X > 5).any():
                raise FloatingPointError("a record told of itself")
            return np.stack([X[:, 0], X[:, 1]], axis=1)

    score = subject.logits_of
    rows = rng.normal(size=(400, 300)).astype(np.float32)
    whole = score(Product(), rows, 10, without_errors=True)
    for n in (1, 2, 5, 130, 257, 399):
        some = rng.permutation(400)[:n]
        alone = score(Product(), rows[some], 10, without_errors=True)
        assert alone.tobytes() == whole[some].tobytes(), f"{n} rows have other bits alone"
    odd = rng.uniform(size=(9, 2))
    odd[4] = 9.0
    try:
        found = score(Fails(), odd, 2, without_errors=True)
    except FloatingPointError:
        raise AssertionError("an error tells of a record") from None
    rest = np.delete(np.arange(9), 4)
    assert (found[rest] == odd[rest]).all(), "a record with an error changes others' logits"


def compare_sizes(subject: Subject, rng: np.random.Generator) -> None:
    """Parts have their shares of the declared size, whatever there is of them."""
    for n in (50, 200):
        fitted(subject, records(rng, n, size=10_000), recalibrate="split", holdout=0.2)
        size = FITS[-1].size
        assert size == 8_000, f"training was told of {size} records, and 8000 are declared"


def compare_parts(subject: Subject, rng: np.random.Generator, deals: int) -> None:
    """Parts are disjoint, and every record's coin is its own."""
    data, holdout = records(rng, 200), 0.4
    held = np.zeros((deals, 200), dtype=bool)
    quick = PrivateBinning(micro_epsilon=MAP, bins=1)
    for deal in range(deals):
        fitted(subject, data, recalibrate="split", holdout=holdout, method=quick)
        parts = [FITS[-1].X[:, 0], *(scores.values[:, 1] for scores in ASKED)]
        joined = np.concatenate(parts)
        assert len(np.unique(joined)) == len(joined), "a record is in two parts"
        assert len(joined) == 200, "a record is in no part"
        held[deal] = ~np.isin(data.X[:, 0], parts[0])
    for what, counts, trials in (
        ("some rows are held back more often", held.sum(axis=0), deals),
        ("the number held back is not a sum of coins", held.sum(axis=1), 200),
        ("classes are balanced", held[:, data.y == 1].sum(axis=1), int(data.y.sum())),
    ):
        found = spread(counts, trials, holdout)
        assert found > ALPHA, f"{what}: p = {found:.1e}"


def spread(counts: np.ndarray, trials: int, chance: float) -> float:
    """Whether counts vary as sums of independent coins do: neither more nor less."""
    total = float(((counts - trials * chance) ** 2).sum() / (trials * chance * (1 - chance)))
    law = stats.chi2(len(counts))
    return 2 * min(float(law.cdf(total)), float(law.sf(total)))


def compare_claims(subject: Subject, rng: np.random.Generator) -> None:
    """The whole states the whole cost; a part of it, and what was inferred, none."""
    data = records(rng)
    whole = fitted(subject, data)
    assert whole.private_, "a fit with everything declared is not private"
    assert not whole.estimator_.private_, "a part states its own, smaller cost"
    inferred = made(subject).fit(data.X, data.y)
    assert not inferred.private_, "classes and size were read from records, and not said"


def compare_noise(subject: Subject, rng: np.random.Generator, fits: int) -> float:
    """Answers of whole fits have the noise that was charged, drawn anew."""
    data, bins = records(rng), Bins(15)
    model = made(subject, method=PrivateBinning(micro_epsilon=MAP, bins=15), guard=None)
    scores = Scores.from_logits(np.outer(data.X[:, 0], [0.0, 1.0]), data.y)
    exact = np.zeros((15, 2), dtype=int)
    np.add.at(exact, (bins.of(scores.confidence), (~scores.correct).astype(int)), 1)
    drawn = np.array(
        [model.fit_records(data).releases_[0].units - exact.ravel() for _ in range(fits)]
    )
    assert len(np.unique(drawn, axis=0)) == fits, "fits share their noise"
    scale = 1e6 / MAP
    chance = math.exp(-1 / scale)
    # |k| of discrete Laplace noise: P(0) = (1 - t)/(1 + t), and a geometric tail.
    sizes = np.minimum(np.abs(drawn.ravel()), 12)
    k = np.arange(13)
    law = np.where(k == 0, 1.0, 2.0) * (1 - chance) / (1 + chance) * chance**k
    law[-1] = 1 - law[:-1].sum()
    found = float(stats.chisquare(np.bincount(sizes, minlength=13), len(sizes) * law).pvalue)
    # Less noise than charged is the danger; the mean size tells it best.
    mean, std = (
        float((k * law).sum()),
        math.sqrt(float((k**2 * law).sum() - (k * law).sum() ** 2)),
    )
    low = float(stats.norm.cdf((sizes.mean() - mean) / (std / math.sqrt(len(sizes)))))
    worst = min(found, low)
    assert worst > ALPHA, f"answers have another noise than was charged: p = {worst:.1e}"
    return found
