"""Every number of a fit on a pool is on its public grid: answers, temperatures, maps.

Fits use real curators and their noise, and every answer is checked, of each source and their
sum. Extreme answers then lead the searches to all places: every queried temperature must be on
a public grid within the public range. With exact answers, golden section must end at its
documented result.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize

from assurance.federations import MICRO, SURE_WRONG, RecordingSource, joined, methods, shifted
from assurance.gate_federation_tails import ADD_GAUSSIAN, Choir, opened
from assurance.gate_grid import (
    ADD,
    VALUES,
    assert_on_grid,
    coarser_noise,
    cut_noise,
    finer_after_noise,
    float_laplace,
    single_precision,
)
from assurance.ledgers import Patches, patched
from veracal.accounting.events import RELATIONS
from veracal.calibration import (
    CorrectWrong,
    Gap,
    GoldenTemperature,
    ParameterGrid,
    PlattEquations,
)
from veracal.calibration.private.golden_section import RATIO, Bracket, BracketSearch
from veracal.calibration.private.root_posterior import TemperatureGrid
from veracal.errors import DropoutError
from veracal.queries import Pool, Public
from veracal.queries import pools as pooling
from veracal.queries.pools import PooledRelease

NAME = "federation_grid"
PRIVATE = "veracal.calibration.private"
LOW, HIGH, BITS = 0.5, 6.0, 16
UNKNOWN = shifted(0, np.random.default_rng(0))


# ---------------------------------------------------------------- mutants


def of_the_old_bracket(ask: Any, low: Any, high: Any, reductions: int) -> BracketSearch:
    """Compute the new point from the bracket before the cut."""
    ends, points = [low, high], [high - RATIO * (high - low), low + RATIO * (high - low)]
    requested = list(points)
    for point in requested:
        values = ask(np.array(point))
    left, right = values
    while True:
        width = ends[1] - ends[0]
        if left < right:
            old, ends = ends, [ends[0], points[1]]
            points = [old[1] - RATIO * width, points[0]]
            right, fresh = left, 0
        else:
            old, ends = ends, [points[0], ends[1]]
            points = [points[1], old[0] + RATIO * width]
            left, fresh = right, 1
        if len(requested) == reductions + 1:
            bracket = Bracket(np.array(min(ends)), np.array(max(ends)))  # they may cross
            return BracketSearch(bracket, np.array(requested), np.zeros(len(requested)))
        requested.append(points[fresh])
        value = ask(np.array(points[fresh]))[-1]
        left, right = (value, right) if fresh == 0 else (left, value)


def mean_of_sources(query: Any, parts: Any, dropouts: Any, requested: Any) -> PooledRelease:
    """The mean of the answers instead of their sum."""
    result, n = SUM(query, parts, dropouts, requested), sum(part is not None for part in parts)
    object.__setattr__(result, "units", tuple(unit / n for unit in result.units))
    return result


def float_gaussian(units: np.ndarray, scale: float) -> np.ndarray:
    """Gaussian noise that is not whole."""
    return units + np.random.default_rng().normal(scale=scale, size=len(units))


def not_rounded(self: TemperatureGrid, temperatures: Any) -> np.ndarray:
    """Whatever temperature was wanted, within the range."""
    return np.clip(1 / np.asarray(temperatures, dtype=float), 1 / self.high, 1 / self.low)


def not_clipped(self: TemperatureGrid, temperatures: Any) -> np.ndarray:
    """The nearest on the grid, a little lower, so that the range's end is passed."""
    return np.floor(2.0**self.bits / np.asarray(temperatures, dtype=float)) / 2.0**self.bits


