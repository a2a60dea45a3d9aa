"""Train a private classifier on a table; the ledger is charged before a record is read."""

import sys
import tempfile
from pathlib import Path

from veracal.accounting import Budget, epsilon_for
from veracal.data import load, score, split
from veracal.ledger import Item, open_ledger
from veracal.queries import Curator
from veracal.training import PrivateLogisticRegression


def main(folder: Path) -> None:
    """Charge, train and evaluate."""
    parts = split(load("breast-cancer"))
    model = PrivateLogisticRegression(epsilon=3.0, delta=1e-5)
    plan = [Item("training", model.event())]
    ledger = open_ledger(folder / "training.ledger", Budget(3.0, 1e-5), kind="plan", plan=plan)

    Curator(parts.train, ledger).fit(model)

    scores = score(model, parts.test)
    accuracy = float((scores.values.argmax(axis=1) == scores.labels).mean())
    print(model.statement_.text().split("\n\n")[0])
    print(f"Accuracy on the test records: {accuracy:.0%} (internal, since they are private).")
    assert model.private_ and epsilon_for(model.event_, 1e-5) <= 3.0
    assert accuracy > 0.6


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder_name:
            main(Path(folder_name))
