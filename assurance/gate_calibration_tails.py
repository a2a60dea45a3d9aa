"""No calibration error, gap or decision of the guard reveals more than was charged.

The tail audit of the gate `tails`, on neighbors that reach the sensitivity of the questions of
calibration, and on the yes or no of the guard.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from assurance.audits import pure_lower_bound
from assurance.calibrations import FLIP, holder
from assurance.gate_tails import (
    ADD,
    NONE,
    RIGHT,
    WRONG,
    Case,
    certified,
    draw_wrong_noise,
    gaussian,
    once,
)
from assurance.ledgers import Patches, patched
from veracal.calibration import (
    AbsoluteGaps,
    BinnedGap,
    BrierGain,
    ConfidenceWeightedGaps,
    Gap,
    TwoTemperatures,
)
from veracal.calibration.bins import Bins
from veracal.calibration.private import guard
from veracal.data import Scores

NAME = "calibration_tails"
SECONDS = 40
TWENTY = 20


def among(row: np.ndarray, label: int) -> Scores:
    """A record among others that turn the sums of its bins the other way."""
    sure, unsure = 1000.0 * np.eye(TWENTY)[0], np.zeros(TWENTY)
    rows = np.stack([sure] * 3 + [unsure] * 30 + [row])
    return Scores.from_logits(rows, [1] * 33 + [label])


@dataclass(frozen=True)
class OfTheSure:
    """The second of both gaps, in which a sure record shows whole."""

    both: ConfidenceWeightedGaps
    entries: int = 1

    def __getattr__(self, name: str):
        return getattr(self.both, name)

    def evaluate(self, records) -> np.ndarray:
        return self.both.evaluate(records)[1:]


BOTH = OfTheSure(ConfidenceWeightedGaps(TwoTemperatures(1.0, 1.0)))
SURE_WRONG = among(1000.0 * np.eye(TWENTY)[0], 1)
UNSURE_RIGHT = among(np.zeros(TWENTY), 0)
SHARP = [
    Case(AbsoluteGaps(), WRONG, NONE, "add-remove", once),
    Case(AbsoluteGaps(), SURE_WRONG, UNSURE_RIGHT, "replace-one", once),
    Case(BrierGain(FLIP), WRONG, RIGHT, "replace-one", once),
    Case(Gap(classes=2), WRONG, NONE, "add-remove", once),
    Case(BOTH, WRONG, NONE, "add-remove", once),
]
SAFE = [
    Case(AbsoluteGaps(Bins(1)), RIGHT, WRONG, "replace-one", once),
    Case(BrierGain(FLIP), WRONG, NONE, "add-remove", once),
    Case(BOTH, SURE_WRONG, UNSURE_RIGHT, "replace-one", once),
    Case(Gap(classes=TWENTY), SURE_WRONG, UNSURE_RIGHT, "replace-one", once),
]


def unnoised(source, map_):
    """Pay, then decide by the exact gain."""
    found = DECIDED(source, map_)
    gain = int(BrierGain(map_).evaluate(source._records)[0])
    return found * 0 + (gain > 0)


def decided(source, map_) -> int:
    """The guard's yes or no."""
    return int(guard.guard_map(map_, source, micro_epsilon=500_000, beta=0.3).kept)


DECIDED = decided
SENSITIVITY, EVALUATE = BinnedGap.sensitivity, BrierGain.evaluate
GAPS = ConfidenceWeightedGaps.evaluate
SCALARS = "veracal.calibration.queries.scalars"
BY_BIN = "veracal.calibration.queries.binned.ByBin.sensitivity"
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "M2 half the noise": {ADD: draw_wrong_noise(0.5)},
    "M3 noise times 0.85": {ADD: draw_wrong_noise(0.85)},
    "Gaussian for Laplace": {ADD: gaussian},
    "absolute gaps moved by 1 under replace-one": {
        BY_BIN: lambda self, relation: SENSITIVITY(self, "add-remove")
    },
    "gain moved by 1 under replace-one": {
        "veracal.calibration.queries.scalars.BrierGain.sensitivity": lambda self, relation: (
            self.bounds.reach
        )
    },
    "gaps of the sure twice as large as stated": {
        f"{SCALARS}.ConfidenceWeightedGaps.evaluate": lambda self, records: (
            2 * GAPS(self, records)
        )
    },
    "guard without noise": {f"{__name__}.decided": unnoised},
    "gains twice as large as stated": {
        "veracal.calibration.queries.scalars.BrierGain.evaluate": lambda self, records: (
            2 * EVALUATE(self, records)
        )
    },
}


def run(subject: Patches, *, long: bool) -> str:
    """Audit every question, then the decision."""
    small, large = (100_000, 1_100_000) if long else (4_000, 110_000)
    with patched(subject) as folder:
        for case in (*SHARP, *SAFE):
            certified(case, small, folder)
        decisions(folder, 3_000 if long else 120)
        shares = [certified(case, large, folder, choosing=1 / 11) for case in SHARP]
    tight = 0.97 if long else 0.93
    # Replacing moves the absolute gaps by 1.95 of the stated 2.
    assert min(shares) >= tight - 0.03, f"certified only {min(shares):.3f} of the claim"
    return (
        f"{len(SHARP) + len(SAFE)} looks and the guard's decision within the claim; certified "
        f"{min(shares):.3f} to {max(shares):.3f} of it at n = {large:,}"
    )


def decisions(folder: Path, n: int) -> None:
    """How often the guard keeps a map on two neighbors."""
    kept = [
        np.array([decided(holder(records, folder, epsilon=1.0), FLIP) for _ in range(n)])
        for records in (WRONG, NONE)
    ]
    lower = pure_lower_bound(*(k.astype(float) for k in kept))
    assert lower <= 0.5, f"the guard's decision costs at least {lower:.3f}, claimed 0.5"
