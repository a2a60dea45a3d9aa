"""Dropouts and lying sources leave a finite result or a typed refusal, and valid intervals.

Every set of dropouts is tried with every method, and every form of an invalid answer. A source
that drops out after one answer, or lies, must leave no trace in the map. Then intervals of a
temperature are compared with the root of a known population, for unequal sources with
dropouts.
"""

import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from scipy import optimize, stats

from assurance.calibrations import small_blocks
from assurance.federations import (
    Method,
    Outcome,
    RecordingSource,
    methods,
    observe_sources,
    replayed,
    shifted,
)
from assurance.ledgers import Patches, patched
from benchmarks.simulated_sources import SimulatedSources
from veracal.calibration import GoldenTemperature, PooledTemperature
from veracal.calibration.maps.base import digest
from veracal.calibration.private import estimates as cohort_module
from veracal.calibration.private.estimates import noise_half_width
from veracal.calibration.private.golden_section import ErrorBound, SourceSums
from veracal.calibration.private.session import QuerySession
from veracal.data import Scores
from veracal.errors import DropoutError
from veracal.mechanisms import Grid
from veracal.queries import Pool

NAME = "federation_dropout"
SECONDS = 45
PRIVATE = "veracal.calibration.private"
POOLS = "veracal.queries.pools"
LEAST, FALSE_ALARM, COVERS = 2, 1e-6, 0.94
NEW = shifted(20, np.random.default_rng(9))

LIES: dict[str, Callable[[Any], Any]] = {
    "1e308": lambda r: replace(r, units=(1e308,) * len(r.units)),
    "-1e308": lambda r: replace(r, units=(-1e308,) * len(r.units)),
    "a whole 10^308": lambda r: replace(r, units=(10**308,) * len(r.units)),
    "NaN": lambda r: replace(r, units=(math.nan,) * len(r.units)),
    "infinity": lambda r: replace(r, units=(math.inf,) * len(r.units)),
    "one entry more": lambda r: replace(r, units=(*r.units, 0)),
    "no entries": lambda r: replace(r, units=()),
    "halves": lambda r: replace(r, units=tuple(k + 0.5 for k in r.units)),
    "truth values": lambda r: replace(r, units=(True,) * len(r.units)),
    "another grid": lambda r: replace(r, grid=Grid(r.grid.bits + 1)),
    "another query": lambda r: replace(r, query="count"),
    "no noise": lambda r: replace(r, event=None, noise_std=0.0, private=False),
    "less noise": lambda r: replace(r, event=replace(r.event, noise=r.event.noise / 2)),
    "a noise that is NaN": lambda r: replace(r, noise_std=math.nan),
    "nothing": lambda r: None,
    "text": lambda r: "1e308",
}


# ---------------------------------------------------------------- mutants


def enough(dropouts: Any, min_sources: Any, cause: Any = None) -> None:
    """Continue with the remaining sources."""


def include_dropouts(self: QuerySession) -> tuple[Any, ...]:
    """Every answer as it was given: the counts of all, the gaps of some."""
    return tuple(self._releases)


def without_noise(self: Any, inverse: float, session: Any, wide: Any, ends: Any) -> Any:
    """An interval for the sampling of records only."""
    sure = replace(wide, points=0 * wide.points + math.log(inverse))
    return ESTIMATE(self, inverse, session, sure, ends)


def noise_alone(self: ErrorBound, sums: SourceSums, n_sums: int) -> np.ndarray:
    """The half-width of the noise alone, however much sources differ."""
    half_width = noise_half_width(sums.noises, self.alpha / n_sums / 2) * sums.step
    return np.full(sums.parts.shape[1], half_width)


def of_a_mean(self: ErrorBound, sums: SourceSums, n_sums: int) -> np.ndarray:
    """The half-width of a mean of the sources, for their sum."""
    return HALF_WIDTHS(self, sums, n_sums) / len(sums.parts)


def none_between(*given: Any, **about: Any) -> Any:
    """As if dropouts were like the other sources."""
    return replace(BETWEEN(*given, **about), between=0.0)


