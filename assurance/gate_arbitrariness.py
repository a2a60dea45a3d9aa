"""Arbitrariness computed from a released model holds at its level, and only for known noise.

*Levels.* The worst case of every bound is a model whose records carry no signal: runs then
decide by noise alone, with the largest possible disagreement. An interval misses it if its
upper end is below, which may happen only as often as the level allows: for an individual fixed
in advance, and for one chosen with knowledge of the noise; for two classes, and for three of
which one is implausible; for both noise distributions on weights, and for noise on an
objective. The releases are simulated. *Estimates.* There a flip is a coin toss, and the
estimate must say so. *Distribution.* The stored distribution must be that of the noise in real
fits, recovered from their records; and nothing may be stored for fits whose noise depends on
the records, is known, or was selected.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from scipy.special import expit, ndtr
from scipy.stats import chi, gamma, kstest

from assurance.ledgers import Patches, patched
from veracal._types import Floats
from veracal.artifact.weights import LinearWeights, NoiseModel
from veracal.data import Dataset
from veracal.training import ObjectivePerturbation, OutputPerturbation
from veracal.training import arbitrariness as objective
from veracal.training import weight_noise as output
from veracal.training.arbitrariness import plane_distances
from veracal.training.output_perturbation import spherical_gamma
from veracal.training.perturbation import clip_rows
from veracal.training.search import WINNER
from veracal.training.weight_noise import GammaNoise, GaussianNoise, WeightNoise

NAME = "arbitrariness"
LEVEL = 0.8
MORE = 8  # weights of each of three models
CLASSES = 60  # models of one fit, each with independent noise
OUTPUT = "veracal.training.weight_noise"
OBJECTIVE = "veracal.training.arbitrariness"
KEPT = "veracal.artifact.weights.NoiseModel"
TWO, WITHIN, ARBITRARINESS = (
    output._binary_interval,
    objective._flip_bounds,
    NoiseModel.arbitrariness,
)
OF = NoiseModel.__dict__["of"].__func__


# ---------------------------------------------------------------- mutants


def one_sided(sums: Floats, noise: WeightNoise, spare: float, individuals: int | None) -> Any:
    """Use a one-sided quantile for a two-sided distance."""
    if individuals is None:
        return TWO(sums, noise, spare, individuals)
    half_width = noise.quantile(spare / (2 * individuals))
    low = output._disagreement(noise, np.abs(sums) + half_width)
    return low, output._disagreement(noise, np.maximum(np.abs(sums) - half_width, 0.0))


def unshared(sums: Floats, noise: WeightNoise, spare: float, individuals: int | None) -> Any:
    """Omit the union bound over individuals."""
    return TWO(sums, noise, spare, 1)


def flat_prior(w: Floats, where: Any, noise: Any, threshold: float, X: Any) -> Any:
    """Use the released weights as the center of the noise."""
    if not isinstance(noise, GaussianNoise):
        return None
    return ndtr(-np.abs(where.sums[:, 0]) / noise.std / np.sqrt(2))


def only_new_noise(distances: Floats, d: int, spare: float, form: Any) -> Floats:
    """Ignore the noise of the release itself."""
    return WITHIN(distances + objective._length_quantile(spare, d), d, spare, "closed")


def whole_gaps(sums: Floats, left: float, d: int, level: float, form: Any) -> Floats:
    """Let each of two models move by the whole distance between them."""
    ordered = -np.sort(-sums, axis=1)
    gaps = ordered[:, :1] - ordered[:, 1:]
    result = WITHIN((gaps - 2 * left).ravel(), d, 1 - level, form)
    return np.minimum(result.reshape(gaps.shape).sum(axis=1), 1.0)


def requested_penalty(model: Any, released_model: Any) -> Any:
    """Store 1 / C although a small epsilon required a larger penalty."""
    result = OF(NoiseModel, model, released_model)
    return result and replace(result, penalty=result.penalty and 1 / model.C)


def other_relation(model: Any, released_model: Any) -> Any:
    """Store the scale of the other relation."""
    result = OF(NoiseModel, model, released_model)
    return result and replace(result, scale=result.scale / 2)


def of_anything(model: Any, released_model: Any) -> Any:
    """Store the noise of any fit."""
    model.not_private_because_, held = (), model.not_private_because_
    result = OF(NoiseModel, model, model)
    model.not_private_because_ = held
    return result


def no_intercept(self: Any, weights: Any, X: Any, **options: Any) -> Any:
    """Forget that the intercept is noisy, too."""
    bare = replace(self, intercept=False, dimension=X.shape[1])
    return ARBITRARINESS(bare, weights, X, **options)


CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "one-sided quantile": {"veracal.training.weight_noise._binary_interval": one_sided},
    "one person's interval for everybody": {
        "veracal.training.weight_noise._binary_interval": unshared
    },
    "flat prior": {"veracal.training.weight_noise._estimate_flips": flat_prior},
    "difference of two with the noise of one": {
        "veracal.training.weight_noise.GaussianNoise.difference": lambda self: self
    },
    "noise of the release forgotten": {
        "veracal.training.arbitrariness._flip_bounds": only_new_noise
    },
    "distance between two models not shared": {
        "veracal.training.arbitrariness._multiclass_flip_bounds": whole_gaps
    },
    "penalty of 1 / C": {"veracal.artifact.weights.NoiseModel.of": requested_penalty},
    "scale of the other relation": {"veracal.artifact.weights.NoiseModel.of": other_relation},
    "law of a fit that is not private": {"veracal.artifact.weights.NoiseModel.of": of_anything},
    "intercept without noise": {
        "veracal.artifact.weights.NoiseModel.arbitrariness": no_intercept
    },
}


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Simulate releases, and check real fits."""
    releases = 50_000 if long else 5_000
    with patched(subject):
        worst = max(
            *(missed_by_output(noise, releases) for noise in (GaussianNoise, GammaNoise)),
            missed_by_objective(4 * releases),
        )
        estimate = estimated_flips()
        least = min(distribution_matches(kind) for kind in kinds())
        unknown_noise_is_dropped()
        intercepts_count()
    return (
        f"misses at most {worst:.3f} of {1 - LEVEL:.1f}, coins {estimate:.2f}, "
        f"laws at p >= {least:.2g}"
    )


