"""Private calibration depends on the records only through answers that were charged.

No record moves a query further than its sensitivity, under either relation. If noise is
replaced by the same answer for all, fits, decisions and measurements on neighbors are the same
to the last bit. The announced cost is charged once, and the calibration error is not increased
by noise.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from assurance.calibrations import QUERIES, grouped, holder, plain, small_blocks
from assurance.gate_grid import assert_on_grid, float_laplace
from assurance.ledgers import Patches, patched
from veracal.accounting import micro_epsilon
from veracal.accounting.events import RELATIONS
from veracal.calibration import (
    BinnedGap,
    BrierGain,
    CalibrationMap,
    ConfidenceWeightedGaps,
    ConfidenceWeightedSlopes,
    Identity,
    PrivateBinning,
    PrivateTemperature,
    PrivateTwoTemperatures,
    Temperature,
    TwoTemperatures,
    guard_event,
    guard_map,
    measure_private,
    plan_measurement,
)
from veracal.calibration.private import estimates, guard
from veracal.calibration.private import measurement as planning
from veracal.calibration.private.root_posterior import SearchCounts
from veracal.calibration.private.temperature import slope_matrix
from veracal.queries import NonAdditive, QueryRequest, brier_scores
from veracal.testing import check_query, check_statistic
from veracal.testing.queries import check_neighbors, evaluate_checked

EVALUATE = "veracal.calibration.queries.scalars.TemperatureGradient.evaluate"

NAME = "calibration"
SECONDS = 20
ADD = "veracal.queries.curator.add_discrete_laplace"
BY_BIN = "veracal.calibration.queries.binned.ByBin"
SCALARS = "veracal.calibration.queries.scalars"
SURE = "veracal.calibration.queries.scalars"
PRIVATE = "veracal.calibration.private"
MICRO = 600_000
ALONE = 12  # records, each on its own
FIGURES = ("accuracy", "ece", "brier", "curve")
Work = Callable[[Any], object]


# ---------------------------------------------------------------- mutants


def sum_rounded(self: Any, records: Any) -> np.ndarray:
    """Add first, round then."""
    values = np.asarray(self.per_record(records), dtype=float) if len(records) else np.zeros(1)
    low, high = self.bounds.low * self.grid.step, self.bounds.high * self.grid.step
    kept = np.where(np.isfinite(values), np.clip(values, low, high), 0.0)
    return np.array([round(float(kept.sum()) * 2**self.grid.bits)])


def mean_instead(self: Any, records: Any) -> np.ndarray:
    """Divide by the true number of records."""
    return SUM(self, records) // max(len(records), 1)


def two_scores(self: BrierGain, records: Any) -> np.ndarray:
    """The scores before and after, instead of the difference of each record."""
    both = [
        brier_scores(s, top_label=True) if len(s) else np.zeros(1)
        for s in (records, self.map.transform(records))
    ]
    return np.array([np.rint(one * 2**self.bits).astype(np.int64).sum() for one in both])


def without_noise(map_: CalibrationMap, source: Any, **about: Any) -> Any:
    """Query, pay, and decide by the exact gain."""
    found = NEVER_WORSE(map_, source, **about)
    gain = int(BrierGain(map_).evaluate(source._records)[0])
    made = map_ if gain > 0 else Identity()
    return guard.GuardResult(
        made,
        gain > 0,
        found.gain,
        found.threshold,
        found.beta,
        found.records,
        found.release,
        None,
    )


def true_number(source: Any, **about: Any) -> Any:
    """Divide by the number of records, which the holder could look up."""
    n = float(len(source._records))

    def known(total: Any, *_: Any, **settings: Any) -> Any:
        return MEAN(
            total,
            estimates.NoisyValue(n),
            estimates.NoisyValue(0.0),
            0.95,
            most=settings["most"],
        )

    with mock.patch("veracal.calibration.private.measurement.mean_estimate", known):
        return MEASURE(source, **about)


def true_start(self: PrivateTemperature, session: Any, queries: Any) -> Any:
    """Begin where the exact accuracy says, instead of a noisy one."""
    records = session.source._records

    def exact(*_: Any) -> SearchCounts:
        right = float(records.correct.sum())
        return COUNTS_OF(right, len(records) - right, 1.0)

    with mock.patch.object(SearchCounts, "of", exact):
        return SEARCH(self, session, queries)


def true_slopes(self: PrivateTwoTemperatures, source: Any, **about: Any) -> Any:
    """Query the slopes, and then use those of the records."""
    records = source._records

    def exact(values: Any) -> Any:
        slopes = ConfidenceWeightedSlopes(TwoTemperatures(1.0, 1.0)).evaluate(records) / 2**20
        return SLOPES(slopes)

    with mock.patch("veracal.calibration.private.temperature.slope_matrix", exact):
        return FIT_TWO(self, source, **about)


def not_shared(self: ConfidenceWeightedGaps, records: Any) -> np.ndarray:
    """Count the whole gap of a record at low confidence, and again at high confidence."""
    gaps = self.per_record(records).sum(axis=1) if len(records) else np.zeros(1)
    total = np.trunc(np.nan_to_num(gaps) * 2**self.bits).astype(np.int64).sum()
    return np.array([total, total])


def by_bins(**about: Any) -> Any:
    """Noise on every bin of one source, and absolute values of that."""
    return PLAN(**{**about, "by_bins": True})


def a_question_too_many(micro: int, shares: Any) -> tuple[int, ...]:
    """Shares for the gaps, and the counts forgotten."""
    return (micro // (len(shares) - 1),) * len(shares)


def query_under_new_id(self: QueryRequest, source: Any, request: str | None = None) -> Any:
    """Query under a new id, which cannot be repeated."""
    fresh = np.random.default_rng().integers(2**62)
    return source.answer(self.query, micro_epsilon=self.micro_epsilon, request=f"{fresh}")


def charge_if_kept(map_: CalibrationMap, source: Any, **about: Any) -> Any:
    """Look first, and charge only for a map that is kept."""
    if int(BrierGain(map_).evaluate(source._records)[0]) <= 0:
        release = source.answer(BrierGain(Identity()), micro_epsilon=1)
        return guard.GuardResult(Identity(), False, 0.0, 0.0, 0.05, "", release, None)
    return NEVER_WORSE(map_, source, **about)


SUM = BrierGain.evaluate
NEVER_WORSE, MEASURE, PLAN = guard_map, measure_private, planning.plan_measurement
MEAN, COUNTS_OF, SEARCH = estimates.mean_estimate, SearchCounts.of, PrivateTemperature._search
FIT_TWO, SLOPES = PrivateTwoTemperatures.fit, slope_matrix
SENSITIVITY = BinnedGap.sensitivity
GATE = __name__
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "replace-one moves no more than add-remove": {
        "veracal.calibration.queries.binned.ByBin.sensitivity": lambda self, relation: (
            SENSITIVITY(self, "add-remove")
        ),
        "veracal.calibration.queries.binned.ByBin.sensitivity_l2": lambda self, relation: float(
            SENSITIVITY(self, "add-remove")
        ),
    },
    "a replaced record moves to another bin, always": {
        "veracal.queries.query.CellSum.sensitivity_l2": lambda self, relation: (
            math.sqrt(1 if relation == "add-remove" else 2) * self.bounds.reach
        )
    },
    "sum rounded instead of records": {"veracal.queries.query.ScalarSum.evaluate": sum_rounded},
    "mean over the true number": {"veracal.queries.query.ScalarSum.evaluate": mean_instead},
    "slopes not clipped": {
        EVALUATE: lambda self, records: np.array(
            [int(np.clip(np.nan_to_num(self_slopes(self, records)), -1e6, 1e6).sum() * 64)]
        )
    },
    "two scores instead of a difference": {
        "veracal.calibration.queries.scalars.BrierGain.entries": 2,
        "veracal.calibration.queries.scalars.BrierGain.evaluate": two_scores,
    },
    "gap's range of k classes for replace-one, halved": {
        "veracal.calibration.queries.scalars.Gap.sensitivity": lambda self, relation: (
            self.bounds.reach
        )
    },
    "bins of the records there are": {
        "veracal.calibration.queries.binned.ByBin.cells": lambda self, records: np.unique(
            CELLS(self, records), return_inverse=True
        )[1].reshape(-1)
    },
    "guard without noise": {f"{GATE}.guard_map": without_noise},
    "figures divided by the true number": {f"{GATE}.measure_private": true_number},
    "search that starts from the exact accuracy": {
        "veracal.calibration.private.temperature.PrivateTemperature._search": true_start
    },
    "two temperatures by the exact slopes": {
        "veracal.calibration.private.temperature.PrivateTwoTemperatures.fit": true_slopes
    },
    "gaps of unsure and sure, not shared out": {
        "veracal.calibration.queries.scalars.ConfidenceWeightedGaps.evaluate": not_shared
    },
    "slopes of two classes taken for all": {
        f"{SCALARS}.ConfidenceWeightedSlopes.sensitivity": lambda self, relation: int(
            0.23 * 2**self.bits
        )
    },
    "noise on every bin": {"veracal.calibration.private.measurement.plan_measurement": by_bins},
    "epsilon/K for K+1 questions": {
        "veracal.calibration.private.temperature.divide_epsilon": a_question_too_many
    },
    "M20 float Laplace": {ADD: float_laplace},
    "a retry is asked anew": {"veracal.queries.sources.QueryRequest.ask": query_under_new_id},
    "guard charged only if the map is kept": {f"{GATE}.guard_map": charge_if_kept},
}


def self_slopes(query: Any, records: Any) -> np.ndarray:
    """Slopes as they are."""
    from veracal.calibration.queries.scalars import slope_at

    with np.errstate(all="ignore"):
        return slope_at(records, query.parameter) if len(records) else np.zeros(1)


CELLS = BinnedGap.cells


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Replay questions, then whole fits; add up what was charged; look for a bias."""
    rng = np.random.default_rng(0)
    rounds, pools = (8_000, 500) if long else (20, 10)
    about_fits = any(name.startswith((PRIVATE, GATE)) for name in subject)
    with patched(subject) as folder:
        if about_fits:  # which the other checks take longer to notice, or never do
            replay_fits(folder, rng, 1)
            charged(folder, rng)
        with small_blocks():
            # A little of what is quick comes first: most mutants go no further.
            contracts(1)
            replay_records(rng, 1)
            on_the_grid(folder, rng)
            contracts(8)
            replay_records(rng, pools)
            replay_queries(rng, rounds)
        charged(folder, rng)
        replay_fits(folder, rng, 40 if long else 3)
        bias = noise_bias(folder, rng, 200 if long else 40)
    pairs = (pools + 1) * (ALONE + math.comb(ALONE, 2))
    compared = (rounds * len(RELATIONS) + pairs) * len(QUERIES)
    return (
        f"{compared:,} neighbors of {len(QUERIES)} queries, none too far or off the grid; "
        "fits, guard and measurement depend on answers alone; "
        f"noise moves the calibration error by {bias:+.4f}"
    )


