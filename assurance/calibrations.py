"""Shared by the gates of private calibration: queries, records, curators."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from veracal.accounting import Budget
from veracal.calibration import (
    AbsoluteGaps,
    Binned,
    BinnedGap,
    BrierByGroup,
    BrierGain,
    ConfidenceWeightedGaps,
    ConfidenceWeightedSlopes,
    CorrectTotal,
    CorrectWrong,
    Gap,
    Groups,
    LossAt,
    Platt,
    PlattCurvature,
    PlattEquations,
    PlattGradient,
    Temperature,
    TemperatureGradient,
    TwoTemperatures,
)
from veracal.calibration.bins import Bins
from veracal.calibration.queries.platt import platt_counts
from veracal.calibration.queries.scalars import on_mapped_scores
from veracal.data import Group, Scores
from veracal.ledger import open_ledger
from veracal.queries import Curator
from veracal.testing import adversarial_scores

SEX = Groups("sex", ("f", "m"))
FLIP = Binned(Bins(1), [0.0])  # of two classes: predicts the other one, and is sure of it
QUERIES = [
    Gap(),
    Gap(0.2, classes=10),
    Gap(7.0, classes=10, bits=2),
    LossAt(0.3),
    LossAt(4.0, centered=False),
    BinnedGap(inverse=0.5),
    BinnedGap(Bins(1)),  # of which a replaced record moves the one entry from end to end
    CorrectWrong(),
    CorrectTotal(),
    AbsoluteGaps(),
    AbsoluteGaps(Bins(2), 3.0),
    AbsoluteGaps(groups=SEX),
    BinnedGap(groups=SEX),
    BrierByGroup(SEX),
    TemperatureGradient(0.5),
    TemperatureGradient(0.5, clip=0.3),
    PlattGradient(Platt(0.5, np.zeros(10)), clip=0.5),
    PlattGradient(Platt(np.full(10, 0.5), np.zeros(10)), clip=0.5),
    PlattEquations(Platt(np.full(10, 0.5), np.zeros(10)), center=1.0, spread=2.0),
    PlattCurvature(0.5, 10),
    platt_counts(10),
    ConfidenceWeightedGaps(TwoTemperatures(0.5, 2.0, 0.3)),
    ConfidenceWeightedGaps(TwoTemperatures(1.0, 1.0), bits=2),
    ConfidenceWeightedSlopes(TwoTemperatures(1.0, 1.0)),
    ConfidenceWeightedSlopes(TwoTemperatures(2.0, 0.4), most=0.1),
    BrierGain(Temperature(0.2)),
    BrierGain(Binned(Bins(3), [0.0, 0.4, 0.0])),
    on_mapped_scores(BinnedGap(), Temperature(0.3)),
    on_mapped_scores(CorrectWrong(), Binned(Bins(3), [0.0, 0.4, 0.0])),
    on_mapped_scores(AbsoluteGaps(), Platt(np.full(10, 2.0), np.zeros(10))),
]


@contextmanager
def small_blocks(rows: int = 64) -> Iterator[None]:
    """Evaluate queries in blocks of so many rows.

    The library's blocks have up to 2,048, filled up with copies: for a dozen records nearly
    all of the time would go into copies. Here, too, all blocks of a query have one shape,
    whatever the number of records. Gates about places and order (`sums`, `score_places`,
    `calibration_places`) keep the library's own blocks.
    """
    sums = "veracal.queries.query."
    with mock.patch(sums + "_BLOCK_ROWS", rows), mock.patch(sums + "_MAX_BLOCK_ROWS", rows):
        yield


def grouped(n: int, rng: np.random.Generator) -> Scores:
    """Adversarial scores whose records have a sex."""
    scores = adversarial_scores(n, rng)
    groups = {"sex": Group.from_values(rng.choice(SEX.names, size=n), SEX.names)}
    make = Scores.from_logits if scores.kind == "logits" else Scores.from_probabilities
    return make(scores.values, scores.labels, groups=groups)


def plain(n: int, rng: np.random.Generator, temperature: float = 2.0) -> Scores:
    """Scores of two classes with a known right temperature."""
    p = rng.uniform(0.5, 1.0, size=n)
    labels = (rng.random(n) < p).astype(int)
    with np.errstate(divide="ignore"):
        logits = np.clip(temperature * np.log(p / (1 - p)), -50, 50)
    groups = {"sex": Group.from_values(rng.choice(SEX.names, size=n), SEX.names)}
    return Scores.from_logits(logits, labels, groups=groups)


def holder(
    records: Any, folder: Path, *, epsilon: float, relation: str = "add-remove"
) -> Curator:
    """Records with a fresh ledger."""
    place = folder / f"{len(list(folder.iterdir()))}.ledger"
    return Curator(records, open_ledger(place, Budget(epsilon, relation=relation)))
