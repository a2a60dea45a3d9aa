"""The default of `recalibrate`, and reference methods, with fewer trials than the table.

The default guard keeps a map only if the answers that led to it say, with a chance of 0.95,
that it helps; the planner knows the number of records where it is declared; and golden section
ends in a bracket, so the root itself is a sharper reference than Acc-T without noise.
"""

from collections.abc import Iterable

import numpy as np

from benchmarks.shift.grid import (
    CLASSES,
    EPSILONS,
    POINTS,
    RANGE,
    RECORDS,
    SIZE_OF,
    SOURCES,
)
from benchmarks.shift.logits import Setting, logits
from benchmarks.shift.methods import SHARES, TOGETHER, acc_t, none, pooled, pooled_fit
from benchmarks.shift.tables import TEMPERATURES, Tables, tables
from benchmarks.shift.trials import Sources, doubted_error, error
from veracal._types import Floats
from veracal.calibration import plan_pooled
from veracal.calibration.private.guard import BETA
from veracal.calibration.private.pooled import WIDE
from veracal.calibration.private.root_posterior import NoisyCounts, NoisyGap, pooled_posterior

ENDS = -float(np.log(RANGE[1])), -float(np.log(RANGE[0]))


def root(made: Tables) -> Floats:
    """Error at the temperature where confidence is accuracy on the sources' records."""
    sums = np.abs(made.gaps.sum(axis=-1))
    best = TEMPERATURES[sums.argmin(axis=0)][:, SIZE_OF]
    return error(Sources(made, np.random.default_rng(0), private=False), best)


def guarded(made: Tables, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Error with the default guard, and which maps were kept, of shape (trials, points)."""
    sources = ObservedSources(made, rng)
    temperature, doubt = pooled_fit(sources, SHARES)
    mapped = doubted_error(sources, temperature, doubt)
    kept = _chance(sources, temperature, doubt) >= 1 - BETA
    return np.where(kept, mapped, none(sources)), kept.astype(float)


class ObservedSources(Sources):
    """Sources whose answers are recorded."""

    def counts(self, share: float) -> Floats:
        """Right and wrong predictions, remembered."""
        found = super().counts(share)
        object.__setattr__(self, "seen", [(found, share)])
        return found

    def gap(self, temperature: Floats, share: float) -> Floats:
        """A gap, remembered."""
        found = super().gap(temperature, share)
        self.seen.append((temperature, found, share))  # type: ignore[attr-defined]
        return found


def _chance(sources: ObservedSources, temperature: Floats, doubt: Floats) -> Floats:
    """How probable it is that the map helps, as ``PooledTemperature.improved_``."""
    (counts, share), *gaps = sources.seen  # type: ignore[attr-defined]
    many = np.broadcast_to(SOURCES, sources.shape)
    about = counts[..., 0], counts[..., 1], sources.std(share), many
    flat = [np.ravel(x) for x in about]
    seen = [[np.ravel(x) for x in (-np.log(t), g, sources.std(s))] for t, g, s in gaps]
    place, share_of = np.ravel(-np.log(temperature)), np.ravel(doubt)
    found = np.empty(place.size)
    for start in range(0, place.size, TOGETHER):
        rows = slice(start, start + TOGETHER)
        met = pooled_posterior(
            NoisyCounts(*(x[rows] for x in flat)),
            [NoisyGap(*(x[rows] for x in gap)) for gap in seen],
            ENDS,
            spread=WIDE,
        )
        wide = share_of[rows][:, None, None, None]
        found[rows] = met.improved(place[rows], wide, 1 / CLASSES)
    return found.reshape(sources.shape)


def planned(made: Tables, rng: np.random.Generator) -> Floats:
    """Error where the number of records is declared, so that the planner may use it."""
    shares = [
        plan_pooled(
            point.sources, epsilon=point.epsilon, records=point.records, classes=CLASSES
        ).shares
        for point in POINTS
    ]
    result = np.empty((made.trials, len(POINTS)))
    for shape in set(shares):
        mine = np.array([one == shape for one in shares])
        result[:, mine] = pooled(Sources(made, rng), shares=shape)[:, mine]
    return result


def compare_defaults(settings: Iterable[Setting], trials: int) -> dict[str, Floats]:
    """Mean errors of shape (settings, points) by name."""
    found: dict[str, list[Floats]] = {}
    for setting in settings:
        scores, labels = logits(setting.network, setting.corruption, setting.severity)
        made = tables(scores, labels, f"beside: {setting.place.stem}", trials)
        rng = np.random.default_rng([7, *made.order[:2, 0].tolist()])
        errors, kept = guarded(made, rng)
        rows = {
            "none": none(Sources(made, rng)),
            "Acc-T": acc_t(Sources(made, rng)),
            "pooled": pooled(Sources(made, rng)),
            "pooled, default guard": errors,
            "share kept": kept,
            "pooled, size declared": planned(made, rng),
            "open: Acc-T": acc_t(Sources(made, rng, private=False)),
            "open: root": root(made),
        }
        for name, values in rows.items():
            found.setdefault(name, []).append(values.mean(axis=0))
    return {name: np.array(rows) for name, rows in found.items()}


def show(settings: Iterable[Setting], trials: int) -> None:
    """Print means, overall and for few and for many records."""
    few, enough = RECORDS <= 500, (RECORDS >= 500) & (EPSILONS >= 1)
    print(f"{'':24}{'mean':>8}{'<= 500':>8}{'>= 500, epsilon >= 1':>22}")
    for name, rows in compare_defaults(settings, trials).items():
        parts = rows.mean(), rows[:, few].mean(), rows[:, enough].mean()
        print(f"{name:24}{parts[0]:>8.4f}{parts[1]:>8.4f}{parts[2]:>22.4f}")