def on_the_grid(folder: Path, rng: np.random.Generator) -> None:
    """Every released number lies on the public grid."""
    for query in QUERIES:
        source = holder(grouped(20, rng), folder, epsilon=1.0)
        assert_on_grid(source.answer(query, micro_epsilon=MICRO))


def contracts(trials: int) -> None:
    """Every query keeps its contract: sums add up, in any order, and none is none."""
    for query in QUERIES:
        check = check_statistic if isinstance(query, NonAdditive) else check_query
        check(query, grouped, trials=trials)


def replay_records(rng: np.random.Generator, pools: int) -> None:
    """Evaluate every query on single records, each a neighbor of every other and of none.

    A dozen evaluations make 78 pairs of neighbors, among them those that are furthest apart.
    """
    for _ in range(pools):
        for query in QUERIES:
            pool = grouped(ALONE, rng)
            rows = [evaluate_checked(query, pool.take(np.array([i]))) for i in range(ALONE)]
            units = np.array(rows, dtype=object)
            moved = {
                "add-remove": units,
                "replace-one": (units[:, None] - units[None]).reshape(-1, query.entries),
            }
            for relation in RELATIONS:
                l1 = abs(moved[relation]).sum(axis=1).max()
                squares = (moved[relation] ** 2).sum(axis=1).max()
                where = f"{query.name!r} of one record moved by"
                most = query.sensitivity(relation), query.sensitivity_l2(relation)
                assert l1 <= most[0], f"{where} {l1} units under {relation}, not {most[0]}"
                assert squares <= most[1] ** 2 * (1 + 1e-12), (
                    f"{where} {squares**0.5} units under {relation} in L2, not {most[1]}"
                )