BETWEEN, ESTIMATE, HALF_WIDTHS = (
    cohort_module.between_source_variance,
    PooledTemperature._estimate,
    ErrorBound.half_widths,
)
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "liars are believed": {"veracal.queries.pools.find_invalid_responses": lambda *_: {}},
    "too few go on": {"veracal.queries.pools.check_quorum": enough},
    "answers of different cohorts": {
        "veracal.calibration.private.session.QuerySession.answers": property(include_dropouts)
    },
    "an interval without noise": {
        "veracal.calibration.private.pooled.PooledTemperature._estimate": without_noise
    },
    "an interval without sampling": {
        "veracal.calibration.private.pooled._sampling_std": lambda *_: 0.0
    },
    "an interval without drop-outs": {
        "veracal.calibration.private.pooled.between_source_variance": none_between
    },
    "golden section: an interval of noise alone": {
        "veracal.calibration.private.golden_section.ErrorBound.half_widths": noise_alone
    },
    "golden section: the reach of a mean": {
        "veracal.calibration.private.golden_section.ErrorBound.half_widths": of_a_mean
    },
}


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Dropout, lies, then intervals."""
    rng = np.random.default_rng(0)
    rounds, m = (2_000, 8) if long else (60, 4)
    first, *others = methods().items()
    seen = next((name for name in SEEN if SEEN[name] & set(subject)), None)
    # Numbers that no checked answer has overflow; the correct code never lets them that far.
    believed = "veracal.queries.pools.find_invalid_responses" in subject
    overflow = np.errstate(over="ignore", invalid="ignore") if believed else nullcontext()
    with patched(subject), overflow:
        if seen is not None:  # the intervals that show this mutant
            covered(*seen, rng, rounds)
        with small_blocks():
            check_faulty_sources(*first, rng, m, list(LIES))
            for i, (name, method) in enumerate(others):
                check_faulty_sources(
                    name, method, rng, m, list(LIES) if long else list(LIES)[i % 4 :: 4]
                )
        values = [covered(*name, rng, rounds) for name in SEEN]
    return (
        f"{len(methods())} methods, {2**m} silent sets, {len(LIES)} lies: finite or refused; "
        f"intervals of 95 % have the root in {min(values):.3f} to {max(values):.3f}"
    )


def check_faulty_sources(
    name: str, method: Method, rng: np.random.Generator, m: int, lies: list[str]
) -> None:
    """Check one method with sources that lie or drop out."""
    check_lies(name, method, rng, lies)
    check_dropouts(name, method, rng, m)


def check_dropouts(name: str, method: Method, rng: np.random.Generator, m: int) -> None:
    """Check every set of dropouts, from the start or after the first answer."""
    records = [shifted(int(n), rng) for n in rng.integers(5, 60, size=m)]
    for number, silent in enumerate(product((False, True), repeat=m)):
        sources = observe_sources(records, "add-remove", rng)
        for source, is_silent in zip(sources, silent, strict=True):
            source.answers = number % 2 if is_silent else math.inf
        result = try_method(name, method, sources)
        left = [one for one in sources if len(one.asked) <= one.answers]  # never fell silent
        if len(left) < LEAST:
            assert result is None, f"{name}: {len(left)} sources were enough, {LEAST} needed"
            continue
        assert result is not None, f"{name}: refused, though {len(left)} sources answered"
        if number % 5 == 3 and any(silent):
            without_a_trace(name, method, result, left)


def check_lies(name: str, method: Method, rng: np.random.Generator, lies: list[str]) -> None:
    """Nonsense leaves the map that there would be without the liar."""
    records = [shifted(30, rng) for _ in range(3)]
    for what in lies:
        sources = observe_sources(records, "add-remove", rng)
        sources[0].lie = LIES[what]
        result = try_method(f"{name}, reported {what}", method, sources)
        assert result is not None, f"{name}: refused because one source sent {what}"
        without_a_trace(f"{name}, reported {what}", method, result, sources[1:])


def try_method(name: str, method: Method, sources: list[RecordingSource]) -> Outcome | None:
    """What came out, which is finite; None if it was refused."""
    try:
        result = method.run(Pool(sources, min_sources=LEAST, max_records=100))
    except DropoutError:
        return None
    except Exception as error:
        raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
    assert not re.search(r"\bnan\b", result.said), f"{name}: something is NaN"
    if result.map is not None:
        assert np.isfinite(result.map.transform(NEW).confidence).all(), f"{name}: {result.map}"
    if (t := result.temperature) is not None:
        assert 0 < t.low <= t.value <= t.high < math.inf, f"{name}: the interval is {t}"
    return result


def without_a_trace(
    name: str, method: Method, found: Outcome, left: list[RecordingSource]
) -> None:
    """The map is that of a pool of those who are left, who say the same."""
    again = replayed([source._records for source in left], left)
    alone = method.run(Pool(again, min_sources=LEAST, max_records=100))
    maps = [None if one.map is None else digest(one.map) for one in (found, alone)]
    assert maps[0] == maps[1], f"{name}: who is gone still has a part in the map"


# ---------------------------------------------------------------- intervals


@dataclass(frozen=True)
class Scene:
    """Sources, what they may spend, and how many of them answer."""

    sources: int
    sizes: tuple[int, int]
    temperature: float
    spread: float  # of their temperatures, as a logarithm
    epsilon: float
    silent: float


UNEQUAL = "of unequal sources"
SCENES = {
    UNEQUAL: Scene(40, (10, 200), 2.0, 0.9, 40.0, 0.6),  # 16 answer: enough to differ
    "of few records": Scene(12, (10, 20), 2.0, 0.0, 20.0, 0.0),
    "with noise": Scene(30, (200, 201), 1.3, 0.0, 0.1, 0.0),
}
SEEN: dict[tuple[Any, str], set[str]] = {  # intervals that are judged, and what they show
    (GoldenTemperature, UNEQUAL): {
        "veracal.calibration.private.golden_section.ErrorBound.half_widths"
    },
    (PooledTemperature, UNEQUAL): {
        "veracal.calibration.private.pooled.between_source_variance"
    },
    (PooledTemperature, "of few records"): {"veracal.calibration.private.pooled._sampling_std"},
    (PooledTemperature, "with noise"): {
        "veracal.calibration.private.pooled.PooledTemperature._estimate"
    },
}
NODES, WEIGHTS = np.polynomial.legendre.leggauss(100)
P = 0.75 + 0.25 * NODES  # of being right, from a half to 1
ODDS = np.log(P / (1 - P))


def root(sizes: np.ndarray, temperatures: np.ndarray) -> float:
    """Temperature at which the population has no gap."""

    def gap(t: float) -> float:
        sure = 1 / (1 + np.exp(-np.outer(temperatures, ODDS) / t))
        return float(sizes @ ((P - sure) @ WEIGHTS))

    return float(optimize.brentq(gap, 0.05, 50.0))


def covered(method: Any, name: str, rng: np.random.Generator, rounds: int) -> float:
    """How often the interval has the root, which must not be below 0.94."""
    scene, hits = SCENES[name], 0
    for number in range(rounds):
        sizes = rng.integers(*scene.sizes, size=scene.sources)
        temperatures = scene.temperature * np.exp(scene.spread * rng.normal(size=scene.sources))
        place = np.repeat(np.arange(scene.sources), sizes)
        p = rng.uniform(0.5, 1.0, size=len(place))
        odds = temperatures[place] * np.log(p / (1 - p))
        labels = (rng.random(len(p)) < p).astype(int)
        gone = np.flatnonzero(rng.random(scene.sources) < scene.silent)
        source = SimulatedSources(
            Scores.from_logits(odds, labels),
            place,
            sources=scene.sources,
            micro_epsilon=int(scene.epsilon * 1e6),
            dropouts={int(i): int(rng.integers(3)) for i in gone},
            min_sources=1,
            rng=rng,
        )
        result = method(epsilon=scene.epsilon).fit(source).temperature_
        truth = min(max(root(sizes, temperatures), 0.5), 6.0)
        hits += result.low <= truth <= result.high
        # Even if all remaining sources have it: continuing would change nothing.
        misses = number + 1 - hits
        chance = float(stats.binom.cdf(rounds - misses, rounds, COVERS))
        assert chance > FALSE_ALARM, (
            f"{method.__name__} {name}: {misses} of {rounds} intervals of 95 % miss the root"
        )
    return hits / rounds
