r"""Where a map of calibration puts the decision.

Before a map, two classes are told apart by whether the logit z of the second is above 0. After
it that is another number c, or the same, or no single one.

The frozen network that pictures and texts go through before a classifier sees them.

A classifier that was trained, repaired, saved, and can be asked again.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import validate_data

from veracal._types import Array, Floats, Frozen, Progress
from veracal.artifact.noise_model import NoiseModel, no_noise
from veracal.artifact.storage import (
    NAME,
    Manifest,
    check_listed,
    parse_manifest,
    read_listed,
    read_manifest,
    write_folder,
)
from veracal.artifact.weights import (
    WEIGHTS,
    LinearWeights,
    Weights,
    read_weights,
    weights_of,
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
    from_json,
)
from veracal.data import Dataset, Kind, MappedRows, Schema, Scores, logits_of
from veracal.errors import DataError
from veracal.training import Arbitrariness

if TYPE_CHECKING:
    from veracal.neural import EfficientNetLite0, MiniLM, MiniLMTokens

    Extractors = EfficientNetLite0 | MiniLM | MiniLMTokens

_FAR = 800.0  # logits beyond have probabilities that are 0 and 1, for all that float64 can say


def decision_threshold(map_: CalibrationMap, classes: int) -> float:
    """The logit that decides between two classes after a map; 0 where no decision changes.

    Parameters
    ----------
    map_ : Map
        Of logits.
    classes : int

    Returns
    -------
    float
        Infinite where the map decides for one class, whatever the logit. More than two classes
        have no threshold, and 0 says that the largest logit stays the largest.

    Raises
    ------
    DataError
        If the map may change decisions in another way.

    Notes
    -----
    *Temperature*, *two temperatures* and *doubt* change no prediction, by their guarantee.
    *Top-label* maps keep it if every confidence of 1 / K or more becomes one above 1 / K. Of
    two classes, a *Platt* map compares :math:`az + b` with 0; *beta* maps and *one-vs-rest*
    curves do not fall, so that there is one place where they cross one half, which is found
    to the last bit.

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
            (start,), (end,) = (np.diff(_logits(map_, z)) for z in (0.0, 1.0))
            slope = float(end - start)
            return -float(start) / slope if slope else math.inf
        if map_.form == "scalar" and map_.weights > 0 and not np.ptp(map_.bias):
            return 0.0
    rises = isinstance(map_, Beta) or (isinstance(map_, Isotonic) and map_.form != "top-label")
    if classes == 2 and rises:
        return _crossing(map_)
    raise DataError(
        "arbitrariness",
        "a map that keeps decisions, or moves one threshold between two classes",
        f"a {map_.kind} map of {classes} classes, which may change them otherwise",
        "Ask for it without a map, or run 'veracal audit'.",
    )


def _logits(map_: Platt, logit: float) -> Floats:
    """What the map makes of a logit of the second of two classes."""
    given = np.array([0.0, logit])
    weights = np.asarray(map_.weights)
    found: Floats = (weights @ given if weights.ndim == 2 else weights * given) + map_.bias
    return found


def _keeps_top(map_: CalibrationMap, classes: int) -> bool:
    """Whether a map of the confidence gives every predicted class more than an equal share."""
    share = 1 / classes
    if isinstance(map_, Binned):
        # Ties have a share exactly; no run gets there, and they may be in the bin before.
        first = int(map_.bins.of(np.array([np.nextafter(share, 1.0)]))[0])
        return bool((map_.accuracies[first:] > share).all())
    if isinstance(map_, Isotonic) and map_.form == "top-label":
        return bool(np.interp(share, map_.inputs[0], map_.outputs[0]) > share)
    return False


def _crossing(map_: CalibrationMap) -> float:
    """The largest logit at which a map that does not fall decides for the first class."""

    def second(logit: float) -> bool:
        scores = map_.transform(Scores.from_logits(np.array([[0.0, logit]])))
        return bool(scores.predictions[0] == 1)

    low, high = -_FAR, _FAR
    if second(low) or not second(high):
        return math.inf  # one class, for everybody
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if second(middle) else (middle, high)
    return low