def replay_queries(rng: np.random.Generator, rounds: int) -> None:
    """Evaluate every query on neighbors under both relations."""
    for _ in range(rounds):
        for query in QUERIES:
            n = int(rng.integers(1, 24))
            check_neighbors(query, grouped(n + 1, rng), int(rng.integers(n)))


def works() -> dict[str, Work]:
    """Every computation on answers, as a function of a source."""
    return {
        "temperature": lambda source: outcome(
            PrivateTemperature(micro_epsilon=MICRO).fit(source)
        ),
        "two temperatures": lambda source: outcome(
            PrivateTwoTemperatures(micro_epsilon=MICRO).fit(source)
        ),
        "binning": lambda source: outcome(PrivateBinning(micro_epsilon=MICRO).fit(source)),
        "guard": lambda source: (
            lambda found: (found.kept, found.map, found.gain, found.threshold)
        )(guard_map(Temperature(0.5), source, micro_epsilon=MICRO)),
        "measurement": lambda source: measure_private(
            source, micro_epsilon=MICRO, figures=FIGURES, group="sex", group_names=("f", "m")
        ).to_json(),
    }


def outcome(fitter: Any) -> object:
    """Everything that a fitter says after a fit."""
    said = [getattr(fitter, name, None) for name in ("temperature_", "unsure_", "sure_")]
    return fitter.map_, said, fitter.releases_


