"""Train a private classifier with poor calibration, and recalibrate it privately."""

import sys
import tempfile
from pathlib import Path

import numpy as np

from veracal.accounting import Budget, epsilon_for
from veracal.calibration import PrivateCalibratedClassifier, measure, measure_private
from veracal.data import load, score, split
from veracal.ledger import Item, open_ledger
from veracal.queries import Curator
from veracal.training import PrivateLogisticRegression


def main(folder: Path) -> None:
    """Train and recalibrate within one budget, then measure within another."""
    parts = split(load("digits"))
    training = PrivateLogisticRegression(epsilon=8.0, delta=1e-4, clip=0.1)
    model = PrivateCalibratedClassifier(
        training, epsilon=8.0, delta=1e-4, size=parts.train.size
    )
    plan = [Item("training and calibration map", model.event())]
    budget = Budget(8.0, 1e-4)
    ledger = open_ledger(folder / "training.ledger", budget, kind="plan", plan=plan)

    Curator(parts.train, ledger).fit(model, purpose="training and calibration map")

    print(model.statement_.text().split("\n\n")[0])
    print(f"Calibration map: {model.map_}")

    # The test records are private, too: releases about them are charged.
    test_ledger = open_ledger(folder / "testing.ledger", Budget(5.0))
    after = score(model, parts.test)
    measured = measure_private(Curator(after, test_ledger), epsilon=5.0)
    print(f"Accuracy {measured.overall.accuracy.value:.2f}, released with noise.")
    print(f"Calibration error {measured.overall.ece.value:.3f}, released with noise.")

    # Internal: the same without noise, compared with the classifier without its map.
    rng = np.random.default_rng(0)
    before = score(model.estimator_, parts.test)
    internal = [measure(s, figures=["ece"], replicates=0, rng=rng) for s in (before, after)]
    values = [result["ece"].value for result in internal]
    print(f"Internal: calibration error {values[0]:.3f} before, {values[1]:.3f} after.")

    assert model.private_ and epsilon_for(model.event_, 1e-4) <= 8.0
    assert np.array_equal(before.predictions, after.predictions)
    assert test_ledger.spent().epsilon <= 5.0
    assert values[1] < values[0]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder_name:
            main(Path(folder_name))
