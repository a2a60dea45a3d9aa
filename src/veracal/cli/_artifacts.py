"""Saved classifiers on the command line: their statements and their figures."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veracal.cli import _output
from veracal.cli._figures import format_interval, format_number
from veracal.cli._options import is_name
from veracal.errors import DataError, VeracalError

if TYPE_CHECKING:
    from veracal.artifact import PrivateClassifier
    from veracal.data import Dataset, Estimate, Scores
    from veracal.ledger import Ledger
    from veracal.report import MeasurementRecord, Results

REPORT = "report.html"
FIGURES = ("accuracy", "ece", "brier")
NOISY_NOTE = "Released with noise, on held-out records. Intervals account for the noise."


def is_artifact(path: Path) -> bool:
    """Whether a path looks like the folder of a saved classifier."""
    from veracal.artifact import MANIFEST

    return path.is_dir() and (path / MANIFEST).exists()


def check_named(classifier: "PrivateClassifier", name: str) -> None:
    """Reject a built-in set with another encoding than the classifier was trained on.

    The same number of columns is not enough: with other bounds the same numbers have another
    meaning.
    """
    from veracal.data import SCHEMAS, entry

    # Images and texts have no schema: their form is checked when they are scored.
    if SCHEMAS.get(entry(name).name) != classifier.schema:
        raise DataError(
            name,
            "a model that was trained on this set",
            "one with another schema",
            "Name a table with the columns of the model's schema.",
        )


def model_id(classifier: "PrivateClassifier") -> str:
    """Short id that differs between models."""
    written = json.dumps(classifier.map_.to_json(), sort_keys=True).encode()
    return hashlib.sha256(classifier.weights.to_bytes() + written).hexdigest()[:16]


def labeled_scores(classifier: "PrivateClassifier", data: str) -> "Scores":
    """Scores of a classifier on labeled records.

    Their name contains the table and the model, so that a ledger distinguishes the queries.
    """
    name = f"{Path(data).name} by model {model_id(classifier)}"
    return classifier.scores(read_table(classifier, data)).renamed(name)


def read_table(
    classifier: "PrivateClassifier", data: str, *, row_digests: bool = False
) -> "Dataset":
    """Load a table or a built-in set through the schema of a classifier."""
    from veracal.data import load

    if is_name(data):
        check_named(classifier, data)
    elif classifier.schema is None:
        raise no_schema(data)
    with _output.progress_bar(f"Reading {data}") as progress:
        schema = None if is_name(data) else classifier.schema
        return load(data, schema=schema, row_digests=row_digests, progress=progress)


def no_schema(data: str) -> DataError:
    """Error for a model without a schema, which cannot read a table."""
    return DataError(
        data,
        "a model with a schema, which defines how a table becomes numbers",
        "one without",
        "Load the rows in Python, and use PrivateClassifier.load(MODEL).predict_proba(X).",
    )


def read_results(folder: Path) -> "Results":
    """Read the results of an artifact, and check them against its hashes.

    Raises
    ------
    DataError
        If there is no artifact, if it has no results, or if they are not valid.
    """
    from veracal.artifact import read_manifest
    from veracal.workflow import RESULTS, load_results

    _, files = read_manifest(folder)
    if RESULTS not in files:
        raise DataError(
            str(folder),
            f"an artifact with {RESULTS}, as 'veracal fit' writes it",
            "one without",
            "Name another, or measure it with 'veracal evaluate MODEL --data TABLE'.",
        )
    results = load_results(folder)
    facts(results, str(folder / RESULTS))  # report an invalid figure now, before any output
    return results


def facts(results: "Results", where: str) -> dict[str, Any]:
    """The facts of results that commands compare and print."""
    try:
        guarantee, data, settings = results.guarantee, results.data, results.settings
        return {
            "data": str(data["name"]),
            "classes": [str(label) for label in data["classes"]],
            "features": int(data["features"]),
            "test": float(data["test"]),
            "unit": str(guarantee["unit"]),
            "at_most": int(guarantee["at_most"]),
            "relation": str(guarantee["relation"]),
            "epsilon": float(guarantee["epsilon"]),
            "delta": float(guarantee["delta"]),
            "text": str(guarantee["text"]),
            "model": str(results.model["kind"]),
            "map": describe_map(results.map, where),
            "bins": int(settings["measurement"]["bins"]),
            "split_key": str(settings["data"]["split_key"]),
            "version": str(settings["data"]["version"]),
            "measured": {one.when: estimates(one) for one in results.measured},
        }
    except VeracalError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as cause:
        raise DataError(
            where,
            "results as this version writes them",
            "others",
            "Get the artifact again from its source.",
        ) from cause


def estimates(measured: "MeasurementRecord", group: str | None = None) -> "dict[str, Estimate]":
    """Figures of one measurement that were released, overall or of a group."""
    figures = measured.figures["overall" if group is None else "groups"]
    figures = figures if group is None else figures[group]
    values = {name: figures.get(name) for name in FIGURES}
    return {name: _estimate(one) for name, one in values.items() if one is not None}


def _estimate(written: Mapping[str, Any]) -> "Estimate":
    """Parse a figure with its interval; every value must be a number."""
    from veracal.data import Estimate

    value, low, high, level = (_real(written[k]) for k in ("value", "low", "high", "level"))
    if level is None or type(written["n"]) is not int:
        raise TypeError
    return Estimate(value, low, high, level, written["n"])


def _real(value: object) -> float | None:
    """A number or None; text that looks like a number is an error."""
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError
    return float(value)


def describe_map(written: Mapping[str, Any], where: str) -> str:
    """Describe a calibration map in words."""
    from veracal.calibration import from_json
    from veracal.cli import _methods

    return _methods.map_summary(from_json(dict(written), where))


def protected(facts: Mapping[str, Any]) -> str:
    """The unit that a statement protects, in words."""
    rows = "" if facts["at_most"] == 1 else f" with at most {facts['at_most']} rows"
    return f"one {facts['unit']}{rows}, {facts['relation']}"


def cost(facts: Mapping[str, Any]) -> str:
    """Epsilon and delta of a statement, in words."""
    from veracal.accounting import format_up

    return f"epsilon {format_up(facts['epsilon'])}, delta {format_up(facts['delta'], 3)}"


def left(ledger: "Ledger") -> int:
    """Number of reserved measurements that are left in the run of a model."""
    from veracal.workflow import TEST

    return min(
        (item.times - used for item, used in ledger.planned() if item.partition == TEST),
        default=0,
    )


def format_estimate(estimate: "Estimate | None") -> str:
    """A figure and its interval on one line."""
    if estimate is None:
        return "–"
    return f"{format_number(estimate.value)} ({format_interval(estimate)})"
