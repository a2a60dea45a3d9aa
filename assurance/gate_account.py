"""Epsilon is never below the true value, close to it, and monotone."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.rdp import RdpAccountant
from scipy import optimize, special, stats

from veracal.accounting.epsilon import clt_epsilon_not_a_bound, epsilon_for
from veracal.accounting.events import (
    Composed,
    DiscreteLaplace,
    Event,
    Gaussian,
    Laplace,
    Parallel,
    PoissonGaussian,
    Repeated,
    Unit,
)
from veracal.accounting.pld import compose, privacy_loss

NAME = "account"
SECONDS = 5
Accountant = Callable[..., float]
GAP = 1e-3  # beyond the truth, as a fraction
ABOVE = 1e-7  # below the truth: nothing but the rounding of doubles


# ---------------------------------------------------------------- mutants


def central_limit(event: Event, delta: float, unit: Unit | None = None) -> float:
    """Report the central-limit figure as if it were a bound."""
    try:
        return clt_epsilon_not_a_bound(event, delta)
    except ValueError:
        return epsilon_for(event, delta, unit)


def undoubled(event: Event, delta: float, unit: Unit | None = None) -> float:
    """Ask dp-accounting's Rényi accountant for replace-one, which forgets to double."""
    if isinstance(event, Gaussian) and event.relation == "replace-one":
        accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
        accountant.compose(dp_event.GaussianDpEvent(2 * event.noise / event.sensitivity))
        return float(accountant.get_epsilon(delta))
    return epsilon_for(event, delta, unit)


def one_row_only(event: Event, delta: float, unit: Unit | None = None) -> float:
    """Forget that a unit has several rows."""
    return epsilon_for(event, delta)


def smooth_for_discrete(event: Event, delta: float, unit: Unit | None = None) -> float:
    """Charge integer noise as if it were continuous."""

    def smooth(event: Event) -> Event:
        if isinstance(event, DiscreteLaplace):
            return Laplace(event.noise, event.sensitivity, event.relation)
        if isinstance(event, Repeated):
            return Repeated(smooth(event.event), event.times)
        return event

    return epsilon_for(smooth(event), delta, unit)


def one_step_fewer(event: Event, delta: float, unit: Unit | None = None) -> float:
    """Count the steps from zero."""
    if isinstance(event, Repeated) and event.times > 1:
        event = replace(event, times=event.times - 1)
    return epsilon_for(event, delta, unit)


def one_direction(event: Event, delta: float, unit: Unit | None = None) -> float:
    """Look only at adding a record, never at removing one."""
    inner = event.event if isinstance(event, Repeated) else None
    if not isinstance(inner, PoissonGaussian) or inner.relation == "replace-one":
        return epsilon_for(event, delta, unit)
    both = privacy_loss(inner, spacing=1e-3, rows=(unit or Unit()).max_contributions)
    one = type(both)(both._pmf_add)
    total = compose([(one, event.times)], delta=delta)  # type: ignore[union-attr]
    return total.epsilon(delta)


def average_of_parts(event: Event, delta: float, unit: Unit | None = None) -> float:
    """Charge disjoint parts by their average."""
    if isinstance(event, Parallel):
        return float(np.mean([epsilon_for(part, delta, unit) for part in event.events]))
    return epsilon_for(event, delta, unit)


def delta_doubled(event: Event, delta: float, unit: Unit | None = None) -> float:
    """Spend the delta twice."""
    return epsilon_for(event, min(2 * delta, 0.5), unit)


def two_batches_for_one(event: Event, delta: float, unit: Unit | None = None) -> float:
    """Charge two statistics of one batch as if each had its own batch."""
    if isinstance(event, Repeated) and isinstance(event.event, PoissonGaussian):
        inner = event.event
        if inner.relation == "add-remove" and inner.rate < 1:
            half = replace(inner, noise=inner.noise * math.sqrt(2))
            return epsilon_for(Repeated(half, 2 * event.times), delta, unit)
    return epsilon_for(event, delta, unit)