def _known_extractors() -> "Mapping[str, type[Extractors]]":
    """The frozen networks by name. They need the torch extra."""
    from veracal.neural import EfficientNetLite0, MiniLM, MiniLMTokens

    return {one.name: one for one in (EfficientNetLite0, MiniLM, MiniLMTokens)}


@dataclass(frozen=True, eq=False)
class FrozenEncoder:
    """A frozen network of published weights, by its name and settings.

    Attributes
    ----------
    extractor : EfficientNetLite0, MiniLM or MiniLMTokens
    weights : str
        SHA-256 of the weights it had when the classifier was trained.
    """

    extractor: "Extractors"
    weights: str

    @classmethod
    def of(cls, extractor: "Extractors") -> "FrozenEncoder":
        """The network as it is installed here."""
        return cls(extractor, str(extractor.fingerprint()["weights"]))

    def to_json(self) -> dict[str, Any]:
        """Name, settings and hash, as what JSON can hold."""
        settings = asdict(self.extractor)
        return {"name": self.extractor.name, "settings": settings, "weights": self.weights}

    @classmethod
    def from_json(cls, written: Any, where: str) -> "FrozenEncoder":
        """Read what a stranger may have written; nothing is loaded yet.

        Raises
        ------
        DataError
            For a network that is not known, or settings that it does not have.
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
                f"one of the frozen networks {', '.join(known)}, with its settings",
                repr(written)[:80],
                "Update Veracal.",
            ) from cause

    def takes(self, X: Array | MappedRows) -> bool:
        """Whether these are records to be turned into features, and not features already."""
        return not (X.ndim == 2 and X.dtype.kind == "f" and X.shape[1] == self.dimension)

    @property
    def dimension(self) -> int:
        """Numbers in one feature."""
        return self.extractor.dimension

    def dataset(self, dataset: Dataset, progress: Progress | None = None) -> Dataset:
        """Features of a data set, kept in the cache."""
        from veracal.neural import extract

        self._check_weights()
        return extract(dataset, self.extractor, progress=progress)

    def declare(self, dataset: Dataset) -> Dataset:
        """What is known of the features of a data set without records: their form and norm."""
        self.extractor.check(dataset.X, dataset.name)
        form = np.empty((0, self.dimension), np.float32)
        return replace(
            dataset, X=form, feature_names=(), norm=self.extractor.norm, encoded=True
        )

    def rows(self, X: Any) -> Array | MappedRows:
        """Features of rows, or rows that are features already, as they are.

        Parameters
        ----------
        X : array
            Pictures as bytes, or texts of shape (n, 1), or (n, 2) for pairs.
        """
        given: Any = X if isinstance(X, MappedRows) else np.asarray(X)
        if given.dtype.kind in "UO":
            given = np.asarray(given, dtype=np.dtypes.StringDType())
        if not self.takes(given):
            rows: Array | MappedRows = given
            return rows
        self.extractor.check(given, "rows")
        features = np.empty((len(given), self.dimension), np.float32)
        score = self._scorer(given.shape[1:])
        for start in range(0, len(given), self.extractor.block):
            part = slice(start, start + self.extractor.block)
            features[part] = score(given[part])
        return features

    def _scorer(self, record: tuple[int, ...]) -> Any:
        """The network, loaded once for rows of a shape."""
        if record not in self._scorers:
            self._check_weights()
            self._scorers[record] = self.extractor.scorer(record)
        return self._scorers[record]

    @cached_property
    def _scorers(self) -> dict[tuple[int, ...], Any]:
        return {}

    def _check_weights(self) -> None:
        """Refuse other weights than those the classifier was trained behind."""
        found = str(self.extractor.fingerprint()["weights"])
        if found != self.weights:
            raise DataError(
                self.extractor.name,
                f"the weights that the classifier was trained behind, {self.weights[:12]}…",
                f"{found[:12]}…",
                "Install the version of the network's package that its maker had.",
            )


_NONE = object()  # not there, unlike null


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
    noise : KeptNoise or None
        The law of the noise on the weights, if it is known.

    Guarantees
    ----------
    Loading runs no code of the artifact's: weights are safetensors of known names, shapes
    and sizes, everything else is strict JSON. Every byte of both is compared with a hash. That
    shows accidents and careless changes; whoever can write to the folder can also write
    hashes, so compare that of ``model.json`` with one that came another way.
    """

    def __init__(self, weights: Weights, map_: CalibrationMap, manifest: Manifest) -> None:
        self.weights, self.map, self.manifest = weights, map_, manifest
        self.estimator_, self.map_ = weights, map_
        self.classes_ = np.array(manifest.classes)
        self.n_features_in_ = weights.row[0]
        gives = map_.transform(Scores.from_logits(np.zeros((1, len(manifest.classes)))))
        self.gives_: Kind = gives.kind

    @classmethod
    def of(
        cls,
        model: Any,
        *,
        schema: Schema | None = None,
        name: str = "model",
        front: FrozenEncoder | None = None,
    ) -> Self:
        """Take what predictions need from a fitted model.

        Parameters
        ----------
        model : LinearClassifier, PrivateNetwork or PrivateCalibratedClassifier of one
        schema : Schema, optional
            How the table was encoded.
        name : str
        front : Front, optional
            The frozen network whose features it was trained on.
        """
        inner, map_ = getattr(model, "estimator_", model), getattr(model, "map_", Identity())
        weights, stated = weights_of(inner), model.statement_
        about = weights.to_json()
        if (noise := NoiseModel.of(inner, model)) is not None:
            about["noise"] = noise.to_json()
        if front is not None:
            about["front"] = front.to_json()
        manifest = Manifest(
            name=name,
            classes=tuple(np.asarray(model.classes_).tolist()),
            features=math.prod(weights.row),
            feature_names=() if schema is None else schema.feature_names,
            schema=None if schema is None else schema.to_toml(),
            model=about,
            map=map_.to_json(),
            guarantee={
                **stated.to_json(),
                "private": bool(model.private_),
                "text": stated.text(),
            },
        )
        return cls(weights, map_, manifest)

    @classmethod
    def load(cls, path: str | Path, *, module: Any = None, prepare: Any = None) -> Self:
        """Read an artifact that anybody may have made.

        Parameters
        ----------
        path : path
        module : torch.nn.Module, optional
            The network, where the artifact holds weights of a module of your own: its code is
            not in the artifact. It is copied.
        prepare : callable, optional
            What turns rows into its inputs, where that was a function of your own.

        Raises
        ------
        DataError
            If it is not one, if something is missing, was changed or cut off, or if a newer
            version of Veracal made it.
        """
        folder = Path(path)
        manifest, files = read_manifest(folder)
        content = read_listed(folder, WEIGHTS, files, weights_size(manifest, str(folder)))
        return cls._read(manifest, content, str(folder), module=module, prepare=prepare)

    @classmethod
    def from_files(
        cls, files: Mapping[str, bytes], where: str, *, module: Any = None, prepare: Any = None
    ) -> Self:
        """Make one of files that are kept elsewhere than in a folder."""
        manifest, listed = parse_manifest(files[NAME], where)
        content = check_listed(files[WEIGHTS], WEIGHTS, listed, where)
        return cls._read(manifest, content, where, module=module, prepare=prepare)

    @classmethod
    def _read(cls, manifest: Manifest, content: bytes, where: str, **own: Any) -> Self:
        """Make one of its description and its weights."""
        weights = read_weights(manifest, content, where, **own)
        made = cls(weights, from_json(manifest.map, f"{where}/{NAME}"), manifest)
        # An artifact with a schema, noise or front that nobody can read is refused at once.
        _ = made.schema, made.noise, made.front
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

    @cached_property
    def noise(self) -> NoiseModel | None:
        """The law of the noise on the weights, if it is known."""
        written = self.manifest.model.get("noise", _NONE)
        if written is _NONE:
            return None
        where = f"{self.manifest.name}: noise"
        if not isinstance(self.weights, LinearWeights):
            raise DataError(where, "no noise of a network", "some", "Do not trust it.")
        found = NoiseModel.from_json(written, self.weights, where)
        if not self.private_:
            raise DataError(
                f"{self.manifest.name}: noise",
                "no noise in a classifier that is not private",
                "some",
                "Get the artifact again from whoever made it.",
            )
        return found

    @cached_property
    def front(self) -> FrozenEncoder | None:
        """The frozen network that pictures or texts go through first, if there is one."""
        written = self.manifest.model.get("front", _NONE)
        if written is _NONE:
            return None
        found = FrozenEncoder.from_json(written, f"{self.manifest.name}: front")
        if self.weights.row != (found.dimension,):
            raise DataError(
                f"{self.manifest.name}: front",
                f"a classifier of {found.dimension} features behind {found.extractor.name}",
                f"one for rows of shape {self.weights.row}",
                "Get the artifact again from whoever made it.",
            )
        return found

    def _mapped(self, X: Any) -> Scores:
        return super()._mapped(X if self.front is None else self.front.rows(X))

    @property
    def private_(self) -> bool:
        """Whether the guarantee promises anything."""
        return self.manifest.guarantee.get("private") is True

    def scores(self, dataset: Dataset, *, mapped: bool = True) -> Scores:
        """Scores of records, with their labels, groups and units.

        Parameters
        ----------
        dataset : Dataset
            Encoded by the artifact's schema; or pictures or texts, where a frozen network is
            to turn them into features first.
        mapped : bool
            Whether after the map, or before it.
        """
        place = {label: at for at, label in enumerate(self.manifest.classes)}
        if self.front is not None and self.front.takes(dataset.X):
            dataset = self.front.dataset(dataset)
        found, row = dataset.X.shape[1:], self.weights.row
        if (found, set(dataset.classes)) != (row, set(place)):
            raise DataError(
                dataset.name,
                f"{_form(row)} and classes {list(place)}",
                f"{_form(found)} and {list(dataset.classes)}"[:200],
                "Load the table through the artifact's schema.",
            )
        # The map may treat classes apart, and knows them in the order of the weights.
        given = Scores.from_logits(logits_of(self.estimator_, dataset.X, len(place)))
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
        self, X: Any, *, level: float = 0.95, people: int | None = None
    ) -> Arbitrariness:
        """How much of each person's decision is the luck of the noise, from the model alone.

        Parameters
        ----------
        X : array of shape (n, features)
        level : float in (0, 1)
            Of the intervals.
        people : int or None
            Of how many, named before the model was released, the intervals hold together.
            None: of everybody at once, whoever asks and whenever.

        Raises
        ------
        DataError
            If the artifact keeps no law of noise (models that were trained by noisy steps, and
            those that are not private, have none that could be used), or if its map changes
            decisions otherwise than by a threshold between two classes.

        Guarantees
        ----------
        Post-processing of what was released: it costs nothing, and tells nothing new of the
        records. What the intervals promise is stated by
        :func:`~veracal.training.weight_noise.output_arbitrariness` and
        :func:`~veracal.training.arbitrariness.objective_certificate`.
        The map counts as released: another run would fit another one.
        """
        noise = self.noise
        if noise is None:
            raise no_noise(self.manifest.name, self.weights.one_vs_rest, private=self.private_)
        assert isinstance(self.weights, LinearWeights)
        threshold = decision_threshold(self.map_, len(self.classes_))
        rows = X[0 : len(X)] if isinstance(X, MappedRows) else X
        rows = validate_data(
            self, rows, dtype=[np.float64, np.float32], reset=False, ensure_min_samples=0
        )
        return noise.told(self.weights, rows, level=level, people=people, threshold=threshold)

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


def _form(row: tuple[int, ...]) -> str:
    """Rows in words."""
    return f"{row[0]} features" if len(row) == 1 else f"rows of shape {row}"
