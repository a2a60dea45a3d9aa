"""Disagreement is estimated without bias, its intervals hold, and no run counts twice.

Everything is checked on runs of which the truth is known: each person's decisions are coins of
a known share, fair or not, all of them tossed anew in every run.
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
from veracal.multiplicity import collecting, measures, runs
from veracal.multiplicity import measures as intervals
from veracal.multiplicity import summary as means
from veracal.multiplicity import summary as telling
from veracal.multiplicity.auditing import AuditSettings, audit_engine
from veracal.multiplicity.engines.base import AuditEngine, Streams, fingerprint

NAME = "multiplicity"
AT = "veracal.multiplicity"
SHARES = (0.0, 0.003, 0.05, 0.2, 0.5, 0.81, 1.0)
LEVEL = 0.9
LUCK = np.array([0.4, 1.2])  # how far a run's own luck moves the people of two groups


class Coins(AuditEngine):
    """Runs that decide for the second class with each person's own probability."""

    name, kind, classes = "coins", "probability", (0, 1)

    def __init__(self, shares: Any, tired_after: float = np.inf) -> None:
        self.shares = np.asarray(shares, dtype=float)
        self.people, self.together = len(self.shares), 9
        self.tired_after, self.made = tired_after, 0

    def scores(self, count: int, streams: Streams) -> Floats:
        """Coins, until it is tired."""
        self.made += count
        if self.made > self.tired_after:
            raise InterruptedError
        heads = streams.noise.uniform(size=(count, self.people)) < self.shares
        return np.where(heads, 0.5 + 1e-9, 0.5)  # at the threshold is not above it

    def settings(self) -> dict[str, Any]:
        """Its shares."""
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
            same = chance @ measures.normalized(both, m)
            assert abs(same - mean) < 1e-12, f"normalized at {p}: {same}"
    coins = audit_engine(Coins(SHARES), None, AuditSettings(63), random_state=0).persons.counts
    assert coins[0, 1] == 0, "a score at the threshold was decided for"
    assert coins[-1, 1] == 63, "runs were lost"


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
    """Looking after every few runs, the truth is hardly ever outside an interval."""
    p, looks = 0.2, np.unique(np.geomspace(5, 2_000, 60).astype(int))
    heads = np.random.default_rng(1).uniform(size=(paths, looks[-1])) < p
    left = np.zeros(paths, dtype=bool)
    for m in looks:
        counted = heads[:, :m].sum(axis=1)
        held = runs.Runs(paths)
        # Runs of as many people as there are paths; each is looked at by itself.
        held.counts_by_block[0, :, 1], held.runs_by_block[0] = counted, m
        held.counts_by_block[0, :, 0] = m - counted
        held.people = 1
        low, high = telling.intervals(held, LEVEL, lasting=True)
        left |= (low > 4 * p * (1 - p)) | (high < 4 * p * (1 - p))
    share = float(left.mean())
    most = stats.binom.ppf(1 - 1e-6, paths, 1 - LEVEL) / paths
    assert share <= most, f"the truth was outside at some look in {share:.3f} of the audits"
    return share