def replay_fits(folder: Path, rng: np.random.Generator, rounds: int) -> None:
    """With the same answers for all sources, no result depends on the records."""
    for _ in range(rounds):
        seed = int(rng.integers(2**32))
        pools = [
            plain(int(n), rng, t) for n, t in zip((400, 401, 90), (2.0, 2.0, 0.5), strict=True)
        ]
        pools.append(pools[0].take(np.arange(399)))
        for name, work in works().items():
            seen = []
            for records in pools:
                with mock.patch(ADD, same_for_all(seed)), small_blocks(512):
                    seen.append(said(work(holder(records, folder, epsilon=1.0))))
            assert all(one == seen[0] for one in seen), (
                f"the same answers gave different results of {name} on other records"
            )


def same_for_all(seed: int) -> Callable[..., np.ndarray]:
    """Answers that do not depend on the query or the source."""
    answers = np.random.default_rng(seed)
    return lambda units, scale: answers.integers(2**24, size=len(units))


def said(result: object) -> str:
    """A result in full, but for the heads of ledgers, which differ."""
    return re.sub(r"head='[0-9a-f]*'", "", repr(result))


def charged(folder: Path, rng: np.random.Generator) -> None:
    """What was announced is what is charged, and a repetition is free."""
    records, harmed = plain(300, rng), plain(3_000, rng, 0.3)
    for relation in RELATIONS:
        events = {
            "temperature": PrivateTemperature(micro_epsilon=MICRO).event(relation),
            "two temperatures": PrivateTwoTemperatures(micro_epsilon=MICRO).event(relation),
            "binning": PrivateBinning(micro_epsilon=MICRO).event(relation),
            "guard": guard_event(Temperature(0.5), micro_epsilon=MICRO, relation=relation),
            "measurement": plan_measurement(
                micro_epsilon=MICRO, figures=FIGURES, group="sex", group_names=("f", "m")
            ).event(relation),
        }
        for name, work in works().items():
            for scores in (records, harmed):
                source = holder(scores, folder, epsilon=5.0, relation=relation)
                for _ in range(2):
                    work(source)
                    spent = round(source.ledger.spent().epsilon * 1e6)
                    assert spent <= MICRO, f"{name} spent {spent} of {MICRO}"
                    announced = micro_epsilon(events[name])
                    assert spent == announced, f"{name} spent {spent}, announced {announced}"


def noise_bias(folder: Path, rng: np.random.Generator, rounds: int) -> float:
    """How far noise moves the calibration error on average."""
    records = plain(1_000, rng, 1.0)
    exact = sum(abs(BinnedGap().evaluate(records))) / 2**20 / 1_000
    found = []
    for _ in range(rounds):
        source = holder(records, folder, epsilon=1.0)
        figures = measure_private(source, micro_epsilon=MICRO, figures=("ece",)).overall
        found.append(figures.ece.value - exact)
    bias, error = float(np.mean(found)), float(np.std(found)) / np.sqrt(rounds)
    assert abs(bias) < 6 * error + 1e-4, f"noise moves the calibration error by {bias:+.4f}"
    return bias
