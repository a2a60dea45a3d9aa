"""Disagreement is estimated without bias, its intervals hold, and no run counts twice.

Everything is checked on simulated runs with known truth: each individual's decision is an
independent draw with a known probability in every run.
"""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from assurance.ledgers import Patches, patched
from veracal._types import Floats, Ints
from veracal.data import Group
from veracal.data.groups import Estimate
from veracal.errors import DataError
from veracal.multiplicity import collecting, measures, runs, summary
from veracal.multiplicity import measures as intervals
from veracal.multiplicity import summary as means
from veracal.multiplicity.auditing import AuditSettings, audit_engine
from veracal.multiplicity.engines.base import AuditEngine, Streams, fingerprint

NAME = "multiplicity"
AT = "veracal.multiplicity"
SHARES = (0.0, 0.003, 0.05, 0.2, 0.5, 0.81, 1.0)
LEVEL = 0.9
RUN_EFFECTS = np.array([0.4, 1.2])  # effect of a run shared by the individuals of two groups


class KnownShares(AuditEngine):
    """Predicts the second class with a given probability for each individual."""

    name, kind, classes = "known shares", "probability", (0, 1)

    def __init__(self, shares: Any, fail_after: float = np.inf) -> None:
        self.shares = np.asarray(shares, dtype=float)
        self.individuals, self.runs_per_call = len(self.shares), 9
        self.fail_after, self.runs_made = fail_after, 0

    def scores(self, count: int, streams: Streams) -> Floats:
        """Random decisions, until the limit of runs."""
        self.runs_made += count
        if self.runs_made > self.fail_after:
            raise InterruptedError
        heads = streams.noise.uniform(size=(count, self.individuals)) < self.shares
        return np.where(heads, 0.5 + 1e-9, 0.5)  # at the threshold is not above it

    def settings(self) -> dict[str, Any]:
        """Hash of the shares."""
        return {"shares": fingerprint(self.shares)}


def run(patches: Patches, *, long: bool) -> str:
    """Check every promise."""
    with patched(patches) as folder:
        check_bias()
        missed = check_intervals()
        left = check_stopping(2_000 if long else 500)
        check_means(1_000 if long else 300)
        check_once(folder)
        check_strangers(folder)
        check_levels()
    return f"coverage at least {1 - missed:.3f}, {left:.3f} ever left at {1 - LEVEL:.1f}"


def check_bias() -> None:
    """The mean of the estimate over all outcomes is the truth."""
    for m in (2, 3, 10):
        counts = np.arange(m + 1)
        for p in SHARES:
            chance = stats.binom.pmf(counts, m, p)
            mean = chance @ measures.disagreement(counts, m)
            assert abs(mean - 4 * p * (1 - p)) < 1e-12, f"{m} runs at {p}: mean {mean}"
            both = np.stack([m - counts, counts], axis=1)
            same = chance @ measures.normalized_disagreement(both, m)
            assert abs(same - mean) < 1e-12, f"normalized at {p}: {same}"
    counts = audit_engine(
        KnownShares(SHARES), None, AuditSettings(63), random_state=0
    ).individuals.counts
    assert counts[0, 1] == 0, "a score at the threshold was decided for"
    assert counts[-1, 1] == 63, "runs were lost"


def check_intervals() -> float:
    """Of all outcomes, no more than agreed lie outside; computed, not simulated."""
    worst = 0.0
    for m in (10, 100):
        counts = np.arange(m + 1)
        for k in (1, 20):
            ends = intervals.binomial_interval(counts, m, LEVEL, k)
            low, high = intervals.disagreement_interval(*ends)
            for p in SHARES:
                truth = 4 * p * (1 - p)
                outside = (low > truth + 1e-12) | (high < truth - 1e-12)
                missed = float(stats.binom.pmf(counts, m, p) @ outside)
                assert missed <= (1 - LEVEL) / k + 1e-9, f"{m} runs at {p}: missed {missed}"
                worst = max(worst, missed)
    return worst


