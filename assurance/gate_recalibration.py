"""A calibrated classifier costs what it states, and makes no query that was not charged.

Costs are compared with the composed costs of the components. Noise on the answers is compared
with the distribution that was charged, in whole fits. The source inside a fit gives every
announced answer once.
"""

import copy
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from assurance.recalibrations import (
    GUARD,
    MAP,
    NOISE,
    Subject,
    fitted,
    make_classifier,
    records,
    using,
)
from veracal.accounting import Composed, Event, Gaussian, Parallel, Repeated, epsilon_for
from veracal.calibration import (
    BrierGain,
    CorrectWrong,
    Gap,
    Identity,
    PrivateBinning,
    PrivateTemperature,
)
from veracal.calibration.bins import Bins
from veracal.calibration.prepaid_source import PrepaidSource
from veracal.calibration.private_classifier import BudgetPlan, PrivateCalibratedClassifier
from veracal.data import Scores
from veracal.errors import BudgetError
from veracal.queries import laplace_event

NAME = "recalibration"
ALPHA = 1e-6
ONE = Bins(1)


# ---------------------------------------------------------------- mutants


def charged_as(event: Callable[[BudgetPlan], Event]) -> Subject:
    """Charge something else, before and after the fit."""

    class SourceCost(PrivateCalibratedClassifier):
        def _plan_budget(self, size: int | None) -> Any:
            parts = super()._plan_budget(size)

            class Cheaper(BudgetPlan):
                @property
                def event(self) -> Event:
                    return event(parts)

            return Cheaper(**{name: getattr(parts, name) for name in vars(parts)})

    return Subject(SourceCost)


def scaled(factor: float) -> type[PrepaidSource]:
    """Noise of another size than announced."""

    class Scaled(PrepaidSource):
        __slots__ = ()

        def _release(self, query: Any, event: Any, micro_epsilon: Any) -> Any:
            least = replace(event, noise=max(factor * event.noise, 1e-9))
            return replace(super()._release(query, least, micro_epsilon), event=event)

    return Scaled


class FixedSeed(PrepaidSource):
    """Draw the noise of every fit from one seed, and call it private."""

    __slots__ = ()

    def _release(self, query: Any, event: Any, micro_epsilon: Any) -> Any:
        self._rng = np.random.default_rng(0)
        return replace(super()._release(query, event, micro_epsilon), private=True)


class Twice(PrepaidSource):
    """Never strike an answer off."""

    __slots__ = ()

    def _answer(self, query: Any, event: Any, micro_epsilon: Any, request: Any) -> Any:
        self._remaining[event] = max(
            self._remaining[event], 1 if event in self._remaining else 0
        )
        found = super()._answer(query, event, micro_epsilon, request)
        self._remaining[event] += 1
        return found


class AnyPrice(PrepaidSource):
    """Answer any query as long as answers are left."""

    __slots__ = ()

    def _answer(self, query: Any, event: Any, micro_epsilon: Any, request: Any) -> Any:
        if event not in self._remaining and sum(self._remaining.values()):
            self._remaining.subtract([next(iter(+self._remaining))])
            self._remaining[event] += 1
        return super()._answer(query, event, micro_epsilon, request)


class FailuresFree(PrepaidSource):
    """Give an answer back that could not be computed."""

    __slots__ = ()

    def _release(self, query: Any, event: Any, micro_epsilon: Any) -> Any:
        try:
            return super()._release(query, event, micro_epsilon)
        except Exception:
            self._remaining[event] += 1
            raise


class Copied(PrepaidSource):
    """Let itself be copied."""

    __slots__ = ()

    def __deepcopy__(self, memo: Any) -> "Copied":
        twin = object.__new__(Copied)
        for name in PrepaidSource.__slots__:
            setattr(twin, name, getattr(self, name))
        twin._remaining, twin._answers = self._remaining.copy(), {}
        return twin


class PartClaims(PrivateCalibratedClassifier):
    """Leave the trained model with the statement of its own, smaller cost."""

    def _fit(self, *given: Any) -> Any:
        result = super()._fit(*given)
        self.estimator_.not_private_because_ = ()
        return result


class ReadsInSilence(PrivateCalibratedClassifier):
    """Infer classes and size, and say nothing of it."""

    def _fit(self, dataset: Any, parts: Any, reasons: Any) -> Any:
        return super()._fit(dataset, parts, ())


class SizeFromRecords(PrivateCalibratedClassifier):
    """Let the share of the map depend on how many records there are."""

    def _check_records(self, dataset: Any) -> Any:
        parts = super()._check_records(dataset)
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
    "a part states its own cost": Subject(PartClaims),
    "what was read is not said": Subject(ReadsInSilence),
}


def run(subject: Subject, *, long: bool) -> str:
    """Charge, query and check the claims."""
    rng = np.random.default_rng(0)
    with using(subject):
        compare_costs(subject)
        compare_source(subject)
        compare_claims(subject, rng)
        found = compare_noise(subject, rng, 1_000 if long else 100)
    return f"noise of whole fits at p = {found:.2f}"


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
        model = make_classifier(subject, recalibrate=how)
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

    def answers(source: PrepaidSource, price: int, tries: int, asked: Any = query) -> int:
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


def compare_claims(subject: Subject, rng: np.random.Generator) -> None:
    """The whole states the whole cost; a part of it, and what was inferred, none."""
    data = records(rng)
    whole = fitted(subject, data)
    assert whole.private_, "a fit with everything declared is not private"
    assert not whole.estimator_.private_, "a part states its own, smaller cost"
    inferred = make_classifier(subject).fit(data.X, data.y)
    assert not inferred.private_, "classes and size were read from records, and not said"


def compare_noise(subject: Subject, rng: np.random.Generator, fits: int) -> float:
    """Answers of whole fits have fresh noise of the charged distribution."""
    data, bins = records(rng), Bins(15)
    model = make_classifier(
        subject, method=PrivateBinning(micro_epsilon=MAP, bins=15), guard=None
    )
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
