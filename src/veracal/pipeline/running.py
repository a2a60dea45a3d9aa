"""The whole way: load, split, announce and charge, train, score, repair, measure, report."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from veracal import __version__
from veracal.artifact import PrivateClassifier
from veracal.artifact.folder import check_place
from veracal.calibration.private import MeasurementPlan, measure_planned
from veracal.data import Scores
from veracal.errors import MissingExtraError
from veracal.pipeline.config import Config
from veracal.pipeline.steps import (
    TEST,
    TRAIN,
    TRAINING,
    Loaded,
    budget_of,
    ledger_for,
    loaded,
    measurement,
    planned,
)
from veracal.pipeline.training import private_model
from veracal.privacy import (
    Budget,
    Composed,
    Holder,
    Item,
    Ledger,
    Parallel,
    Repeated,
    statement,
)
from veracal.report import model_card, render
from veracal.report.results import Measured, Results

OnProgress = Callable[[str, float, float | None], None]
NOT_MEASURED = (
    "how many decisions hang on the chance of the noise (multiplicity was not audited)",
    "whether the records are right, complete, or like those the model will meet",
)


@dataclass(frozen=True, eq=False)
class Run:
    """What a run left.

    Attributes
    ----------
    folder : Path
        The artifact.
    classifier : PrivateClassifier
    results : Results
    ledger : Ledger
    """

    folder: Path
    classifier: PrivateClassifier
    results: Results
    ledger: Ledger


def run(
    config: Config,
    out: str | Path,
    *,
    ledger: str | Path | None = None,
    force: bool = False,
    on_progress: OnProgress | None = None,
) -> Run:
    """Train, repair, measure and report, all charged to one ledger before a record is used.

    A run that was interrupted, or whose output was lost, is run again: what was charged is in
    the ledger with its answer, and comes from there, the same to the last bit.

    Parameters
    ----------
    config : Config
    out : path
        Folder of the artifact.
    ledger : path, optional
        By default beside it, with ``.ledger`` after its name.
    force : bool
        Whether the artifact may take the place of a folder that is there.
    on_progress : callable
        ``on_progress(step, done, total)``.
    """
    tell = on_progress or silent
    folder = Path(out)
    check_place(folder, force=force)
    records = loaded(config, lambda done, total: tell("loading", done, total))
    budget, plan = budget_of(config, records), measurement(config, records)
    model = private_model(config, records.train, budget)
    items = planned(config, model, plan, budget)
    tell("charging", 0, None)
    place = Path(f"{folder}.ledger") if ledger is None else Path(ledger)
    book = ledger_for(place, budget, items)
    tell("training", 0, None)
    classifier = trained(config, model, records, book)
    measured = []
    for when in ("before", "after"):
        tell(f"measuring {when}", 0, None)
        scores = classifier.scores(records.test, mapped=when == "after")
        measured.append(asked(scores, when, plan, config, book))
    tell("reporting", 0, None)
    made = results(config, records, classifier, budget, items, book, tuple(measured))
    classifier.save(folder, more=files_of(made), force=force)
    return Run(folder, classifier, made, book)


def trained(config: Config, model: Any, records: Loaded, book: Ledger) -> PrivateClassifier:
    """The classifier that was paid for: fitted now, or as the ledger remembers it."""
    body = config.canonical()
    holder = Holder(records.train, book, part=TRAIN, version=config.data.version)
    kept = holder.fit_once(
        model,
        lambda fitted: packed(
            PrivateClassifier.of(fitted, schema=records.schema, name=config.name)
        ),
        request=f"{TRAINING} {hashlib.sha256(body).hexdigest()}",
        body=body,
        purpose=TRAINING,
    )
    return unpacked(kept)


def packed(classifier: PrivateClassifier) -> bytes:
    """A classifier as bytes that a ledger keeps."""
    files = {name: content.hex() for name, content in classifier.files().items()}
    return json.dumps(files).encode()


def unpacked(content: bytes) -> PrivateClassifier:
    """The classifier of such bytes."""
    files = {name: bytes.fromhex(text) for name, text in json.loads(content).items()}
    return PrivateClassifier.from_files(files, "ledger")


def asked(
    scores: Scores, when: str, plan: MeasurementPlan, config: Config, book: Ledger
) -> Measured:
    """Measure scores, or repeat what was answered before."""
    named = scores.renamed(f"{config.name}: {when}")
    holder = Holder(named, book, part=TEST, version=config.data.version)
    found = measure_planned(holder, plan, request=f"measurement {when}")
    return Measured(when, today(), found.to_json())


def results(
    config: Config,
    records: Loaded,
    classifier: PrivateClassifier,
    budget: Budget,
    items: list[Item],
    book: Ledger,
    measured: tuple[Measured, ...],
) -> Results:
    """What may be told of a run."""
    whole = records.whole
    events = [
        Composed(tuple(Repeated(i.event, i.times) for i in items if i.part == part))
        for part in (TRAIN, TEST)
    ]
    promise = statement(
        Parallel(tuple(events)),
        budget.delta,
        budget.unit,
        covers=("the model and its map", "every figure marked as released"),
    )
    return Results(
        name=config.name,
        made=today(),
        data={
            "name": whole.name,
            "classes": list(whole.classes),
            "features": int(whole.X.shape[1]),
            "groups": {name: list(group.names) for name, group in whole.groups.items()},
            "unit": budget.unit.name,
            "at_most": budget.unit.at_most,
            "size": whole.size,
            "test": config.data.test,
        },
        guarantee={**promise.to_json(), "private": True, "text": promise.text()},
        ledger=ledger_facts(book),
        model={**config.to_json()["model"], "kind": config.model.kind},
        map=classifier.map_.to_json(),
        measured=measured,
        settings=config.to_json(),
        versions=versions(),
        not_measured=NOT_MEASURED,
    )


def ledger_facts(book: Ledger) -> dict[str, Any]:
    """What a report tells of a ledger."""
    lines = [
        {"purpose": item.purpose, "part": item.part, "times": item.times, "used": count}
        for item, count in book.planned()
    ]
    return {"name": book.path.name, "head": book.head, "planned": lines}


def files_of(made: Results) -> dict[str, bytes]:
    """What is kept of results beside the classifier.

    Without the extra that draws there is no page; ``veracal report`` makes it later.
    """
    files = {"results.json": made.to_bytes(), "MODEL_CARD.md": model_card(made).encode()}
    with suppress(MissingExtraError):
        files["report.html"] = render(made).encode()
    return files


def silent(step: str, done: float, total: float | None) -> None:
    """Tell nobody."""


def versions() -> dict[str, str]:
    """Of this library, and of those that numbers depend on."""
    names = ("numpy", "scipy", "scikit-learn", "opendp", "dp-accounting")
    return {"veracal": __version__, **{name: version(name) for name in names}}


def today() -> str:
    """The date, in universal time."""
    return datetime.now(UTC).date().isoformat()