def check(high: Floats, whom: str, classes: int) -> float:
    """Share of releases whose upper end misses a coin toss between two classes."""
    truth = classes / (classes - 1) / 2
    share = float((high < truth - 1e-9).mean())
    # Five standard errors: no false alarm in a million runs.
    most = 1 - LEVEL + 5 * np.sqrt(LEVEL * (1 - LEVEL) / len(high))
    assert share <= most, f"{whom}: {share:.3f} of the releases miss, {1 - LEVEL:.1f} may"
    return share


def rows_with_sums(sums: Floats, dimension: int, far: float = 1e6) -> tuple[Floats, Floats]:
    """Weights, and a row for each line of sums that is its weighted sums over its length."""
    n, k = sums.shape
    X = np.zeros((n, dimension))
    X[:, :k] = sums / far
    X[:, k] = np.sqrt(1 - (X**2).sum(axis=1))
    return far * np.eye(k, dimension), X


@cache
def draw_noise(kind: type, dimension: int, releases: int, models: int) -> Floats:
    """Noise of scale 1, of shape (releases, models, dimension)."""
    rng = np.random.default_rng(0)
    if kind is GaussianNoise:
        return rng.normal(size=(releases, models, dimension))
    vectors = spherical_gamma(dimension, 1.0, rng=rng, size=releases * models)
    return vectors.reshape(releases, models, dimension)


def along_the_gap(b: Floats) -> Floats:
    """Sums of three models in the direction in which two differ most; the third is far off."""
    gaps = b[:, 0] - b[:, 1]
    sides = gaps / np.linalg.norm(gaps, axis=1, keepdims=True)
    result: Floats = np.einsum("rkd,rd->rk", b, sides)
    return result - [0.0, 0.0, 1e3]


def missed_by_output(kind: type, releases: int) -> float:
    """Misses of intervals for weights of zero plus noise."""
    two, three = draw_noise(kind, 2, releases, 1)[:, 0], draw_noise(kind, MORE, releases, 3)
    chosen = np.linalg.norm(two, axis=1)[:, None]
    shares = []
    for sums, individuals, dimension in (
        (two[:, :1], 1, 2),
        (chosen, None, 2),
        (three[:, :, 0] - [0.0, 0.0, 1e3], 1, MORE),
        (along_the_gap(three), None, MORE),
    ):
        weights, X = rows_with_sums(sums, dimension)
        result = output.output_arbitrariness(
            weights, X, kind(1.0, dimension), level=LEVEL, individuals=individuals
        )
        assert np.isclose(plane_distances(weights, X).sums, sums, atol=1e-6).all()
        classes = max(2, len(weights))
        shares.append(check(result.high, f"{kind.__name__}, {result.holds_for}", classes))
        if individuals and classes == 2:  # half of the error probability is for this end
            half = (result.high < 1).mean()
            most = (1 - LEVEL) / 2 + 5 * np.sqrt((1 - LEVEL) / 2 / releases)
            assert half <= most, f"an upper end misses in {half:.3f} of the releases"
    return max(shares)