def coins_tossed_anew(event: Event, delta: float, unit: Unit | None = None) -> float:
    """Treat one random split as an independent split each time it is used."""
    if isinstance(event, Composed) and any(isinstance(e, Parallel) for e in event.events):
        splits = [e for e in event.events if isinstance(e, Parallel)]
        parts = [compose_split(split, delta, 1e-3) for split in splits]
        return compose([(part, 1) for part in parts], delta=delta).epsilon(delta)
    return epsilon_for(event, delta, unit)


def compose_split(split: Parallel, delta: float, spacing: float) -> Any:
    """One split's mixture of losses."""
    assert split.weights is not None
    losses = [privacy_loss(part, spacing=spacing) for part in split.events]
    return losses[0].compute_mixture(losses[1], split.weights[0])


CORRECT: Accountant = epsilon_for
MUTANTS: dict[str, Accountant] = {
    "central-limit figure as a bound": central_limit,
    "replace-one not doubled": undoubled,
    "one row of several": one_row_only,
    "discrete noise as continuous": smooth_for_discrete,
    "one step too few": one_step_fewer,
    "only the direction of adding": one_direction,
    "average of parts": average_of_parts,
    "delta spent twice": delta_doubled,
    "two statistics of a batch as two batches": two_batches_for_one,
    "coins of a split tossed anew": coins_tossed_anew,
}


# ---------------------------------------------------------------- truths


def gaussian(ratio: float, delta: float) -> float:
    """Exact epsilon of a Gaussian mechanism, by its own root finding."""

    def excess(epsilon: float) -> float:
        near, far = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
        return math.log(
            special.ndtr(near) - math.exp(epsilon + special.log_ndtr(far)) or 1e-300
        )

    if excess(0.0) <= math.log(delta):
        return 0.0
    top = ratio * ratio / 2 + ratio * stats.norm.isf(delta) + 1
    return float(optimize.brentq(lambda e: excess(e) - math.log(delta), 0, top, xtol=1e-13))


def sampled(noise: float, rate: float, delta: float, rows: int, relation: str) -> float:
    """Exact epsilon of one step on a batch, by integrating the two densities."""
    j = np.arange(rows + 1)
    weights = stats.binom.pmf(j, rows, rate)
    x = np.linspace(-rows - 12 * noise, rows + 12 * noise, 100_001)
    step = x[1] - x[0]
    there = (weights * stats.norm.pdf(x[:, None], j, noise)).sum(axis=1)
    if relation == "add-remove":
        here = stats.norm.pdf(x, 0, noise)
        pairs = [(there, here), (here, there)]
    else:
        pairs = [(there, there[::-1])]

    def delta_at(epsilon: float) -> float:
        sides = [np.maximum(p - math.exp(epsilon) * q, 0).sum() * step for p, q in pairs]
        return float(max(sides))

    if delta_at(0.0) <= delta:
        return 0.0
    return float(optimize.brentq(lambda e: delta_at(e) - delta, 0, 200, xtol=1e-9))


def discrete_laplace(scale: float, shift: int, times: int, delta: float) -> float:
    """Exact epsilon of repeated integer noise, by convolving its few atoms."""
    reach = int(60 * scale)
    k = np.arange(-reach, reach + shift + 1)
    mass = np.exp(-np.abs(k) / scale)
    mass /= mass.sum()
    # Losses are multiples of 1/scale: (|k - shift| - |k|) / scale.
    loss = np.abs(k - shift) - np.abs(k) + shift
    one = np.bincount(loss, mass)
    law = one
    for _ in range(times - 1):
        law = np.convolve(law, one)
    losses = (np.arange(len(law)) - shift * times) / scale

    def delta_at(epsilon: float) -> float:
        return float((law * -np.expm1(np.minimum(epsilon - losses, 0))).sum())

    if delta_at(0.0) <= delta:
        return 0.0
    return float(optimize.brentq(lambda e: delta_at(e) - delta, 0, 200, xtol=1e-12))


