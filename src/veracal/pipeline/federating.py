"""Writes what institutions found into the artifact of a model, and into its report."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from veracal.artifact import PrivateClassifier
from veracal.artifact.kinds import WEIGHTS
from veracal.artifact.manifest import read_listed, read_manifest
from veracal.calibration.maps import Identity, Map, Platt
from veracal.data.labels import Label
from veracal.errors import DataError
from veracal.pipeline.telling import RESULTS, files_of, results_of

_MOST = 64 * 2**20  # bytes of a file beside the classifier


def write_recalibrated(
    folder: Path, map_: Map, record: Mapping[str, Any], out: Path, *, force: bool = False
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
        :func:`veracal.federation.calibrator.running.record` writes it.
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
    made.save(out, more=_beside(folder, told), force=force)
    return made


def arranged(map_: Map, classifier: PrivateClassifier) -> Map:
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
