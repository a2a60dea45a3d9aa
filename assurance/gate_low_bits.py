"""The low-order bits of a release reveal nothing about the value before the noise.

Two data sets differ in one record: of one the statistic is exactly zero, of the other it is
not. Floating-point noise added to zero keeps all its digits, and added to anything else it
does not, so that some releases can occur for one data set only (Mironov 2012). The attack looks
at the exponent of the lowest bit that is set, at whether a release is small, and, for a
perturbed objective, at whether the solver reproduces the release from any nearby noise. It
chooses its event on one half of the draws, and counts it on the other. Error rates, bounded by
Clopper and Pearson at alpha = 1e-7, give a lower bound on epsilon, or on mu for Gaussian noise,
which must not exceed the claim. The noise must also have the size that is claimed: of a mutant
with 0.94 of it, mean lengths are off by more than five standard errors. All draws are seeded.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import special

from assurance.ledgers import Patches, patched
from veracal._types import Bools, Floats
from veracal.data import Dataset
from veracal.mechanisms import DPSGD, SGD, Flat, FullBatch, GlobalAdapt, Grid, rounded_noise
from veracal.mechanisms.clipping import ClippedSum
from veracal.mechanisms.dp_sgd import PrefetchedNoise
from veracal.training import ObjectivePerturbation, OutputPerturbation
from veracal.training import objective_perturbation as objective
from veracal.training import standardizer as moments
from veracal.training.newton import minimize
from veracal.training.objective_perturbation import minimizer_grid_step
from veracal.training.output_perturbation import OutputNoise, spherical_gamma

NAME = "low_bits"
ALPHA = 1e-7
ERRORS = 5  # standard errors that a mean may be off
CLOSE = 12  # floats on either side of the noise that an attacker tries
OUTPUT = "veracal.training.output_perturbation."
OBJECTIVE = "veracal.training.objective_perturbation."
MOMENTS = "veracal.training.standardizer."
AHEAD = "veracal.mechanisms.dp_sgd.PrefetchedNoise."
LOOP = "veracal.mechanisms.dp_sgd.DPSGD."
gaussian, spherical = rounded_noise.rounded_gaussian, rounded_noise.rounded_spherical
draw = PrefetchedNoise._draw


# ---------------------------------------------------------------- the code of before


def float_release(noise: OutputNoise, exact: Floats, *, rng: np.random.Generator) -> Floats:
    """Weights plus noise, both in floating point."""
    if noise.noise_scale is not None:
        return exact + spherical_gamma(
            exact.shape[1], noise.noise_scale, rng=rng, size=len(exact)
        )
    assert noise.noise_std is not None
    return exact + rng.normal(0.0, noise.noise_std, exact.shape)


def float_minimizers(X: Any, signs: Any, noise: Any, **settings: Any) -> Floats:
    """The minimizer for floating-point noise, as the solver leaves it."""
    scale, rng = float(noise[0]._scale), np.random.default_rng(1)
    linear = spherical_gamma(X.shape[1], scale, rng=rng, size=len(noise))
    settings.pop("step")
    return minimize(X, signs, linear, **settings)


def float_moments(
    sums: Any,
    size: int,
    noise_std: float,
    *,
    grid: Grid,
    rng: np.random.Generator,
    **settings: Any,
) -> tuple[Floats, Floats]:
    """Floating-point noise on sums, although they are exact."""
    noisy = (sums * grid.step + rng.normal(0.0, noise_std, sums.shape)) / size
    return noisy[0] * settings.get("mean_norm", 1.0), noisy[1]


def float_sum(ahead: PrefetchedNoise, total: Floats, std: float) -> Floats:
    """A float sum plus float noise."""
    noise: Floats = ahead._take() * std
    return noise + total


def float_draw(ahead: PrefetchedNoise, shape: Any) -> Floats:
    """Normals as the generator gives them."""
    return ahead._rng.standard_normal(shape)


def float_count(descent: DPSGD, clip: Any, exceeding: int, rng: np.random.Generator) -> Any:
    """Floating-point noise on a count."""
    noisy = exceeding + rng.normal(0.0, clip.count_noise)
    return clip.adapt(noisy / descent.expected_batch)


def rounded_after(noise: OutputNoise, exact: Floats, *, rng: np.random.Generator) -> Floats:
    """Round weights whose noise is finer, to their own last digits."""
    return np.rint(float_release(noise, exact, rng=rng) * 2.0**60) / 2.0**60


def smaller(function: Callable[..., Any]) -> Callable[..., Any]:
    """Noise of 0.94 of its size."""
    return lambda scale, *rest, **more: function(0.94 * scale, *rest, **more)


@dataclass(frozen=True)
class Subject:
    """Patches, and the parts of the gate that they concern; by default all."""

    patches: Patches = field(default_factory=dict)
    part: str = ""


CORRECT = Subject()
MUTANTS = {
    "output: floating-point noise": Subject(
        {"veracal.training.output_perturbation.OutputNoise.release": float_release}, "output"
    ),
    "output: floating-point Gaussian noise": Subject(
        {"veracal.training.output_perturbation.OutputNoise.release": float_release},
        "output, Gaussian",
    ),
    "output: rounded after the noise": Subject(
        {"veracal.training.output_perturbation.OutputNoise.release": rounded_after}, "output"
    ),
    "output: spherical noise times 0.94": Subject(
        {"veracal.training.output_perturbation.rounded_spherical": smaller(spherical)}, "output"
    ),
    "output: Gaussian noise times 0.94": Subject(
        {"veracal.training.output_perturbation.rounded_gaussian": smaller(gaussian)},
        "output, Gaussian",
    ),
    "objective: floating-point noise": Subject(
        {"veracal.training.objective_perturbation.rounded_minimizers": float_minimizers},
        "objective",
    ),
    "objective: noise times 0.94": Subject(
        {
            "veracal.training.objective_perturbation.SphericalNoise": smaller(
                rounded_noise.SphericalNoise
            )
        },
        "objective",
    ),
    "standardizer: floating-point noise": Subject(
        {"veracal.training.standardizer.noisy_moments": float_moments}, "moments"
    ),
    "standardizer: noise times 0.94": Subject(
        {"veracal.training.standardizer.rounded_gaussian": smaller(gaussian)}, "moments"
    ),
    "channels: floating-point noise": Subject(
        {"veracal.training.standardizer.noisy_moments": float_moments}, "channels"
    ),
    "channels: noise times 0.94": Subject(
        {"veracal.training.standardizer.rounded_gaussian": smaller(gaussian)}, "channels"
    ),
    "descent: floating-point noise": Subject(
        {
            "veracal.mechanisms.dp_sgd.PrefetchedNoise.add_to": float_sum,
            "veracal.mechanisms.dp_sgd.PrefetchedNoise._draw": float_draw,
        },
        "descent",
    ),
    "descent: noise times 0.94": Subject(
        {
            "veracal.mechanisms.dp_sgd.PrefetchedNoise._draw": lambda ahead, shape: np.rint(
                0.94 * draw(ahead, shape)
            )
        },
        "descent",
    ),
    "descent: floating-point noise on the count": Subject(
        {"veracal.mechanisms.dp_sgd.DPSGD._next_clip": float_count}, "count"
    ),
}


def run(subject: Subject, *, long: bool) -> str:
    """Attack every release that adds noise to real numbers."""
    n = 60_000 if long else 6_000
    found = {}
    with patched(subject.patches):
        for name, attack in PARTS.items():
            if subject.part in ("", name):
                found[name] = max(attack(n))
    shares = ", ".join(f"{name} {share:.2f}" for name, share in found.items())
    return f"proved of what is claimed: {shares}"


# ---------------------------------------------------------------- the attack


def lowest_bits(values: Floats) -> Floats:
    """Exponent of the lowest bit that is set; infinite for zero."""
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(np.abs(mantissas), 53).astype(np.int64)
    low = np.log2(
        (whole & -whole).astype(np.float64), where=whole > 0, out=np.full(len(whole), np.inf)
    )
    return low + exponents - 53


@dataclass(frozen=True)
class LowBits:
    """The features that an attacker uses: lowest bits and sizes of released numbers."""

    bits: Floats
    sizes: Floats

    @classmethod
    def of(cls, values: Floats) -> "LowBits":
        """Of some releases."""
        return cls(lowest_bits(values), np.abs(values))

    def happened(self, event: tuple[float, float]) -> Bools:
        """Releases for which an event is true."""
        cut, most = event
        found: Bools = (self.bits <= cut) & (self.sizes <= most)
        return found


def events(*seen: LowBits) -> Iterator[tuple[float, float]]:
    """Events about low-order bits, of small values and of all: the largest bit and value."""
    bits, sizes = (
        np.concatenate([getattr(s, name) for s in seen]) for name in ("bits", "sizes")
    )
    cuts = np.unique(bits[np.isfinite(bits)])
    for most in (np.inf, *np.quantile(sizes, [0.02, 0.05, 0.1, 0.2, 0.4])):
        for cut in cuts[:: max(1, len(cuts) // 40)]:
            yield float(cut), float(most)


def proved(one: Floats, other: Floats, measure: Callable[[float, float], float]) -> float:
    """What the best event proves: chosen on one half of the draws, counted on the other."""
    halves = [(LowBits.of(one[half::2]), LowBits.of(other[half::2])) for half in (0, 1)]

    def score(event: tuple[float, float], half: int) -> float:
        here, there = (seen.happened(event) for seen in halves[half])
        return max(proved_epsilon(here, there, measure), proved_epsilon(there, here, measure))

    best = max(events(*halves[0]), key=lambda event: score(event, 0))
    return score(best, 1)


def proved_epsilon(
    here: Bools, there: Bools, measure: Callable[[float, float], float]
) -> float:
    """What an event proves that is likelier here than there."""
    n, k, other = len(here), int(here.sum()), int(there.sum())
    if k == 0:
        return 0.0
    likely = float(special.betaincinv(k, n - k + 1, ALPHA))
    rare = (
        float(special.betainccinv(other + 1, len(there) - other, ALPHA))
        if other < len(there)
        else 1.0
    )
    return max(0.0, measure(likely, rare))


def epsilon(likely: float, rare: float) -> float:
    """Pure epsilon of an event."""
    return math.log(likely / rare)


def mu(likely: float, rare: float) -> float:
    """The Gaussian measure of an event."""
    return float(special.ndtri(likely) - special.ndtri(rare))


def share(name: str, found: float, claimed: float) -> float:
    """How much of a claim an attack proves; more than all of it fails."""
    assert found <= claimed, f"{name}: {found:.2f} is proved, and {claimed:.2f} is claimed"
    return found / claimed


def check_size(name: str, lengths: Floats, mean: float, std: float) -> None:
    """Lengths of noise have the mean that they should have."""
    error = std / math.sqrt(len(lengths))
    off = (float(lengths.mean()) - mean) / error
    assert abs(off) < ERRORS, f"{name}: the noise is off its size by {off:.1f} standard errors"


def check_normal(name: str, noise: Floats, std: float) -> None:
    """The mean square of noise is that of a normal distribution."""
    check_size(name, (noise / std) ** 2, 1.0, math.sqrt(2))


# ---------------------------------------------------------------- releases


def table(rows: list[list[float]]) -> Dataset:
    """Records of two classes by turns."""
    return Dataset(np.array(rows), np.arange(len(rows)) % 2, ("a", "b"), size=4)


def outputs(n: int, settings: tuple[tuple[int, float], ...]) -> Iterator[float]:
    """Weights that are zero without one record, and the same as real fits have them."""
    for d, delta in settings:
        claimed = 4.0 if delta else 1.0
        model = OutputPerturbation(claimed, delta, norm=1.0, fit_intercept=False)
        rng, draws, drawn = np.random.default_rng(0), [], []
        zero = [[0.0] * d] * 3
        for rows in (zero, [*zero, [1.0] + [0.0] * (d - 1)]):
            task = model.binary(table(rows))
            exact, noise = model.exact(task.rows, task.signs, task.norm), model.noise(1.0)
            draws.append(noise.release(np.repeat(exact, n, axis=0), rng=rng))
            drawn.append(draws[-1] - exact)
        if delta:
            mechanism = model.event().noise  # type: ignore[union-attr]
            found, claimed = proved(draws[0][:, 0], draws[1][:, 0], mu), 1 / mechanism
            check_normal("output", np.concatenate(drawn)[:, 0], noise.noise_std or 0.0)
        else:
            found = proved(draws[0][:, 0], draws[1][:, 0], epsilon)
            lengths = np.linalg.norm(np.concatenate(drawn), axis=1) / (noise.noise_scale or 0.0)
            check_size("output", lengths, d, math.sqrt(d))
        yield share(f"output, d = {d}, delta = {delta}", found, claimed)
        fitted = model.set_params(random_state=None).fit_records(table([*zero, [1.0] * d]))
        assert fitted.private_, "a fit is not private"
        units = fitted.coef_ / noise.step
        assert (units == np.rint(units)).all(), "weights lie off the public grid"


def objectives(n: int) -> Iterator[float]:
    """Minimizers that are noise over a penalty without one record."""
    for d, draws_of in ((1, n // 4), (12, n // 5)):
        model = ObjectivePerturbation(1.0, C=0.7, norm=1.0, fit_intercept=False)
        used, rng = model.perturbation(1.0), np.random.default_rng(0)
        penalty = model.penalties(used, d)
        step = minimizer_grid_step(1.0, used.lambda_total, d)
        zero, draws = [[0.0] * d] * 3, []
        tasks = [model.binary(table(rows)) for rows in (zero, [*zero, [1.0] + [0.0] * (d - 1)])]
        for task in tasks:
            noise = [
                objective.SphericalNoise(used.noise_scale, d, rng=rng) for _ in range(draws_of)
            ]
            draws.append(
                objective.rounded_minimizers(
                    task.rows,
                    np.repeat(task.signs, draws_of, axis=0),
                    noise,
                    penalty=penalty,
                    step=step,
                    tol=1e-10,
                    limit=1e-5,
                )
            )
        lengths = np.linalg.norm(draws[0], axis=1) * used.lambda_total / used.noise_scale
        check_size("objective", lengths, d, math.sqrt(d))
        yield share(f"objective, d = {d}", proved(draws[0][:, 0], draws[1][:, 0], epsilon), 1.0)
        if d == 1:
            seen = [~reproduced(tasks[0], some, penalty) for some in draws]
            yield share(
                "objective, by the solver", proved_epsilon(seen[1], seen[0], epsilon), 1.0
            )
    fitted = model.fit_records(table([*zero, [1.0] * d]))
    units = fitted.coef_ / step
    assert fitted.private_ and (units == np.rint(units)).all(), "weights lie off the grid"


def reproduced(task: Any, weights: Floats, penalty: Floats) -> Bools:
    """Whether the solver gives exactly these weights for noise next to the required one."""
    signs = np.repeat(task.signs, len(weights), axis=0)
    noise = -penalty * weights  # rows are zero
    hit = np.zeros(len(weights), dtype=bool)
    for near in range(-CLOSE, CLOSE + 1):
        tried = minimize(
            task.rows, signs, noise + near * np.spacing(noise), penalty=penalty, tol=1e-10
        )
        hit |= (tried == weights).all(axis=1)
    return hit


def standardizers(n: int) -> Iterator[float]:
    """Sums of columns that are zero without one record, as many columns as draws."""
    std, size, rng = 2.0, 2**20, np.random.default_rng(0)
    grid, draws = moments.COLUMN_GRID, []
    settings: dict[str, Any] = {"largest": 1.0, "least_variance": moments.MIN_VARIANCE}
    for unit in (0, 2**grid.bits):
        sums = np.zeros((2, n), dtype=np.int64)
        sums[0] = unit
        means, _ = moments.noisy_moments(sums, size, std, grid=grid, rng=rng, **settings)
        draws.append(means * size)
    check_normal("standardizer", np.concatenate([draws[0], draws[1] - 1]), std)
    yield share("standardizer", proved(draws[0], draws[1], mu), 1 / std)


def channels(n: int) -> Iterator[float]:
    """The same for channels of features."""
    std, size, rng = 2.0, 2**20, np.random.default_rng(0)
    grid, draws = moments.channel_grid(n), []
    settings: dict[str, Any] = {"mean_norm": 1.0, "square_norm": 1.0, "least_variance": 1e-6}
    for unit in (0, 2**grid.bits):
        sums = np.zeros((2, n), dtype=np.int64)
        sums[0] = unit
        means, _ = moments.noisy_moments(sums, size, std, grid=grid, rng=rng, **settings)
        draws.append(means * size)
    check_normal("channels", np.concatenate([draws[0], draws[1] - 1]), std)
    yield share("channels", proved(draws[0], draws[1], mu), 1 / std)


def descents(n: int) -> Iterator[float]:
    """Sums that are zero without one record, in one entry of each of many steps."""
    entries, noise = 50, 2.0
    settings: dict[str, Any] = {"steps": 10 * n // entries, "expected_batch": 1}
    descent = DPSGD(FullBatch(), Flat(1.0), SGD(0.1), noise, **settings)
    draws = [np.concatenate(noisy_sums(descent, entries, value)) for value in (0.0, 1 / 3)]
    check_normal("descent", draws[0], noise)
    yield share("descent", proved(draws[0], draws[1], mu), 1 / 3 / noise)


def noisy_sums(descent: DPSGD, entries: int, value: float) -> list[Floats]:
    """What the steps of a descent release, all of whose sums are the same number."""
    sums: list[Floats] = []
    descent.run(
        np.zeros(entries),
        lambda weights, rows, clip: ClippedSum(np.full(entries, value)),
        0,
        rng=np.random.default_rng(0 if value else 1),
        on_step=lambda step: sums.append(step.noisy_sum),
        call_if_empty=True,
    )
    return sums


def counts(n: int) -> Iterator[float]:
    """A count that is zero without one record."""
    seen: list[float] = []

    class Noted(GlobalAdapt):
        def adapt(self, noisy_fraction: float) -> GlobalAdapt:
            seen.append(noisy_fraction)
            return self

    clip = Noted(1.0, count_noise=4.0)
    descent = DPSGD(FullBatch(), clip, SGD(0.1), 1.0, steps=1, expected_batch=1)
    rng = np.random.default_rng(0)
    for exceeding in (0, 1):
        for _ in range(n):
            descent._next_clip(clip, exceeding, rng)
    draws = np.array(seen).reshape(2, -1)
    check_normal("count", draws[0], 4.0)
    yield share("count", proved(draws[0], draws[1], mu), 1 / 4.0)


PARTS: dict[str, Callable[[int], Iterator[float]]] = {
    "output": lambda n: outputs(n, ((1, 0.0),)),
    "output, d = 2": lambda n: outputs(n // 2, ((2, 0.0),)),
    "output, Gaussian": lambda n: outputs(n, ((1, 1e-5),)),
    "objective": objectives,
    "moments": standardizers,
    "channels": channels,
    "descent": descents,
    "count": counts,
}