def check_stopping(paths: int) -> float:
    """With repeated looks, the truth is rarely ever outside an anytime-valid interval."""
    p, looks = 0.2, np.unique(np.geomspace(5, 2_000, 60).astype(int))
    heads = np.random.default_rng(1).uniform(size=(paths, looks[-1])) < p
    left = np.zeros(paths, dtype=bool)
    for m in looks:
        counted = heads[:, :m].sum(axis=1)
        # Each path is one individual; the intervals are not simultaneous.
        counts = np.stack([m - counted, counted], axis=1)
        low, high = summary.simultaneous_intervals(counts, m, 1, LEVEL, anytime_valid=True)
        left |= (low > 4 * p * (1 - p)) | (high < 4 * p * (1 - p))
    share = float(left.mean())
    most = stats.binom.ppf(1 - 1e-6, paths, 1 - LEVEL) / paths
    assert share <= most, f"the truth was outside at some look in {share:.3f} of the audits"
    return share


def check_means(audits: int) -> None:
    """Intervals of means and gaps count the runs, which individuals share."""
    rng, covered, gaps = np.random.default_rng(2), 0, 0
    places, group = np.linspace(-1.5, 1.5, 40), Group(np.arange(40) // 20, ("one", "other"))
    shares = stats.norm.cdf(places / np.hypot(1, RUN_EFFECTS[group.codes]))
    truth = 4 * shares * (1 - shares)
    true_gap = abs(truth[:20].mean() - truth[20:].mean())
    for _ in range(audits):
        mean, gap = mean_and_gap(rng, places, 80, group)
        covered += mean.low <= truth.mean() <= mean.high
        gaps += gap.low <= true_gap <= gap.high
    least = stats.binom.ppf(1e-6, audits, LEVEL - 0.03) / audits
    assert covered / audits >= least, f"means covered in {covered / audits:.3f}"
    assert gaps / audits >= least, f"gaps covered in {gaps / audits:.3f}"


def mean_and_gap(
    rng: np.random.Generator, places: Floats, m: int, group: Group
) -> tuple[Estimate, Estimate]:
    """Mean and gap of runs with a shared effect, larger on the second group."""
    counted_runs = runs.Runs(len(places))
    effects = rng.normal(size=(m, 1)) * RUN_EFFECTS[group.codes]
    counted_runs.add((places + effects + rng.normal(size=(m, len(places))) > 0).astype(int))
    rows = {name: group.codes == code for code, name in enumerate(group.names)}
    return (
        means.mean_over_individuals(counted_runs, level=LEVEL),
        means.gap_over_groups(counted_runs, rows, level=LEVEL),
    )


def check_once(folder: Path) -> None:
    """An audit interrupted twice gives the result of an uninterrupted one."""
    settings, keep = AuditSettings(200), folder / "runs.npz"
    whole = audit_engine(KnownShares(SHARES), None, settings, random_state=7)
    for fail_after in (50, 70):
        with contextlib.suppress(InterruptedError):
            audit_engine(
                KnownShares(SHARES, fail_after), None, settings, keep=keep, random_state=7
            )
    last = KnownShares(SHARES)
    try:
        again = audit_engine(last, None, settings, keep=keep, random_state=7)
    except DataError as refused:
        raise AssertionError(f"an audit does not know its own file: {refused}") from refused
    assert again.runs == 200, f"{again.runs} runs instead of 200"
    assert 0 < last.runs_made < 200, f"{last.runs_made} runs were made although some were saved"
    same = np.array_equal(whole.individuals.counts, again.individuals.counts)
    assert same, "the counts depend on where the audit was interrupted"


def check_strangers(folder: Path) -> None:
    """A checkpoint of another training is not resumed."""
    keep = folder / "other.npz"
    audit_engine(KnownShares(SHARES), None, AuditSettings(20), keep=keep)
    try:
        audit_engine(KnownShares(SHARES[::-1]), None, AuditSettings(40), keep=keep)
    except DataError:
        return
    raise AssertionError("an audit of other records was resumed")


def check_levels() -> None:
    """Accuracy levels select exactly the runs at or above them."""
    rng, labels = np.random.default_rng(3), np.arange(10) % 2
    decisions = rng.integers(0, 2, (500, 10))
    counted_runs = runs.Runs(10, labels=labels, levels=(0.6,))
    counted_runs.add(decisions)
    chosen = decisions[(decisions == labels).mean(axis=1) >= 0.6]
    assert counted_runs.level_runs[0] == len(chosen), "runs below the level, or not all at it"
    assert np.array_equal(counted_runs.level_counts[0, :, 1], chosen.sum(axis=0)), (
        "wrong counts"
    )


# ---------------------------------------------------------------- mutants


def biased(positive: Ints, m: int) -> Floats:
    """Plain variance, as two of the paper's notebooks have it."""
    share = np.asarray(positive) / m
    return share * (1 - share)


def at_threshold_too(self: runs.Runs, scores: Floats, kind: str) -> Ints:
    """A score at the threshold counts as above it."""
    return (scores >= 0.5).astype(np.uint8)


def one_tail(positive: Ints, m: int, level: float = 0.95, individuals: int = 1) -> Any:
    """Put the whole error probability into each tail."""
    return EXACT(positive, m, 2 * level - 1, individuals)


def without_union_bound(
    positive: Ints, m: int, level: float = 0.95, individuals: int = 1
) -> Any:
    """Intervals without the union bound."""
    return EXACT(positive, m, level, 1)


def normal(positive: Ints, m: int, level: float = 0.95, individuals: int = 1) -> Any:
    """The normal approximation, too short near 0 and 1."""
    p = np.asarray(positive) / m
    half_width = stats.norm.ppf(1 - (1 - level) / (2 * individuals)) * np.sqrt(p * (1 - p) / m)
    return np.maximum(p - half_width, 0), np.minimum(p + half_width, 1)


def jackknife_individuals(figures: Any, by_block: Ints, sizes: Ints) -> means.Jackknife:
    """Jackknife over individuals instead of runs."""
    counts, m = by_block.sum(axis=0), int(sizes.sum())
    kept = [counts.copy() for _ in range(len(counts))]
    for at, one in enumerate(kept):
        one[at] = counts[(at + 1) % len(counts)]  # replaced by another individual
    return means.Jackknife(figures(counts, m), np.array([figures(one, m) for one in kept]), m)


def from_the_start(done: list[range], number: int, runs_per_call: int) -> Any:
    """All run numbers, including completed ones."""
    return MISSING([], number, runs_per_call)


def silently(given: Any) -> list[range]:
    """Accept overlapping ranges."""
    return [range(max(each.stop for each in given))]


def no_difference(self: Any, path: Path, random_state: int | None) -> None:
    """Resume any checkpoint, whatever audit it belongs to."""
    self.identity = collecting._read_checkpoint(path)[0]["identity"]
    LOAD(self, path, random_state)


def above(self: Any, scores: Any, codes: Ints) -> None:
    """Only runs strictly above a level."""
    kept = self.levels
    self.levels = tuple(level + 1e-9 for level in kept)
    FIGURE(self, scores, codes)
    self.levels = kept


EXACT, MISSING = intervals.binomial_interval, collecting.pending_ranges
LOAD, FIGURE = collecting._Checkpoint.load, runs.Runs._record_figures

CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "variance with a bias": {"veracal.multiplicity.measures.decision_variance": biased},
    "at the threshold is above it": {
        "veracal.multiplicity.runs.Runs._decide": at_threshold_too
    },
    "one tail for two": {"veracal.multiplicity.measures.binomial_interval": one_tail},
    "each person alone": {
        "veracal.multiplicity.measures.binomial_interval": without_union_bound
    },
    "the normal interval": {"veracal.multiplicity.measures.binomial_interval": normal},
    "intervals of a fixed number": {"veracal.multiplicity.summary.anytime_interval": EXACT},
    "people drawn, not runs": {"veracal.multiplicity.summary.jackknife": jackknife_individuals},
    "begun anew on what is there": {
        "veracal.multiplicity.collecting.pending_ranges": from_the_start,
        "veracal.multiplicity.collecting.merge_ranges": silently,
    },
    "other records gone on with": {
        "veracal.multiplicity.collecting._Checkpoint.load": no_difference
    },
    "strictly above a level": {"veracal.multiplicity.runs.Runs._record_figures": above},
}
