"""What is told of a run: results, the files beside the classifier, where it came from.

Writes what institutions found into the artifact of a model, and into its report.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from veracal import __version__
from veracal.accounting import (
    Budget,
    Composed,
    Parallel,
    Repeated,
    Statement,
    epsilon_for,
    statement,
)
from veracal.artifact import WEIGHTS, PrivateClassifier, read_listed, read_manifest
from veracal.calibration import CalibrationMap, Identity, Platt
from veracal.data import Label
from veracal.errors import DataError, MissingExtraError
from veracal.ledger import Item, Ledger, ledger_total
from veracal.report import MOST, MeasurementRecord, Results, model_card, render
from veracal.workflow.config import Config
from veracal.workflow.job import RunPlan, today
from veracal.workflow.steps import TEST, TRAIN

RESULTS = "results.json"
NOT_MEASURED = (
    "how far decisions depend on the randomness of training (multiplicity was not audited; the "
    "data holder can run 'veracal audit')",
    "whether the records are correct, complete, or similar to those that the model will meet",
)
COVERS = ("the model and its map", "every figure marked as released")


def results(
    job: RunPlan,
    classifier: PrivateClassifier,
    book: Ledger,
    measured: tuple[MeasurementRecord, ...],
    covers: tuple[str, ...] = COVERS,
    *,
    budget: Budget | None = None,
) -> Results:
    """What may be told of a run.

    The promise is that of everything the run was charged for, whether or not it was used;
    ``budget`` is the run's, where that is more than the job's.
    """
    config, whole = job.config, job.records.whole
    budget = job.budget if budget is None else budget
    promise = promised(book, budget, covers)
    return Results(
        name=config.name,
        date=today(),
        data={
            "name": whole.name,
            "classes": list(whole.classes),
            "features": math.prod(whole.X.shape[1:]),
            "groups": {name: list(group.names) for name, group in whole.groups.items()},
            "unit": budget.unit.name,
            "at_most": budget.unit.at_most,
            "size": whole.size,
            "test": config.data.test,
        },
        guarantee={**promise.to_json(), "private": True, "text": promise.text()},
        ledger=ledger_facts(book, budget),
        model={**config.to_json()["model"], "kind": config.model.kind},
        map=classifier.map_.to_json(),
        measured=measured,
        settings=published(config),
        versions=versions(),
        not_measured=NOT_MEASURED,
    )


def published(config: Config) -> dict[str, Any]:
    """Every choice, but not where files are: that tells of a machine, and of nothing else."""
    told = config.to_json()
    for name in ("source", "schema"):
        if told["data"][name] is not None:
            told["data"][name] = Path(told["data"][name]).name
    return told


def promised(book: Ledger, budget: Budget, covers: tuple[str, ...]) -> Statement:
    """The promise of everything that a run has room for, and of its ledger."""
    items = [item for item, _ in book.planned()]
    events = [
        Composed(tuple(Repeated(i.event, i.times) for i in items if i.part == part))
        for part in (TRAIN, TEST)
    ]
    return statement(
        Parallel(tuple(events)),
        budget.delta,
        budget.unit,
        covers=covers,
        ledger_total=ledger_total(book),
    )


def ledger_facts(book: Ledger, budget: Budget) -> dict[str, Any]:
    """What a report tells of a run's ledger.

    Not where it is, and not the name of its file by default, which has a hash of where the
    data is.
    """
    lines = [
        {
            "purpose": item.purpose,
            "part": item.part,
            "times": item.times,
            "used": count,
            **_cost(item, budget),
        }
        for item, count in book.planned()
    ]
    data, caps, spent = book.opening.data, book.budget, book.spent()
    return {
        "name": book.path.name if data is None else data,
        "head": book.head,
        "planned": lines,
        "total": {
            "epsilon": caps.epsilon,
            "delta": caps.delta,
            "spent": {"epsilon": spent.epsilon, "delta": spent.delta},
            "runs": len(book.runs()),
            "note": book.cap_note,
        },
    }


def _cost(item: Item, budget: Budget) -> dict[str, float]:
    """What all uses of an item cost by themselves, at no delta where that is enough."""
    event = Repeated(item.event, item.times)
    for delta in (0.0, budget.delta):
        epsilon = epsilon_for(event, delta, budget.unit)
        if epsilon < float("inf"):
            break
    return {"epsilon": epsilon, "delta": delta}


def stamped(classifier: PrivateClassifier, made: Results) -> PrivateClassifier:
    """The classifier with the ledger that paid for it, and what it was made with."""
    ledger = {name: made.ledger[name] for name in ("name", "head")}
    guarantee = with_total(classifier.manifest.guarantee, str(made.guarantee["ledger_total"]))
    manifest = replace(
        classifier.manifest, guarantee=guarantee, ledger=ledger, versions=made.versions
    )
    return PrivateClassifier(classifier.weights, classifier.map, manifest)


def with_total(guarantee: Mapping[str, Any], total: str) -> dict[str, Any]:
    """A guarantee that was stated before, with the total of its ledger as it is now.

    A cap may have been raised since then, which every later statement has to say.
    """
    text, before = str(guarantee.get("text", "")), guarantee.get("ledger_total")
    if isinstance(before, str):
        text = text.replace(before, total)
    return {**guarantee, "ledger_total": total, "text": text}


def files_of(made: Results) -> dict[str, bytes]:
    """What is kept of results beside the classifier.

    Without the extra that draws there is no page; ``veracal report`` makes it later.
    """
    files = {RESULTS: made.to_bytes(), "MODEL_CARD.md": model_card(made).encode()}
    with suppress(MissingExtraError):
        files["report.html"] = render(made).encode()
    return files


def results_of(folder: Path) -> Results:
    """The results of an artifact, as its hashes say that they were written."""
    _, files = read_manifest(folder)
    content = read_listed(folder, RESULTS, files, MOST)
    return Results.from_bytes(content, str(folder / RESULTS))


def versions() -> dict[str, str]:
    """Of this library, and of those that numbers depend on."""
    names = ("numpy", "scipy", "scikit-learn", "opendp", "dp-accounting")
    return {"veracal": __version__, **{name: version(name) for name in names}}


_MOST = 64 * 2**20  # bytes of a file beside the classifier


def write_recalibrated(
    folder: Path,
    map_: CalibrationMap,
    record: Mapping[str, Any],
    out: Path,
    *,
    force: bool = False,
) -> PrivateClassifier:
    """Write an artifact with the map that institutions found, and who they are.

    Parameters
    ----------
    folder : path
        The artifact as it is.
    map_ : Map
        What they found, of scores that no map was applied to, with classes in the order of the
        artifact's schema. The identity stands for nothing better: the artifact then keeps its
        map, and says so.
    record : mapping
        Who they are and what it cost whom, as
        :func:`veracal.federation.coordinator.pool.record` writes it.
    out : path
        The artifact to write; the same folder, with ``force``, is replaced.
    force : bool

    Guarantees
    ----------
    Weights, guarantee and results of the training stay as they are. What institutions were
    charged for earlier maps of this artifact stays in it. The new folder appears whole or not
    at all.
    """
    classifier = PrivateClassifier.load(folder)
    told = {**record, "earlier": _earlier(classifier)}
    kept = classifier.map if map_ == Identity() else arranged(map_, classifier)
    manifest = replace(classifier.manifest, map=kept.to_json(), federation=told)
    made = PrivateClassifier(classifier.weights, kept, manifest)
    made.save(out, other_files=_beside(folder, told), force=force)
    return made


def arranged(map_: CalibrationMap, classifier: PrivateClassifier) -> CalibrationMap:
    """A map with its classes in the order of the weights, which the artifact goes by."""
    declared = classifier.manifest.classes
    if not isinstance(map_, Platt) or classifier.schema is None:
        return map_
    return _reordered(map_, classifier.schema.classes, declared)


def _reordered(map_: Platt, have: tuple[Label, ...], want: tuple[Label, ...]) -> Platt:
    """An affine map for the same classes in another order."""
    if set(have) != set(want) or len(map_.bias) != len(want):
        raise DataError(
            "the map",
            f"one for the classes {list(want)}",
            f"one for {len(map_.bias)} classes, {list(have)}"[:200],
            "Ask sources that have scored their records by this model.",
        )
    order = np.array([have.index(label) for label in want])
    weights = np.asarray(map_.weights)
    if weights.ndim:
        weights = weights[order] if weights.ndim == 1 else weights[np.ix_(order, order)]
    return Platt(weights, map_.bias[order], map_.reads)


def _earlier(classifier: PrivateClassifier) -> list[Any]:
    """Recalibrations before this one: what they cost stays told."""
    before = classifier.manifest.federation
    if before is None:
        return []
    listed = before.get("earlier")
    one = {name: value for name, value in before.items() if name != "earlier"}
    return [*(listed if isinstance(listed, list) else []), one]


def _beside(folder: Path, record: Mapping[str, Any]) -> dict[str, bytes]:
    """The files beside the classifier, with the record in those that are about it."""
    _, listed = read_manifest(folder)
    files = {
        name: read_listed(folder, name, listed, _MOST) for name in listed if name != WEIGHTS
    }
    if RESULTS in files:
        files |= files_of(replace(results_of(folder), federation=record))
    return files
