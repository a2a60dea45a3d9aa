"""Saved classifiers on the command line: what they promise, and how they were measured."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from veracal.accounting import rounded_up
from veracal.artifact import NAME, PrivateClassifier, read_manifest
from veracal.calibration import from_json
from veracal.cli import _methods
from veracal.cli import _output as _show
from veracal.cli._figures import interval, number
from veracal.data import SCHEMAS, Dataset, Estimate, Scores, entry, load
from veracal.errors import DataError, VeracalError
from veracal.ledger import Ledger
from veracal.report import MeasurementRecord, Results
from veracal.workflow import RESULTS, TEST, results_of

REPORT = "report.html"
FIGURES = ("accuracy", "ece", "brier")


def is_artifact(path: Path) -> bool:
    """Tell whether a path is the folder of a saved classifier, by its looks."""
    return path.is_dir() and (path / NAME).exists()


def is_name(data: str) -> bool:
    """Tell the name of a built-in set from a path."""
    path = Path(data)
    return not (path.exists() or path.suffix or len(path.parts) > 1)


def check_named(classifier: PrivateClassifier, name: str) -> None:
    """Refuse a built-in set that is encoded otherwise than the classifier learnt.

    As many columns are not enough: with other bounds the same numbers mean something else.
    """
    # Pictures and texts have no schema: their form is compared when they are scored.
    if SCHEMAS.get(entry(name).name) != classifier.schema:
        raise DataError(
            name,
            "a model that was trained on this set",
            "one with another schema",
            "Name a table with the columns of the model's schema.",
        )


def model_mark(classifier: PrivateClassifier) -> str:
    """A few letters that differ between models: figures of one are not those of another."""
    written = json.dumps(classifier.map_.to_json(), sort_keys=True).encode()
    return hashlib.sha256(classifier.weights.to_bytes() + written).hexdigest()[:16]


def labeled_scores(classifier: PrivateClassifier, data: str) -> Scores:
    """What a classifier says of records whose labels are known.

    They are called after the table and the model, by which a ledger tells questions apart.
    """
    name = f"{Path(data).name} by model {model_mark(classifier)}"
    return classifier.scores(read_table(classifier, data)).renamed(name)


def read_table(
    classifier: PrivateClassifier, data: str, *, row_digests: bool = False
) -> Dataset:
    """A table or a built-in set, through the schema of a classifier."""
    if is_name(data):
        check_named(classifier, data)
    elif classifier.schema is None:
        raise no_schema(data)
    with _show.progress_bar(f"Reading {data}") as progress:
        schema = None if is_name(data) else classifier.schema
        return load(data, schema=schema, row_digests=row_digests, progress=progress)


def no_schema(data: str) -> DataError:
    """Error for a model that does not know how to read a table."""
    return DataError(
        data,
        "a model with a schema, which says how a table becomes numbers",
        "one without",
        "Load the rows yourself, and use PrivateClassifier.load(MODEL).predict_proba(X).",
    )


def read_results(folder: Path) -> Results:
    """What an artifact says of itself, as its hashes say it was written.

    Raises
    ------
    DataError
        If there is no artifact, if it has no results, or if they are not as they should be.
    """
    _, files = read_manifest(folder)
    if RESULTS not in files:
        raise DataError(
            str(folder),
            f"an artifact with {RESULTS}, as 'veracal fit' writes it",
            "one without",
            "Name another, or measure it with 'veracal evaluate MODEL --data TABLE'.",
        )
    results = results_of(folder)
    # A figure that cannot be shown is told here, and not half-way.
    facts(results, str(folder / RESULTS))
    return results


def facts(results: Results, where: str) -> dict[str, Any]:
    """What is compared and shown of results: words, numbers and estimates."""
    try:
        promise, data = results.guarantee, results.data
        return {
            "data": str(data["name"]),
            "classes": [str(label) for label in data["classes"]],
            "features": int(data["features"]),
            "test": float(data["test"]),
            "unit": str(promise["unit"]),
            "at_most": int(promise["at_most"]),
            "relation": str(promise["relation"]),
            "epsilon": float(promise["epsilon"]),
            "delta": float(promise["delta"]),
            "text": str(promise["text"]),
            "model": str(results.model["kind"]),
            "map": map_words(results.map, where),
            "bins": int(results.settings["measurement"]["bins"]),
            "seed": str(results.settings["data"]["seed"]),
            "version": str(results.settings["data"]["version"]),
            "measured": {one.when: estimates(one) for one in results.measured},
        }
    except VeracalError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as cause:
        raise DataError(
            where,
            "results as this version writes them",
            "others",
            "Get the artifact again from whoever made it.",
        ) from cause


def estimates(measured: MeasurementRecord, group: str | None = None) -> dict[str, Estimate]:
    """Figures of one measurement that could be told, of everybody or of a group."""
    overall = measured.figures["overall" if group is None else "groups"]
    overall = overall if group is None else overall[group]
    found = {name: overall.get(name) for name in FIGURES}
    return {name: _estimate(one) for name, one in found.items() if one is not None}


def _estimate(found: Mapping[str, Any]) -> Estimate:
    """A figure with its interval, refused if anything in it is no number."""
    value, low, high, level = (_real(found[k]) for k in ("value", "low", "high", "level"))
    if level is None or type(found["n"]) is not int:
        raise TypeError
    return Estimate(value, low, high, level, found["n"])


def _real(found: object) -> float | None:
    """A number or none; text that reads like one is neither."""
    if found is None:
        return None
    if not isinstance(found, int | float) or isinstance(found, bool):
        raise TypeError
    return float(found)


def map_words(written: Mapping[str, Any], where: str) -> str:
    """A map in words."""
    return _methods.words(from_json(dict(written), where))


def protected(told: Mapping[str, Any]) -> str:
    """Whom a promise protects."""
    rows = "" if told["at_most"] == 1 else f" with at most {told['at_most']} rows"
    return f"one {told['unit']}{rows}, {told['relation']}"


def cost(told: Mapping[str, Any]) -> str:
    """How strong a promise is."""
    return f"epsilon {rounded_up(told['epsilon'])}, delta {rounded_up(told['delta'], 3)}"


def left(ledger: Ledger) -> int:
    """How often a model can be measured again from the ledger of its run."""
    return min(
        (item.times - used for item, used in ledger.planned() if item.part == TEST), default=0
    )


def shown(estimate: Estimate | None) -> str:
    """A figure and its interval on a line."""
    if estimate is None:
        return "–"
    return f"{number(estimate.value)} ({interval(estimate)})"