# ---------------------------------------------------------------- the gate


def run(subject: Accountant, *, long: bool) -> str:
    """Compare with truths computed another way, then look for breaks of monotony."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for event, delta, unit, truth in truths(60 if long else 8):
        found = subject(event, delta, unit)
        where = f"{event} at delta={delta:.3g} for {unit}"
        assert found >= truth * (1 - ABOVE) - 1e-9, f"{found} < {truth}: {where}"
        gap = (found - truth) / max(truth, 1e-2)
        assert gap <= GAP, f"{found} > {truth}: {where}"
        worst = max(worst, gap)
    settings = 10_000 if long else 12
    breaks = sum(breaks_of_monotony(subject, rng) for _ in range(settings))
    assert breaks == 0, f"{breaks} breaks of monotony"
    return f"largest gap {worst:.1e}, never below; monotone on {settings:,} settings"


@cache
def truths(count: int) -> list[tuple[Event, float, Unit, float]]:
    """Events and what they truly cost; the same for every mutant."""
    rng = np.random.default_rng(0)
    made: list[tuple[Event, float, Unit, float]] = []
    for _ in range(count):
        noise, delta = float(rng.uniform(0.5, 8)), float(10 ** rng.uniform(-8, -2))
        times, rate = int(rng.integers(2, 40)), float(rng.uniform(0.01, 0.6))
        one, several = Unit(), Unit("patient", int(rng.integers(2, 5)))
        replaced = Gaussian(noise, 2.0, "replace-one")
        made.append((replaced, delta, one, gaussian(2 / noise, delta)))
        full = Repeated(PoissonGaussian(noise), times)
        made.append((full, delta, one, gaussian(math.sqrt(times) / noise, delta)))
        rows = several.max_contributions
        made.append((Gaussian(noise), delta, several, gaussian(rows / noise, delta)))
        parts = Parallel((Gaussian(noise), Gaussian(3 * noise)))
        made.append((parts, delta, one, gaussian(1 / noise, delta)))
        for relation in ("add-remove", "replace-one"):
            batch = Repeated(PoissonGaussian(noise, 1.0, relation, rate), 1)
            for unit in (one, several):
                cost = sampled(noise, rate, delta, unit.max_contributions, relation)
                made.append((batch, delta, unit, cost))
        made.append((*twice_split(noise, delta), one, split_truth(noise, delta)))
        counts = Repeated(DiscreteLaplace(noise, 1), times)
        made.append((counts, delta, one, discrete_laplace(noise, 1, times, delta)))
    return made


RARE = 0.01


def twice_split(noise: float, delta: float) -> tuple[Event, float]:
    """One secret random split, used ten times."""
    split = Parallel((Gaussian(noise), Gaussian(30 * noise)), (RARE, 1 - RARE))
    return Composed((split, Composed((split,) * 9))), delta


def split_truth(noise: float, delta: float) -> float:
    """At least what the rare part alone costs those who are in it, and no more than its worst.

    The bound ignores the random split here, so it is the cost of the expensive part.
    """
    return gaussian(math.sqrt(10) / noise, delta)


def breaks_of_monotony(subject: Accountant, rng: np.random.Generator) -> int:
    """How many of five changes that can only cost less seem to cost more."""
    noise, rate = float(rng.uniform(0.5, 10)), float(rng.uniform(0.002, 1))
    times, delta = int(rng.integers(1, 500)), float(10 ** rng.uniform(-9, -2))

    def cost(noise: float, rate: float, times: int, delta: float) -> float:
        event = Composed((Repeated(PoissonGaussian(noise, rate=rate), times), Laplace(20.0)))
        return subject(event, delta, Unit())

    base = cost(noise, rate, times, delta)
    less = (
        cost(noise * 1.03, rate, times, delta),
        cost(noise, rate * 0.97, times, delta),
        cost(noise, rate, max(1, times - 1), delta),
        cost(noise, rate, times, delta * 1.5),
    )
    return sum(value > base * (1 + 1e-6) for value in less) + (base < 0)
