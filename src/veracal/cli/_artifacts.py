"""Saved classifiers on the command line: their statements and their figures."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veracal.cli import _output
from veracal.cli._options import is_name
from veracal.errors import DataError

if TYPE_CHECKING:
    from veracal.artifact import PrivateClassifier
    from veracal.calibration import CalibrationMap, PrivateFigures
    from veracal.data import Dataset, Estimate, Scores
    from veracal.report import Results

REPORT = "report.html"
FIGURES = ("accuracy", "ece", "brier")
NOISY_NOTE = "Released with noise, on held-out records. Intervals account for the noise."
_MAX_PRINTED = 8  # numbers of a map that are printed


def is_artifact(path: Path) -> bool:
    """Whether a path looks like the folder of a saved classifier."""
    from veracal.artifact import MANIFEST

    return path.is_dir() and (path / MANIFEST).exists()


def load_classifier(folder: Path) -> "PrivateClassifier":
    """Load a saved classifier; an error about the folder comes before the slow imports."""
    from veracal.artifact import read_manifest

    read_manifest(folder)
    from veracal.artifact import PrivateClassifier

    return PrivateClassifier.load(folder)


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


def labeled_scores(classifier: "PrivateClassifier", data: str) -> "Scores":
    """Scores of a classifier on labeled records.

    Their name contains the table and an id of the model, so that a ledger distinguishes the
    queries.
    """
    written = json.dumps(classifier.map_.to_json(), sort_keys=True).encode()
    model_id = hashlib.sha256(classifier.weights.to_bytes() + written).hexdigest()[:16]
    scores = classifier.scores(read_table(classifier, data))
    return scores.renamed(f"{Path(data).name} by model {model_id}")


def read_table(
    classifier: "PrivateClassifier", data: str, *, row_digests: bool = False
) -> "Dataset":
    """Load a table or a built-in set through the schema of a classifier."""
    from veracal.data import load

    schema = None
    if is_name(data):
        check_named(classifier, data)
    else:
        schema = classifier.schema
        if schema is None:
            raise no_schema(data)
    with _output.progress_bar(f"Reading {data}") as progress:
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

    _, files = read_manifest(folder)
    from veracal.workflow import RESULTS, load_results  # slow to import

    if RESULTS not in files:
        raise DataError(
            str(folder),
            f"an artifact with {RESULTS}, as 'veracal fit' writes it",
            "one without",
            "Name another, or measure it with 'veracal evaluate MODEL --data TABLE'.",
        )
    results = load_results(folder)
    facts(results, str(folder / RESULTS))  # report invalid settings now, before any output
    return results


def facts(results: "Results", where: str) -> dict[str, Any]:
    """The facts of results that commands compare and print."""
    from veracal.workflow import Config

    guarantee, data = results.guarantee, results.data
    config = Config.from_entries(results.settings, where=f"{where}: settings")
    return {
        "data": data.name,
        "classes": [str(label) for label in data.classes],
        "features": data.features,
        "test": data.test,
        "unit": guarantee.unit,
        "max_contributions": guarantee.max_contributions,
        "relation": guarantee.relation,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "text": guarantee.text(),
        "model": config.model.kind,
        "map": map_summary(results.map),
        "bins": config.measurement.bins,
        "split_key": config.data.split_key,
        "version": config.data.version,
        "measured": {one.when: estimates(one.overall) for one in results.measured},
    }


def estimates(figures: "PrivateFigures") -> "dict[str, Estimate]":
    """The figures of a measurement that were released."""
    parsed = {name: getattr(figures, name) for name in FIGURES}
    return {name: figure for name, figure in parsed.items() if figure is not None}


def map_summary(map_: "CalibrationMap") -> str:
    """A calibration map in one line."""
    import numpy as np

    from veracal import calibration

    def listed(numbers: Any) -> str:
        flat = np.asarray(numbers, dtype=np.float64).ravel().tolist()
        more = f", … ({len(flat)} numbers)" if len(flat) > _MAX_PRINTED else ""
        return ", ".join(f"{number:.3g}" for number in flat[:_MAX_PRINTED]) + more

    match map_:
        case calibration.Identity():
            return "none: the scores are not changed"
        case calibration.Temperature():
            return f"temperature {map_.value:.5g} (logits are divided by it)"
        case calibration.UniformMixing():
            return (
                f"temperature {map_.value:.5g}, and {map_.uniform_weight:.3g} of the uniform "
                "distribution"
            )
        case calibration.TwoTemperatures():
            return (
                f"temperatures {1 / map_.unsure:.5g} (low confidence) to {1 / map_.sure:.5g} "
                "(high confidence)"
            )
        case calibration.Platt():
            return f"weights {listed(map_.weights)}; bias {listed(map_.bias)}"
        case calibration.Binned():
            return f"accuracy by bin {listed(map_.accuracies)}"
        case _:
            return map_.kind


def protected(facts: Mapping[str, Any]) -> str:
    """The unit that a statement protects, in words."""
    most = facts["max_contributions"]
    rows = "" if most == 1 else f" with at most {most} rows"
    return f"one {facts['unit']}{rows}, {facts['relation']}"


def cost(facts: Mapping[str, Any]) -> str:
    """Epsilon and delta of a statement, in words."""
    from veracal.accounting import format_up

    return f"epsilon {format_up(facts['epsilon'])}, delta {format_up(facts['delta'], 3)}"
