"""Results of a run, the files beside its classifier, and artifacts recalibrated elsewhere."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from veracal import __version__
from veracal._types import Ints
from veracal.accounting import (
    Budget,
    Composed,
    Parallel,
    Repeated,
    Statement,
    epsilon_for,
    statement,
)
from veracal.artifact import (
    WEIGHTS,
    PrivateClassifier,
    RecalibrationRecord,
    read_manifest,
    read_verified,
)
from veracal.calibration import CalibrationMap, CalibrationResult, Identity, Platt, measure
from veracal.data import Estimate, Label, Scores
from veracal.errors import DataError, MissingExtraError
from veracal.ledger import EpsilonDelta, Ledger, ledger_total
from veracal.report import (
    MOST,
    STAGES,
    DataFacts,
    ExactFigures,
    LedgerLine,
    LedgerSummary,
    MeasurementRecord,
    Results,
    UnreleasedFigures,
)
from veracal.workflow.config import Config
from veracal.workflow.planning import RunPlan, today
from veracal.workflow.records import TEST, TRAIN, LoadedRecords

RESULTS = "results.json"
NOT_MEASURED = (
    "how far decisions depend on the randomness of training (multiplicity was not audited; the "
    "data holder can run 'veracal audit')",
    "whether the records are correct, complete, or similar to those that the model will meet",
)
COVERS = ("the model and its map", "every figure marked as released")
_MAX_BYTES = 64 * 2**20  # of a file beside the classifier
_BOOTSTRAP_WORK, _REPLICATES = 20_000_000, 100  # resampled numbers, and replicates
_FIGURES = ("accuracy", "ece", "brier", "nll")


def build_results(
    plan: RunPlan,
    classifier: PrivateClassifier,
    ledger: Ledger,
    measured: tuple[MeasurementRecord, ...],
    covers: tuple[str, ...] = COVERS,
    *,
    budget: Budget | None = None,
) -> Results:
    """The results of a run that may be published.

    The statement covers everything that the run was charged for, whether or not it was used.
    ``budget`` is that of the run, where it is more than that of the plan.
    """
    config, dataset = plan.config, plan.records.dataset
    budget = plan.budget if budget is None else budget
    items = [item for item, _ in ledger.planned()]
    train, test = (
        Composed(tuple(Repeated(i.event, i.times) for i in items if i.partition == part))
        for part in (TRAIN, TEST)
    )
    libraries = ("numpy", "scipy", "scikit-learn", "opendp", "dp-accounting")
    return Results(
        name=config.name,
        date=today(),
        data=DataFacts(
            name=dataset.name,
            classes=dataset.classes,
            features=math.prod(dataset.X.shape[1:]),
            groups={name: group.names for name, group in dataset.groups.items()},
            unit=budget.unit.name,
            max_contributions=budget.unit.max_contributions,
            size=dataset.size,
            test=config.data.test,
        ),
        guarantee=statement(
            Parallel((train, test)),
            budget.delta,
            budget.unit,
            covers=covers,
            ledger_total=ledger_total(ledger),
        ),
        ledger=summarize_ledger(ledger, budget),
        map=classifier.map_,
        measured=measured,
        settings=public_settings(config),
        versions={"veracal": __version__, **{name: version(name) for name in libraries}},
        not_measured=NOT_MEASURED,
    )


def public_settings(config: Config) -> dict[str, Any]:
    """All settings, with file names in place of paths, which describe only this machine."""
    settings = config.to_json()
    for name in ("source", "schema"):
        if settings["data"][name] is not None:
            settings["data"][name] = Path(settings["data"][name]).name
    return settings


def summarize_ledger(ledger: Ledger, budget: Budget) -> LedgerSummary:
    """What a report states about the ledger of a run.

    Its path is left out, and so is its default file name, which contains a hash of the path of
    the data.
    """
    planned = []
    for item, used in ledger.planned():
        event = Repeated(item.event, item.times)
        for delta in (0.0, budget.delta):  # at delta 0 where that is finite
            epsilon = epsilon_for(event, delta, budget.unit)
            if epsilon < math.inf:
                break
        planned.append(
            LedgerLine(item.purpose, item.partition, item.times, used, epsilon, delta)
        )
    data = ledger.opening.data
    return LedgerSummary(
        name=ledger.path.name if data is None else data,
        head=ledger.head,
        planned=tuple(planned),
        caps=EpsilonDelta(ledger.budget.epsilon, ledger.budget.delta),
        spent=ledger.spent(),
        runs=len(ledger.runs()),
        note=ledger.caps.note,
    )


def add_provenance(classifier: PrivateClassifier, results: Results) -> PrivateClassifier:
    """Record in a classifier the ledger that paid for it and the versions that made it."""
    guarantee, total = classifier.manifest.guarantee, results.guarantee.ledger_total
    assert isinstance(guarantee, Statement)
    assert total is not None
    manifest = replace(
        classifier.manifest,
        guarantee=with_total(guarantee, total),
        ledger={"name": results.ledger.name, "head": results.ledger.head},
        versions=results.versions,
    )
    return PrivateClassifier(classifier.weights, manifest)


def with_total(guarantee: Statement, total: str) -> Statement:
    """An earlier statement with the present total of its ledger.

    A cap may have been raised since then, which every later statement has to say.
    """
    return replace(guarantee, ledger_total=total)


def result_files(results: Results) -> dict[str, bytes]:
    """The files of the results beside the classifier.

    Without the extra that draws charts there is no page; ``veracal report`` makes it later.
    """
    from veracal.report import model_card, render

    files = {RESULTS: results.to_bytes(), "MODEL_CARD.md": model_card(results).encode()}
    with suppress(MissingExtraError):
        files["report.html"] = render(results).encode()
    return files


def load_results(folder: Path) -> Results:
    """Read the results of an artifact, and check them against its hashes."""
    _, files = read_manifest(folder)
    content = read_verified(folder, RESULTS, files, MOST)
    return Results.from_bytes(content, str(folder / RESULTS))


# ------------------------------------------------------------------ internal figures


def internal_figures(
    config: Config,
    records: LoadedRecords,
    classifier: PrivateClassifier,
    losses: Sequence[float] = (),
) -> UnreleasedFigures:
    """Counts and exact figures, for the internal page of :func:`veracal.report.render`.

    Guarantees
    ----------
    None. Every number is an exact function of the records.
    """
    dataset, stages = records.dataset, {}
    for when in STAGES if len(records.test) else ():
        scores = classifier.scores(records.test, mapped=when == "after")
        groups: dict[str, Mapping[str, Estimate]] = {}
        if config.measurement.group is not None:
            group = scores.groups[config.measurement.group]
            members = {
                name: scores.take(group.codes == code) for code, name in enumerate(group.names)
            }
            groups = {
                name: _measure(each, config).figures
                for name, each in members.items()
                if len(each)
            }
        stages[when] = ExactFigures(_measure(scores, config), groups)
    return UnreleasedFigures(
        records={"training": len(records.train), "test": len(records.test)},
        classes=_count(dataset.classes, dataset.y),
        groups={
            name: _count(group.names, group.codes) for name, group in dataset.groups.items()
        },
        stages=stages,
        losses=tuple(losses),
    )


def _count(names: Sequence[object], codes: Ints) -> dict[str, int]:
    """Number of records with each code, by its name."""
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    return {str(name): int(n) for name, n in zip(names, counts, strict=True)}


def _measure(scores: Scores, config: Config) -> CalibrationResult:
    """Exact figures and a curve, with intervals unless they would take long."""
    replicates = min(_REPLICATES, _BOOTSTRAP_WORK // max(1, scores.values.size))
    # A fixed seed: nothing is released, so the randomness need not be secret.
    rng = np.random.default_rng(0)
    bins = config.measurement.bins
    return measure(scores, figures=_FIGURES, bins=bins, replicates=replicates, rng=rng)


# ------------------------------------------------- artifacts recalibrated by institutions


def write_recalibrated(
    folder: Path, record: RecalibrationRecord, out: Path, *, force: bool = False
) -> PrivateClassifier:
    """Write an artifact with a map that institutions fitted, and a record of who they are.

    Parameters
    ----------
    folder : path
        The artifact as it is.
    record : RecalibrationRecord
        Its map is for scores without a map, with classes in the order of the artifact's schema.
        The identity means that no better map was fitted: the artifact keeps its map, and says
        so.
    out : path
        The artifact to write; the same folder, with ``force``, is replaced.
    force : bool

    Guarantees
    ----------
    Weights, guarantee and results of the training stay as they are. What institutions were
    charged for earlier maps of this artifact stays in it. The new folder appears complete or
    not at all.
    """
    classifier = PrivateClassifier.load(folder)
    records = (*classifier.manifest.recalibrations, record)
    new = (
        classifier.map_ if record.map == Identity() else reorder_classes(record.map, classifier)
    )
    manifest = replace(classifier.manifest, map=new, recalibrations=records)
    recalibrated = PrivateClassifier(classifier.weights, manifest)
    _, listed = read_manifest(folder)
    files = {
        name: read_verified(folder, name, listed, _MAX_BYTES)
        for name in listed
        if name != WEIGHTS
    }
    if RESULTS in files:
        files |= result_files(replace(load_results(folder), recalibrations=records))
    recalibrated.save(out, other_files=files, force=force)
    return recalibrated


def reorder_classes(map_: CalibrationMap, classifier: PrivateClassifier) -> CalibrationMap:
    """Reorder the classes of a map from the order of the schema to that of the weights."""
    if not isinstance(map_, Platt) or classifier.schema is None:
        return map_
    have: tuple[Label, ...] = classifier.schema.classes
    want: tuple[Label, ...] = classifier.manifest.classes
    if set(have) != set(want) or len(map_.bias) != len(want):
        raise DataError(
            "the map",
            f"one for the classes {list(want)}",
            f"one for {len(map_.bias)} classes, {list(have)}"[:200],
            "Query sources that scored their records with this model.",
        )
    order = np.array([have.index(label) for label in want])
    weights = np.asarray(map_.weights)
    if weights.ndim:
        weights = weights[order] if weights.ndim == 1 else weights[np.ix_(order, order)]
    return Platt(weights, map_.bias[order], map_.reads)