def check_means(audits: int) -> None:
    """Intervals of means and gaps count the runs, which people share."""
    rng, covered, gaps = np.random.default_rng(2), 0, 0
    places, group = np.linspace(-1.5, 1.5, 40), Group(np.arange(40) // 20, ("one", "other"))
    shares = stats.norm.cdf(places / np.hypot(1, LUCK[group.codes]))
    truth = 4 * shares * (1 - shares)
    apart = abs(truth[:20].mean() - truth[20:].mean())
    for _ in range(audits):
        mean, gap = told_of(rng, places, 80, group)
        covered += mean.low <= truth.mean() <= mean.high
        gaps += gap.low <= apart <= gap.high
    least = stats.binom.ppf(1e-6, audits, LEVEL - 0.03) / audits
    assert covered / audits >= least, f"means covered in {covered / audits:.3f}"
    assert gaps / audits >= least, f"gaps covered in {gaps / audits:.3f}"


def told_of(
    rng: np.random.Generator, places: Floats, m: int, group: Group
) -> tuple[Estimate, Estimate]:
    """Mean and gap of runs whose luck moves everybody, the second group more."""
    held = runs.Runs(len(places))
    luck = rng.normal(size=(m, 1)) * LUCK[group.codes]
    held.add((places + luck + rng.normal(size=(m, len(places))) > 0).astype(int))
    rows = {name: group.codes == code for code, name in enumerate(group.names)}
    return (
        means.mean_over_people(held, level=LEVEL),
        means.gap_over_groups(held, rows, level=LEVEL),
    )


def check_once(folder: Path) -> None:
    """An audit that broke off twice ends as one that did not."""
    asked, keep = AuditSettings(200), folder / "runs.npz"
    whole = audit_engine(Coins(SHARES), None, asked, random_state=7)
    for tired in (50, 70):
        with contextlib.suppress(InterruptedError):
            audit_engine(Coins(SHARES, tired), None, asked, keep=keep, random_state=7)
    last = Coins(SHARES)
    try:
        again = audit_engine(last, None, asked, keep=keep, random_state=7)
    except DataError as refused:
        raise AssertionError(f"an audit does not know its own file: {refused}") from refused
    assert again.runs == 200, f"{again.runs} runs instead of 200"
    assert 0 < last.made < 200, f"{last.made} runs were made although some were there"
    same = np.array_equal(whole.persons.counts, again.persons.counts)
    assert same, "what was counted depends on where it broke off"


def check_strangers(folder: Path) -> None:
    """Runs of another training are not gone on with."""
    keep = folder / "other.npz"
    audit_engine(Coins(SHARES), None, AuditSettings(20), keep=keep)
    try:
        audit_engine(Coins(SHARES[::-1]), None, AuditSettings(40), keep=keep)
    except DataError:
        return
    raise AssertionError("an audit of other records was gone on with")


def check_levels() -> None:
    """Runs at or above an accuracy are those, and no others."""
    rng, labels = np.random.default_rng(3), np.arange(10) % 2
    said = rng.integers(0, 2, (500, 10))
    held = runs.Runs(10, labels=labels, levels=(0.6,))
    held.add(said)
    chosen = said[(said == labels).mean(axis=1) >= 0.6]
    assert held.level_runs[0] == len(chosen), "runs below the level, or not all at it"
    assert np.array_equal(held.level_counts[0, :, 1], chosen.sum(axis=0)), "wrong counts"


# ---------------------------------------------------------------- mutants


def biased(positive: Ints, m: int) -> Floats:
    """Plain variance, as two of the paper's notebooks have it."""
    share = np.asarray(positive) / m
    return share * (1 - share)


def at_threshold_too(self: runs.Runs, scores: Floats, kind: str) -> Ints:
    """A score at the threshold counts as above it."""
    return (scores >= 0.5).astype(np.uint8)


def one_tail(positive: Ints, m: int, level: float = 0.95, people: int = 1) -> Any:
    """The whole of what the level leaves, at either end."""
    return EXACT(positive, m, 2 * level - 1, people)


def by_oneself(positive: Ints, m: int, level: float = 0.95, people: int = 1) -> Any:
    """Intervals that hold for one person, not for all."""
    return EXACT(positive, m, level, 1)


def normal(positive: Ints, m: int, level: float = 0.95, people: int = 1) -> Any:
    """The interval of every textbook, too short near 0 and 1."""
    p = np.asarray(positive) / m
    reach = stats.norm.ppf(1 - (1 - level) / (2 * people)) * np.sqrt(p * (1 - p) / m)
    return np.maximum(p - reach, 0), np.minimum(p + reach, 1)


def as_if_people_were_drawn(figures: Any, by_block: Ints, sizes: Ints) -> means.Jackknife:
    """Leave out people, not runs."""
    counts, m = by_block.sum(axis=0), int(sizes.sum())
    kept = [counts.copy() for _ in range(len(counts))]
    for at, one in enumerate(kept):
        one[at] = counts[(at + 1) % len(counts)]  # another's in place of one's own
    return means.Jackknife(figures(counts, m), np.array([figures(one, m) for one in kept]), m)


def from_the_start(done: list[range], number: int, together: int) -> Any:
    """All numbers, whatever was done."""
    return MISSING([], number, together)


def silently(given: Any) -> list[range]:
    """Numbers that are counted twice raise nothing."""
    return [range(max(each.stop for each in given))]


def no_difference(self: Any, random_state: int | None) -> None:
    """Go on with whatever is there."""
    if self.keep is not None and self.keep.exists():
        self.about = collecting._read(self.keep)[0]["about"]
    READ(self, random_state)


def above(self: Any, scores: Any, codes: Ints) -> None:
    """Runs strictly above a level."""
    kept = self.levels
    self.levels = tuple(level + 1e-9 for level in kept)
    FIGURE(self, scores, codes)
    self.levels = kept


EXACT, MISSING = intervals.binomial_interval, collecting.missing
READ, FIGURE = collecting._Book.read, runs.Runs._figure

CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "variance with a bias": {"veracal.multiplicity.measures.decision_variance": biased},
    "at the threshold is above it": {
        "veracal.multiplicity.runs.Runs._decided": at_threshold_too
    },
    "one tail for two": {"veracal.multiplicity.measures.binomial_interval": one_tail},
    "each person alone": {"veracal.multiplicity.measures.binomial_interval": by_oneself},
    "the normal interval": {"veracal.multiplicity.measures.binomial_interval": normal},
    "intervals of a fixed number": {"veracal.multiplicity.summary.lasting_interval": EXACT},
    "people drawn, not runs": {
        "veracal.multiplicity.summary.left_out": as_if_people_were_drawn
    },
    "begun anew on what is there": {
        "veracal.multiplicity.collecting.missing": from_the_start,
        "veracal.multiplicity.collecting.joined": silently,
    },
    "other records gone on with": {"veracal.multiplicity.collecting._Book.read": no_difference},
    "strictly above a level": {"veracal.multiplicity.runs.Runs._figure": above},
}
