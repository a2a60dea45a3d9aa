"""What only the data holder may see: counts and plain figures."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from veracal.artifact import PrivateClassifier
from veracal.calibration.curves import ReliabilityCurve
from veracal.calibration.measuring import CalibrationResult, measure
from veracal.data import Scores
from veracal.pipeline.config import Config
from veracal.pipeline.steps import Loaded

_WORK, _USUAL = 20_000_000, 100  # numbers that are drawn again, and replicates
_FIGURES = ("accuracy", "ece", "brier", "nll")


def internal_facts(
    config: Config,
    records: Loaded,
    classifier: PrivateClassifier,
    losses: Sequence[float] = (),
) -> dict[str, Any]:
    """Counts and plain figures, for :func:`veracal.report.render`'s second page.

    Guarantees
    ----------
    None. Every number is a plain function of the records.
    """
    chosen = config.measurement
    facts: dict[str, Any] = {
        "records": {"training": len(records.train), "test": len(records.test)},
        "classes": _counts(records.whole.classes, records.whole.y),
        "groups": {
            name: _counts(group.names, group.codes)
            for name, group in records.whole.groups.items()
        },
    }
    for when in ("before", "after") if len(records.test) else ():
        scores = classifier.scores(records.test, mapped=when == "after")
        found = _measured(scores, chosen.bins)
        facts[f"plain figures {when}"] = _plain(found)
        facts[f"plain curve {when}"] = _bins(found.curve)
        if chosen.group is not None:
            facts[f"by group {when}"] = _by_group(scores, chosen.group, chosen.bins)
    return {**facts, **({"training": list(losses)} if losses else {})}


def _counts(names: Sequence[object], codes: Any) -> dict[str, int]:
    """How many records each name has."""
    found = np.bincount(codes[codes >= 0], minlength=len(names))
    return {str(name): int(n) for name, n in zip(names, found, strict=True)}


def _measured(scores: Scores, bins: int) -> CalibrationResult:
    """Plain figures, with intervals unless they would take long."""
    turns = min(_USUAL, _WORK // max(1, scores.values.size))
    # The same in every run: nothing is released, so nothing needs a secret.
    rng = np.random.default_rng(0)
    return measure(scores, figures=_FIGURES, bins=bins, replicates=turns, rng=rng)


def _bins(curve: ReliabilityCurve) -> list[dict[str, Any]]:
    """A reliability curve as rows of a table."""
    rows = [asdict(each) for each in curve.bins]
    return [{"count": row.pop("n"), **row} for row in rows]


def _by_group(scores: Scores, group: str, bins: int) -> dict[str, dict[str, Any]]:
    """Plain figures of every group that anybody is in."""
    attribute, found = scores.groups[group], {}
    for code, name in enumerate(attribute.names):
        rows = scores.take(attribute.codes == code)
        if len(rows):
            found[name] = _plain(_measured(rows, bins))
    return found


def _plain(found: CalibrationResult) -> dict[str, Any]:
    """Figures with their intervals, as what JSON can hold."""
    return {name: asdict(one) for name, one in found.figures.items()}
