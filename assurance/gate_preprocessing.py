"""Preprocessing reads nothing from the records beyond what its noise covers.

Sums for a standardizer are replayed on neighbors made of adversarial numbers, in integers: one
record changes them by at most the stated sensitivity, and nearly that much. Any number of
records that add nothing leaves the same bits. Scalers and encoders with declarations learn the
same from any records, and clipped rows are never too long.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from sklearn.preprocessing import OneHotEncoder

from veracal.accounting.events import Gaussian
from veracal.training import BoundedScaler, DeclaredOneHot, PrivateStandardizer
from veracal.training.preprocessing import shorten_rows
from veracal.training.standardizer import COLUMN_GRID, column_sensitivity

NAME = "preprocessing"
GRID_UNITS = 2**COLUMN_GRID.bits
ALPHA = 1e-6
ODD = (0.0, 5e-324, 1e-300, 0.3, 1.0, -1.0, 0.9999999, 1e6, -1e154, 1e308, -1.7e308)
BROKEN = (math.nan, math.inf, -math.inf)
WIDTH, NORM = 3, 0.7


@dataclass(frozen=True)
class Subject:
    """Transformers, and the function that clips rows."""

    standardizer: type[PrivateStandardizer] = PrivateStandardizer
    scaler: type[BoundedScaler] = BoundedScaler
    encoder: type[DeclaredOneHot] = DeclaredOneHot
    shortened: Callable[[np.ndarray, float], np.ndarray] = shorten_rows


# ---------------------------------------------------------------- standardizers


def scaled(factor: float) -> Subject:
    """Noise of another size."""

    class Scaled(PrivateStandardizer):
        def _noise_std(self, width: int) -> float:
            return factor * super()._noise_std(width)

    return Subject(Scaled)


class HalfDrawn(PrivateStandardizer):
    """State the right noise, and draw half of it."""

    halved = False

    def _noise_std(self, width: int) -> float:
        return super()._noise_std(width) * (0.5 if self.halved else 1.0)

    def _learn(self, rows: Any, size: int | None) -> tuple[str, ...]:
        self.halved = True
        try:
            return super()._learn(rows, size)
        finally:
            self.halved = False


class ReplacedAsRemoved(PrivateStandardizer):
    """Use the sensitivity of add-remove under replace-one."""

    def _noise_std(self, width: int) -> float:
        return self._multiplier() * column_sensitivity(width, "add-remove")


class OneColumnOnly(PrivateStandardizer):
    """Use the sensitivity of one column for all columns."""

    def _noise_std(self, width: int) -> float:
        return self._multiplier() * column_sensitivity(1, self.relation)


class RawUsed(PrivateStandardizer):
    """Clip the values, but sum the raw ones."""

    def _sums(self, rows: Any) -> Any:
        clipped = np.clip(rows[:], self.low_, self.high_)
        assert clipped.shape == rows.shape
        raw = 2 * (np.nan_to_num(rows[:]) - self.low_) / (self.high_ - self.low_) - 1
        k = np.rint(np.clip(raw, -1e3, 1e3) * GRID_UNITS)
        return np.array([k.sum(axis=0), np.rint(k * k / GRID_UNITS).sum(axis=0)])


class NanPasses(PrivateStandardizer):
    """Clip, which keeps NaN, and replace NaN in the sums."""

    def _sums(self, rows: Any) -> Any:
        with np.errstate(all="ignore"):
            units = 2 * (np.clip(rows[:], -1, 1) + 1) / 2 - 1
            k = np.rint(units * GRID_UNITS)
            return np.nan_to_num(
                np.array([k.sum(axis=0), np.rint(k * k / GRID_UNITS).sum(axis=0)])
            )


class NanAsLarge(PrivateStandardizer):
    """Replace NaN after clipping instead of before."""

    def _sums(self, rows: Any) -> Any:
        units = np.nan_to_num(np.clip(rows[:], -1, 1), nan=1e3)
        k = np.rint(units * GRID_UNITS)
        return np.array([k.sum(axis=0), np.rint(k * k / GRID_UNITS).sum(axis=0)])


class SquaresForgotten(PrivateStandardizer):
    """Charge for the sums of values alone."""

    def _noise_std(self, width: int) -> float:
        return self._multiplier() * math.sqrt(width) * (1 + (self.relation == "replace-one"))


class RealCount(PrivateStandardizer):
    """Divide by the real number of records."""

    def _learn(self, rows: Any, size: int | None) -> tuple[str, ...]:
        declared, self.size = self.size, max(1, len(rows))
        try:
            return super()._learn(rows, size)
        finally:
            self.size = declared


class ObservedBounds(PrivateStandardizer):
    """Narrow the declared bounds to the observed values."""

    def _learn(self, rows: Any, size: int | None) -> tuple[str, ...]:
        declared = self.bounds
        low, high = np.nan_to_num(rows[:]).min(), np.nan_to_num(rows[:]).max()
        self.bounds = (max(low, -1.0), min(high, 1.0)) if low < high else declared
        try:
            return super()._learn(rows, size)
        finally:
            self.bounds = declared


class FixedSeed(PrivateStandardizer):
    """Draw the same noise at every fit."""

    def _learn(self, rows: Any, size: int | None) -> tuple[str, ...]:
        self.random_state = 0
        try:
            return super()._learn(rows, size)
        finally:
            self.random_state = None


# ---------------------------------------------------------------- the others


class ScaledByRecords(BoundedScaler):
    """Scale to the observed minimum and maximum."""

    def _learn(self, rows: Any, size: int | None) -> tuple[str, ...]:
        self.low_, self.high_ = rows.min(axis=0) - 1.0, rows.max(axis=0) + 1.0
        return ()


class Unclipped(BoundedScaler):
    """Do not clip values outside the bounds."""

    def _apply(self, rows: Any) -> Any:
        with np.errstate(all="ignore"):
            return (rows - self.low_) / (self.high_ - self.low_)


class OccurringOnly(DeclaredOneHot):
    """Keep columns for the categories that occur."""

    def _learn(self, rows: Any, size: int | None) -> tuple[str, ...]:
        self.encoder_ = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(rows)
        return ()


class UnknownRaises(DeclaredOneHot):
    """Raise an error for an undeclared value."""

    def _apply(self, rows: Any) -> Any:
        return self.encoder_.set_params(handle_unknown="error").transform(rows)


class UnknownIsFirst(DeclaredOneHot):
    """Encode an undeclared value as the first category."""

    def _apply(self, rows: Any) -> Any:
        encoded = super()._apply(rows)
        encoded[encoded.sum(axis=1) == 0, 0] = 1
        return encoded


def unshortened(rows: np.ndarray, norm: float) -> np.ndarray:
    """Leave rows unchanged."""
    return rows


def overflowing(rows: np.ndarray, norm: float) -> np.ndarray:
    """Multiply by a factor that overflows to NaN, and replace NaN in the result."""
    with np.errstate(all="ignore"):
        norms = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
        factors = np.where(np.isfinite(norms), np.minimum(1, norm / norms), 1.0)
        return np.nan_to_num(rows * factors)


def without_slack(rows: np.ndarray, norm: float) -> np.ndarray:
    """Scale to the norm itself, without slack for rounding."""
    peaks = np.abs(rows).max(axis=1, keepdims=True)
    unit = rows / np.where(peaks > 0, peaks, 1.0)
    lengths = np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-300)
    return np.where(peaks > norm / lengths, unit * (norm / lengths), rows).astype(rows.dtype)


def columnwise(rows: np.ndarray, norm: float) -> np.ndarray:
    """Clip every entry instead of the row."""
    return np.clip(rows, -norm, norm)


CORRECT = Subject()
MUTANTS = {
    "M1 no noise": scaled(1e-9),
    "M2 half the noise": Subject(HalfDrawn),
    "M4 half the sensitivity": scaled(0.5),
    "noise times 0.9": scaled(0.9),
    "M4 replaced as if removed": Subject(ReplacedAsRemoved),
    "one column's reach for all": Subject(OneColumnOnly),
    "squares not charged": Subject(SquaresForgotten),
    "M6 clip computed, raw used": Subject(RawUsed),
    "M8 NaN passes": Subject(NanPasses),
    "M8 NaN made large": Subject(NanAsLarge),
    "M9 declared bounds narrowed to the records": Subject(ObservedBounds),
    "M12 n leaks into the divisor": Subject(RealCount),
    "M15 fixed seed": Subject(FixedSeed),
    "M9 bounds of a scaler from the records": Subject(scaler=ScaledByRecords),
    "values outside of bounds pass": Subject(scaler=Unclipped),
    "categories from the records": Subject(encoder=OccurringOnly),
    "an undeclared category raises": Subject(encoder=UnknownRaises),
    "an undeclared category is the first": Subject(encoder=UnknownIsFirst),
    "M5 rows not shortened": Subject(shortened=unshortened),
    "norms overflow": Subject(shortened=overflowing),
    "no slack for rounding": Subject(shortened=without_slack),
    "entries clipped instead of rows": Subject(shortened=columnwise),
}


def run(subject: Subject, *, long: bool) -> str:
    """Replay, count, and compare."""
    rng = np.random.default_rng(0)
    for _ in range(20 if long else 2):
        compare_lengths(subject, rng)
        compare_declared(subject, rng)
    compare_counts(subject)
    rounds = 20_000 if long else 1_500
    reached = {
        relation: compare_sums(subject, relation, rounds, rng)
        for relation in ("add-remove", "replace-one")
    }
    spread = compare_noise(subject, 40_000 if long else 4_000)
    shares = ", ".join(f"{share:.4f}" for share in reached.values())
    return f"{2 * rounds:,} neighbors reach {shares} of the bound; noise at p = {spread:.2f}"


def draw_rows(rng: np.random.Generator, n: int) -> np.ndarray:
    """Rows of typical and of adversarial numbers."""
    rows = rng.uniform(-1.2, 1.2, (n, WIDTH))
    odd = rng.choice([*ODD, *BROKEN], (n, WIDTH))
    return np.where(rng.random((n, WIDTH)) < 0.4, odd, rows)


def standardizer(subject: Subject, relation: Any, **settings: Any) -> PrivateStandardizer:
    """With declared bounds, fitted to no records."""
    model = subject.standardizer((-1, 1), noise_multiplier=2.0, relation=relation, **settings)
    model.low_, model.high_ = np.full(WIDTH, -1.0), np.full(WIDTH, 1.0)
    return model


def compare_sums(
    subject: Subject, relation: Any, rounds: int, rng: np.random.Generator
) -> float:
    """Remove or replace one record; return the maximum share of the sensitivity used."""
    model = standardizer(subject, relation)
    event = model.event()
    assert isinstance(event, Gaussian)
    allowed = model._noise_std(WIDTH) * event.sensitivity / event.noise
    worst = 0.0
    for _ in range(rounds):
        rows = draw_rows(rng, int(rng.integers(1, 4)))
        if rng.random() < 0.2:
            rows[0] = rng.choice([-1.0, 1.0], WIDTH)
        other = np.array(rows[1:] if relation == "add-remove" else rows)
        if relation == "replace-one":
            other[0] = -rows[0] if rng.random() < 0.5 else draw_rows(rng, 1)[0]
        with np.errstate(all="ignore"):
            sums = [np.asarray(model._sums(part), float) for part in (rows, other)]
        moved = float(np.linalg.norm(sums[0] - sums[1])) / GRID_UNITS
        assert moved <= allowed * (1 + 1e-12), (
            f"{relation}: one record moves the sums by {moved:.6g}, and noise is made for "
            f"{allowed:.6g}"
        )
        worst = max(worst, moved / allowed)
    assert worst > 0.999, f"{relation}: the replay reaches {worst:.3f} only, too weak to tell"
    return worst


def compare_counts(subject: Subject) -> None:
    """Any number of records that add nothing leave the same bits."""
    ends = set()
    for n in (1, 2, 9, 40):
        model = subject.standardizer((-1, 1), noise_multiplier=2.0, size=20, random_state=1)
        model.fit(np.zeros((n, WIDTH)))
        ends.add(model.mean_.tobytes() + model.scale_.tobytes())
    assert len(ends) == 1, "another number of records leaves other bits"
    bounds = set()
    for scale in (0.1, 5.0):
        model = subject.standardizer((-1, 1), noise_multiplier=2.0, size=20)
        model.fit(scale * np.eye(WIDTH))
        bounds.add((*model.low_, *model.high_))
    assert bounds == {(-1.0,) * WIDTH + (1.0,) * WIDTH}, "the bounds follow the records"


def compare_noise(subject: Subject, width: int) -> float:
    """The standard deviation of secret noise, on records that add nothing."""
    model = subject.standardizer((-1, 1), noise_multiplier=2.0, size=10**6)
    event = model.event()
    assert isinstance(event, Gaussian)
    expected = event.noise / event.sensitivity * column_sensitivity(width, "add-remove")
    fits = [model.fit(np.zeros((1, width))).mean_ * 10**6 / expected for _ in range(2)]
    total = float((fits[0] ** 2).sum())
    law = stats.chi2(width)
    spread = 2 * min(float(law.cdf(total)), float(law.sf(total)))
    assert spread > ALPHA, f"the noise has another spread: p = {spread:.1e}"
    assert not (fits[0] == fits[1]).any(), "two fits drew the same noise"
    return spread


def compare_declared(subject: Subject, rng: np.random.Generator) -> None:
    """Scalers and encoders depend on declared facts only."""
    queries = np.nan_to_num(draw_rows(rng, 50), nan=0.1, posinf=1e308, neginf=-1e308)
    ends, codes = set(), set()
    values = np.array([[0.0], [1.0], [2.0], [7.0]])
    for records in (rng.uniform(-1, 1, (5, WIDTH)), 40 * rng.uniform(-1, 1, (9, WIDTH))):
        with np.errstate(invalid="ignore"):  # scikit-learn's check may overflow
            scaled_rows = subject.scaler((-1, 1)).fit(records).transform(queries)
        assert (scaled_rows >= 0).all() and (scaled_rows <= 1).all(), "a value is out of range"
        ends.add(scaled_rows.tobytes())
        coded = np.abs(np.rint(records[:, :1])) % 3
        try:
            encoded = subject.encoder([[0.0, 1.0, 2.0]]).fit(coded).transform(values)
        except ValueError as told:
            raise AssertionError(f"an undeclared category raises: {told}") from told
        codes.add(encoded.tobytes())
    assert len(ends) == 1, "a scaler depends on the records it was fitted to"
    assert codes == {np.eye(4, 3).tobytes()}, "an encoder does not do what was declared"


def compare_lengths(subject: Subject, rng: np.random.Generator) -> None:
    """No row is longer than declared, in any precision, and directions are kept."""
    for dtype in (np.float64, np.float32):
        rows = rng.standard_normal((2_000, 5)) * 10 ** rng.uniform(-3, 3, (2_000, 1))
        rows[:200] = rng.choice(ODD, (200, 5))
        rows = np.clip(rows, np.finfo(dtype).min, np.finfo(dtype).max).astype(dtype)
        short = subject.shortened(rows, NORM).astype(np.longdouble)
        lengths = np.sqrt((short**2).sum(axis=1))
        assert np.isfinite(lengths).all(), "a shortened row is not finite"
        longest = float(lengths.max())
        assert longest <= NORM, f"a row of length {longest!r} is longer than {NORM}"
        assert longest > NORM * (1 - 1e-5), "rows are shortened too much"
