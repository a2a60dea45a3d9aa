"""A classifier that was trained, repaired, saved, and can be asked again."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from veracal._types import Frozen
from veracal.artifact.folder import write_folder
from veracal.artifact.linear import LinearWeights, most_bytes
from veracal.artifact.manifest import (
    NAME,
    Manifest,
    check_listed,
    parse_manifest,
    read_listed,
    read_manifest,
)
from veracal.calibration.maps import Identity, Map
from veracal.calibration.maps.files import from_json
from veracal.calibration.predicting import MappedPredictions
from veracal.calibration.scoring import logits_of
from veracal.data import Dataset, Schema, Scores
from veracal.data.score_values import Kind
from veracal.errors import DataError
from veracal.training.linear import LinearClassifier

WEIGHTS = "model.safetensors"


class PrivateClassifier(
    MappedPredictions,
    ClassifierMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """A fitted classifier with its map, its schema and its guarantee; it cannot be fitted.

    Get one with :meth:`load`, or :meth:`of` a model that was just fitted. It predicts as
    scikit-learn's classifiers do, from rows of X as the schema encodes them
    (``veracal.data.load(table, schema=model.schema)``).

    Attributes
    ----------
    classes_ : array of shape (k,)
        In the order of the weights, which need not be the declared one.
    n_features_in_ : int
    map_ : Map
    manifest : Manifest
        What else was saved: the guarantee, the ledger's head, versions.
    schema : Schema or None
        How a table becomes rows of X.
    private_ : bool
        Whether the guarantee promises anything.

    Guarantees
    ----------
    Loading runs no code of the artifact's: weights are safetensors of known names, shapes
    and sizes, everything else is strict JSON. Every byte of both is compared with a hash. That
    shows accidents and careless changes; whoever can write to the folder can also write
    hashes, so compare that of ``model.json`` with one that came another way.
    """

    def __init__(self, weights: LinearWeights, map_: Map, manifest: Manifest) -> None:
        self.weights, self.map, self.manifest = weights, map_, manifest
        self.estimator_, self.map_ = weights, map_
        self.classes_ = np.array(manifest.classes)
        self.n_features_in_ = manifest.features
        gives = map_.transform(Scores.from_logits(np.zeros((1, len(manifest.classes)))))
        self.gives_: Kind = gives.kind

    @classmethod
    def of(cls, model: Any, *, schema: Schema | None = None, name: str = "model") -> Self:
        """Take what predictions need from a fitted model.

        Parameters
        ----------
        model : LinearClassifier or PrivateCalibratedClassifier of one
        schema : Schema, optional
            How the table was encoded.
        name : str
        """
        inner, map_ = getattr(model, "estimator_", model), getattr(model, "map_", Identity())
        if not isinstance(inner, LinearClassifier):
            raise ValueError(
                f"Expected a linear classifier, calibrated or not, got {inner!r}. Only those "
                "can be saved so far."
            )
        stated = model.statement_
        manifest = Manifest(
            name=name,
            classes=tuple(np.asarray(model.classes_).tolist()),
            features=int(inner.coef_.shape[1]),
            feature_names=() if schema is None else schema.feature_names,
            schema=None if schema is None else schema.to_toml(),
            model=LinearWeights.of(inner).to_json(),
            map=map_.to_json(),
            guarantee={
                **stated.to_json(),
                "private": bool(model.private_),
                "text": stated.text(),
            },
        )
        return cls(LinearWeights.of(inner), map_, manifest)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an artifact that anybody may have made.

        Raises
        ------
        DataError
            If it is not one, if something is missing, was changed or cut off, or if a newer
            version of Veracal made it.
        """
        folder = Path(path)
        manifest, files = read_manifest(folder)
        most = most_bytes(len(manifest.classes), manifest.features, str(folder / NAME))
        return cls._read(manifest, read_listed(folder, WEIGHTS, files, most), str(folder))

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], where: str) -> Self:
        """Make one of files that are kept elsewhere than in a folder."""
        manifest, listed = parse_manifest(files[NAME], where)
        return cls._read(manifest, check_listed(files[WEIGHTS], WEIGHTS, listed, where), where)

    @classmethod
    def _read(cls, manifest: Manifest, content: bytes, where: str) -> Self:
        """Make one of its description and its weights."""
        weights = LinearWeights.read(
            content,
            manifest.model,
            len(manifest.classes),
            manifest.features,
            f"{where}/{WEIGHTS}",
        )
        made = cls(weights, from_json(manifest.map, f"{where}/{NAME}"), manifest)
        _ = made.schema  # an artifact with a schema that nobody can read is refused at once
        return made

    def files(self, more: Mapping[str, bytes] = Frozen()) -> dict[str, bytes]:
        """The files of the artifact, with others to keep beside them."""
        files = {WEIGHTS: self.weights.to_bytes(), **more}
        return {NAME: self.manifest.to_bytes(files), **files}

    def save(
        self, path: str | Path, *, more: Mapping[str, bytes] = Frozen(), force: bool = False
    ) -> Path:
        """Write the artifact as a folder, whole or not at all.

        Parameters
        ----------
        path : path
        more : mapping of name to bytes
            Other files to keep in it, such as a report.
        force : bool
            Whether it may take the place of a folder that is there.
        """
        return write_folder(Path(path), self.files(more), force=force)

    @cached_property
    def schema(self) -> Schema | None:
        """How a table becomes rows of X."""
        written = self.manifest.schema
        return None if written is None else Schema.from_toml(written, where="artifact: schema")

    @property
    def private_(self) -> bool:
        """Whether the guarantee promises anything."""
        return self.manifest.guarantee.get("private") is True

    def scores(self, dataset: Dataset, *, mapped: bool = True) -> Scores:
        """Scores of records, with their labels, groups and units.

        Parameters
        ----------
        dataset : Dataset
            Encoded by the artifact's schema.
        mapped : bool
            Whether after the map, or before it.
        """
        place = {label: at for at, label in enumerate(self.manifest.classes)}
        width = dataset.X.shape[1] if dataset.X.ndim == 2 else 0
        if (width, set(dataset.classes)) != (self.n_features_in_, set(place)):
            raise DataError(
                dataset.name,
                f"{self.n_features_in_} features and classes {list(place)}",
                f"{width} and {list(dataset.classes)}"[:200],
                "Load the table through the artifact's schema.",
            )
        # The map may treat classes apart, and knows them in the order of the weights.
        given = Scores.from_logits(logits_of(self.estimator_, dataset.X, len(place)))
        found = self.map_.transform(given) if mapped else given
        return Scores(
            found.values[:, [place[label] for label in dataset.classes]],
            found.kind,
            dataset.classes,
            dataset.y,
            dataset.groups,
            dataset.units,
            dataset.name,
        )

    def fit(self, X: Any, y: Any) -> Self:
        """Refuse: it was fitted by whoever saved it."""
        raise TypeError("Expected nobody to fit a saved classifier. Train a new one instead.")

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> Self:
        return self

    def __repr__(self) -> str:
        k, promise = len(self.classes_), self.manifest.guarantee
        told = f"epsilon {promise.get('epsilon')}" if self.private_ else "not private"
        return f"PrivateClassifier({self.manifest.name!r}: {k} classes, {self.map_!r}, {told})"