SUM = pooling._sum
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "M20 float Laplace": {ADD: float_laplace},
    "float Gaussian": {ADD_GAUSSIAN: float_gaussian},
    "rounded after the noise, to a finer grid": {ADD: finer_after_noise},
    "noise on a coarser grid": {ADD: coarser_noise},
    "noise cut off": {ADD: cut_noise},
    "values in single precision": {VALUES: single_precision},
    "the mean of the sources": {"veracal.queries.pools._sum": mean_of_sources},
    "temperatures as they come": {
        "veracal.calibration.private.root_posterior.TemperatureGrid.inverses": not_rounded
    },
    "temperatures beyond the range": {
        "veracal.calibration.private.root_posterior.TemperatureGrid.inverses": not_clipped
    },
    "equations about a center off the grid": {
        "veracal.calibration.private.platt._round_to_scale": float
    },
    "golden section in the old bracket": {
        "veracal.calibration.private.golden_section.narrow_bracket": of_the_old_bracket
    },
}


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Check answers, then queries, then the end of golden-section search."""
    rng = np.random.default_rng(0)
    with patched(subject) as folder:
        requested = sum(queries(rng) for _ in range(400 if long else 6))
        arrives(rng, 400 if long else 8)
        supports(folder, 20_000 if long else 1_500)
        released = sum(answers(folder, rng, relation) for relation in RELATIONS)
    return (
        f"0 of {released:,} released numbers off their grid, nor any of {requested} "
        "temperatures and maps in queries"
    )


def answers(folder: Path, rng: np.random.Generator, relation: str) -> int:
    """Every answer of every method, each source's and the sum; returns how many numbers."""
    seen = 0
    for method in methods().values():
        records = [shifted(20, rng) for _ in range(2)]
        pool = Pool([opened(one, method, relation, folder) for one in records])
        try:
            result = method.run(pool)
        except DropoutError as error:
            raise AssertionError(f"an answer was taken for nonsense: {error}") from error
        for release in result.releases:
            parts = release.parts if isinstance(release, PooledRelease) else ()
            for one in (release, *(part for part in parts if part is not None)):
                assert_on_grid(one)
                seen += len(one.units)
    return seen


def queries(rng: np.random.Generator) -> int:
    """Check the queries of searches under arbitrary answers; return their number."""
    seen = 0
    for name in ("pooled", "acc-t", "nll-t", "ece-t", "vector"):
        far = float(rng.choice([0.2, 1.0, 30.0]))
        source = RecordingSource(shifted(40, rng, temperature=far), "add-remove", rng)
        result = methods()[name].run(Pool([source]))
        inverses = [
            one.query.inverse
            for one in source.asked
            if name != "vector" and not isinstance(one.query, CorrectWrong)
        ]
        inverses += [] if name == "vector" else [result.map.inverse]  # type: ignore[union-attr]
        for inverse in inverses:
            steps = inverse * 2.0**BITS
            assert steps == math.floor(steps), f"{name} asked at {inverse!r}, off the grid"
            inside = 1 / HIGH <= inverse <= 1 / LOW
            assert inside, f"{name} asked at a temperature of {1 / inverse}, out of range"
        seen += len(inverses) + sum(on_enrolled_grid(one.query) for one in source.asked)
    return seen


def on_enrolled_grid(query: Any) -> bool:
    """Whether it is about a map, whose numbers are then whole on the enrolled grid."""
    if not isinstance(query, PlattEquations):
        return False
    step = ParameterGrid().step
    numbers = [*np.ravel(query.map.weights), *query.map.bias, query.center, query.spread]
    off = [x for x in numbers if x / step != math.floor(x / step)]
    assert not off, f"equations were asked with {off[0]!r}, off the enrolled grid"
    return True


def supports(folder: Path, n: int) -> None:
    """Answers of one source reach everywhere, and end in all of three bits, on neighbors."""
    method = methods()["pooled"]
    for records in (UNKNOWN, joined(UNKNOWN, SURE_WRONG)):
        source = opened(records, method, "add-remove", folder)
        for query in (CorrectWrong(), Gap(0.5)):
            result = source.answer(
                Choir(query, max(n // query.entries, 1)), micro_epsilon=MICRO // 50
            )
            assert_on_grid(result)
            units = np.array(result.units)
            ends = set((units % 8).tolist())
            assert ends == set(range(8)), f"answers end in {sorted(ends)} of eight"
            most = np.abs(units).max() / result.event.noise  # type: ignore[union-attr]
            assert most > 4, f"no answer of {len(units)} is beyond {most:.1f} scales"


def arrives(rng: np.random.Generator, rounds: int) -> None:
    """With exact answers golden section ends within its last bracket of the least."""
    low, high = 0.5, 6.0
    width = (high - low) * RATIO**5
    for _ in range(rounds):
        records = shifted(400, rng, temperature=rng.uniform(0.8, 5.0))

        def gap(temperature: float, records: Any = records) -> float:
            return float(Gap(1 / temperature).evaluate(records)[0])

        root = optimize.brentq(gap, 0.05, 20.0)
        result = GoldenTemperature(micro_epsilon=MICRO).fit(Pool([Public(records)]))
        off = abs(result.map_.value - min(max(root, low), high))
        assert off <= width / 2 + 1e-3, (
            f"golden section ended {off:.3f} from the root {root:.3f}"
        )
        assert len({probe.temperature for probe in result.evaluations_}) == 6