def missed_by_objective(releases: int) -> float:
    """Misses of certificates for weights that are the noise divided by the penalty."""
    penalty, scale, shares = 3.0, 0.5, []
    two, three = (draw_noise(GammaNoise, d, releases, m) for d, m in ((2, 1), (4, 3)))
    two = two[:, 0]
    chosen = np.linalg.norm(two, axis=1)[:, None]
    for sums, individuals, form in (
        (chosen, None, "sharper"),
        (chosen, None, "closed"),
        (two[:, :1], 1, "sharper"),
        (along_the_gap(three), None, "sharper"),
    ):
        weights, X = rows_with_sums(scale / penalty * sums, 2 if sums.shape[1] == 1 else 4)
        result = objective.objective_certificate(
            weights,
            X,
            penalty=penalty,
            noise_scale=scale,
            level=LEVEL,
            individuals=individuals,
            form=form,  # type: ignore[arg-type]
        )
        whom = f"objective, {result.holds_for}"
        shares.append(check(result.high, whom, max(2, len(weights))))
    return max(shares)


def estimated_flips() -> float:
    """Mean estimate of a flip where every decision is a coin toss."""
    rng = np.random.default_rng(1)
    X, w = rng.normal(size=(500, 400)), rng.normal(size=400)
    result = output.output_arbitrariness(w, X, GaussianNoise(1.0, 400)).flip
    assert result is not None
    mean = float(result.mean())
    assert mean > 0.42, f"a flip that is a coin is estimated at {mean:.2f}"
    return mean


# ---------------------------------------------------------------- real fits


def records(classes: int) -> Dataset:
    """Rows, some of them clipped, and alternating labels."""
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(2 * classes, 3)), np.arange(2 * classes) % classes
    return Dataset(X, y, classes=tuple(range(classes)), size=2 * classes, name="made up")


def kinds() -> list[Any]:
    """Mechanisms, with fresh noise and with little enough epsilon to need more penalty."""
    given: dict[str, Any] = {"norm": 1.5, "relation": "replace-one"}
    return [
        OutputPerturbation(5.0, 1e-5, **given),
        OutputPerturbation(5.0, **given),
        ObjectivePerturbation(5.0, C=2.0, **given),
    ]


def distribution_matches(kind: Any) -> float:
    """Compare the stored distribution with the noise of a fit: p-value of the noise norms."""
    dataset = records(CLASSES)
    model = kind.fit_records(dataset)
    noise_model = NoiseModel.of(model, model)
    assert noise_model is not None, f"no noise is stored for {model!r}"
    rows = clip_rows(dataset.X, 1.5, fit_intercept=noise_model.intercept)
    assert rows.shape[1] == noise_model.dimension == 4, "noise of a coordinate is not kept"
    weights = np.hstack([model.coef_, model.intercept_[:, None]])
    signs = np.where(np.arange(CLASSES)[:, None] == dataset.y, 1, -1)
    if noise_model.mechanism == "objective":
        assert noise_model.penalty is not None
        pulls = -(expit(-signs * (weights @ rows.T)) * signs) @ rows
        noise = -(pulls + noise_model.penalty * weights)
    else:
        quiet = OutputPerturbation(1e12, norm=1.5).fit_records(dataset)
        noise = weights - np.hstack([quiet.coef_, quiet.intercept_[:, None]])
    expected = chi if noise_model.distribution == "gaussian" else gamma
    lengths = np.linalg.norm(noise, axis=1) / noise_model.scale
    result = float(kstest(lengths, expected(noise_model.dimension).cdf).pvalue)
    assert result > 1e-7, (
        f"noise of {noise_model.mechanism} does not have the stored distribution (p = "
        f"{result:.1g})"
    )
    return result


def unknown_noise_is_dropped() -> None:
    """Fits whose noise must not be used store none."""
    dataset, public = records(2), {"classes": (0, 1), "size": 4}
    read = OutputPerturbation(5.0, 1e-5, **public).fit(dataset.X, dataset.y)
    seeded = OutputPerturbation(5.0, norm=1.0, random_state=0).fit_records(dataset)
    other = ObjectivePerturbation(5.0, norm=1.0, rule="diffprivlib-0.6.2").fit_records(dataset)
    won = ObjectivePerturbation(5.0, norm=1.0).fit_records(dataset)
    won.not_private_because_ = (WINNER,)
    for model in (read, seeded, other, won):
        assert NoiseModel.of(model, model) is None, f"noise is stored for {model!r}"


def intercepts_count() -> None:
    """An individual without features is decided by the noisy intercept."""
    for kind in kinds():
        model = kind.set_params(C=1e-6).fit_records(records(2))  # noise dominates
        noise_model = NoiseModel.of(model, model)
        assert noise_model is not None
        result = noise_model.arbitrariness(
            LinearWeights.of(model),
            np.zeros((1, 3)),
            level=0.999,
            individuals=None,
            threshold=0.0,
        )
        assert result.high[0] > 0, "a decision without features is not arbitrary"
