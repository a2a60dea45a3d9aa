"""What is told of a run: results, the files beside the classifier, where it came from."""

import math
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from veracal import __version__
from veracal.artifact import PrivateClassifier
from veracal.artifact.manifest import read_listed, read_manifest
from veracal.errors import MissingExtraError
from veracal.pipeline.config import Config
from veracal.pipeline.job import Job, today
from veracal.pipeline.steps import TEST, TRAIN
from veracal.privacy import (
    Budget,
    Composed,
    Item,
    Ledger,
    Parallel,
    Repeated,
    Statement,
    epsilon_for,
    ledger_total,
    statement,
)
from veracal.report import model_card, render
from veracal.report.results import MOST, Measured, Results

RESULTS = "results.json"
NOT_MEASURED = (
    "how many decisions hang on the chance of the noise (multiplicity was not audited; "
    "'veracal audit' does that, for whoever holds the records)",
    "whether the records are right, complete, or like those the model will meet",
)
COVERS = ("the model and its map", "every figure marked as released")


def results(
    job: Job,
    classifier: PrivateClassifier,
    book: Ledger,
    measured: tuple[Measured, ...],
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
        made=today(),
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
    manifest = replace(classifier.manifest, ledger=ledger, versions=made.versions)
    return PrivateClassifier(classifier.weights, classifier.map, manifest)


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
