"""Data sets that load by name without a file: scikit-learn's, and two synthetic ones."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from veracal import _checks
from veracal._types import Array, Frozen
from veracal.data.columns import Number, Target, Vector
from veracal.data.dataset import Dataset, Group
from veracal.data.encoding import declare_dataset, encode
from veracal.data.labels import TEXT, Label, read_only
from veracal.data.row_digests import DIGEST, digests_of_records
from veracal.data.schema import Schema
from veracal.errors import DataError

# Upper bounds are round numbers above all measurements in these published sets. Lower bounds
# are 0, since all columns are lengths, areas, counts or concentrations.
_CELL = {
    "radius": (40, 4),
    "texture": (60, 6),
    "perimeter": (300, 30),
    "area": (5000, 600),
    "smoothness": (0.3, 0.05),
    "compactness": (1.5, 0.2),
    "concavity": (1.5, 0.5),
    "concave points": (0.4, 0.1),
    "symmetry": (0.8, 0.1),
    "fractal dimension": (0.3, 0.05),
}
_WINE = {
    "alcohol": 20,
    "malic_acid": 8,
    "ash": 5,
    "alcalinity_of_ash": 40,
    "magnesium": 200,
    "total_phenols": 5,
    "flavanoids": 6,
    "nonflavanoid_phenols": 1,
    "proanthocyanins": 5,
    "color_intensity": 15,
    "hue": 2,
    "od280/od315_of_diluted_wines": 5,
    "proline": 2000,
}


def _breast_cancer_schema() -> Schema:
    """Thirty measurements of cell nuclei: mean, error and worst of ten quantities."""
    columns = {f"mean {name}": Number(0, high) for name, (high, _) in _CELL.items()}
    columns |= {f"{name} error": Number(0, error) for name, (_, error) in _CELL.items()}
    columns |= {f"worst {name}": Number(0, high) for name, (high, _) in _CELL.items()}
    target = Target(("malignant", "benign"))
    return Schema({**columns, "diagnosis": target}, size=569, name="breast-cancer")


SCHEMAS: Mapping[str, Schema] = Frozen(
    {
        "breast-cancer": _breast_cancer_schema(),
        "wine": Schema(
            {
                **{name: Number(0, high) for name, high in _WINE.items()},
                "cultivar": Target(("class_0", "class_1", "class_2")),
            },
            size=178,
            name="wine",
        ),
        "digits": Schema(
            {"pixel": Vector(64, 0, 16), "digit": Target(tuple(range(10)))},
            size=1797,
            name="digits",
        ),
    }
)


def load_builtin(name: str) -> Dataset:
    """Load one of scikit-learn's small sets through its schema."""
    from sklearn import datasets  # slow to import, and only needed here

    schema = SCHEMAS[name]
    bunch = getattr(datasets, f"load_{name.replace('-', '_')}")()
    labels = np.asarray(schema.classes)[bunch.target]
    if name == "digits":
        frame = pl.DataFrame({"pixel": bunch.data, schema.target: labels})
    else:
        names = [str(feature) for feature in bunch.feature_names]
        frame = pl.DataFrame(bunch.data, schema=names).with_columns(
            pl.Series(schema.target, labels.tolist())
        )
    dataset = encode(frame, schema, where=name, row_digests=True)  # cheap for small tables
    # The table is published and never changes, so a row's position is an immutable slot.
    return dataset._changed(slots=read_only(np.arange(len(dataset))))


def empty_dataset(
    row: tuple[int, ...],
    dtype: Any,
    classes: Sequence[Label],
    *,
    groups: Mapping[str, Sequence[Label]] | None = None,
    units: bool = False,
    **declared: Any,
) -> Dataset:
    """Return a data set without records that carries declared facts.

    Parameters
    ----------
    row : tuple of int
        Shape of one record.
    dtype : dtype
        Type of the entries of a record.
    classes : sequence of str or int
    groups : mapping of str to sequence of values, optional
    units : bool
        Whether records carry unit ids.
    **declared
        Further fields of :class:`~veracal.data.Dataset`.
    """
    none = np.empty(0, np.int64)
    return Dataset(
        np.empty((0, *row), dtype),
        none,
        tuple(classes),
        groups={g: Group(none, tuple(map(str, names))) for g, names in (groups or {}).items()},
        units=np.empty(0, TEXT) if units else None,
        row_digests=np.empty(0, DIGEST),
        **declared,
    )


def declare_builtin(name: str) -> Dataset:
    """Declare one of scikit-learn's sets: its published facts, without records."""
    return declare_dataset(SCHEMAS[name], where=name)._changed(slots=read_only(np.arange(0)))


def synthetic_clipping(
    *, variant: str = "text", part: str = "train", rng: np.random.Generator | None = None
) -> Dataset:
    """Two Gaussians that overlap, on which clipping ruins confidence (Zhang et al. 2022, B.1).

    Parameters
    ----------
    variant : 'text' or 'code'
        As printed: 5,000 points a class for training, with centers at distance 3 (the
        direction is not stated; here along the first axis), and as many for the test. As in
        the authors' code: 5,000 points a class around (0, 1.5) and (1.5, 0), a third of them
        for the test.
    part : 'train' or 'test'
    rng : Generator, optional
        Generators of equal state draw matching parts. By default a fixed one, since the data
        are public.
    """
    _check_choice(variant, part)
    rng = np.random.default_rng(0) if rng is None else rng
    if variant == "text":
        centers = np.array([[-1.5, 0.0], [1.5, 0.0]])
        pools = [_gaussians(centers, [np.eye(2)] * 2, 5_000, rng) for _ in range(2)]
        X, y = pools[part == "test"]
    else:
        X, y = _gaussians(np.array([[0, 1.5], [1.5, 0]]), [np.eye(2)] * 2, 5_000, rng)
        X, y = _partition(X, y, 6_700, part, rng)
    return _plane(X, y, f"synthetic-clipping ({variant})")


def synthetic_multiplicity(
    *, variant: str = "text", part: str = "train", rng: np.random.Generator | None = None
) -> Dataset:
    """Two Gaussians that a line separates well (Kulynych et al. 2023, Eq. 11).

    Parameters
    ----------
    variant : 'text' or 'code'
        As printed: 1,000 points a class for training and 20,000 in all for the test. As in the
        authors' code: 10,000 a class and one outlier at (-3, 2) of class 1, in all 1,000 for
        training and 19,001 for the test.
    part : 'train' or 'test'
    rng : Generator, optional
        Generators of equal state draw matching parts. By default a fixed one, since the data
        are public.
    """
    _check_choice(variant, part)
    rng = np.random.default_rng(0) if rng is None else rng
    centers = np.array([[1.0, 1.0], [-1.0, -1.0]])
    spreads = [np.array([[1, 0.5], [0.5, 1]]), np.array([[1, 0.1], [0.1, 1]])]
    if variant == "text":
        pools = [_gaussians(centers, spreads, n, rng) for n in (1_000, 10_000)]
        X, y = pools[part == "test"]
    else:
        X, y = _gaussians(centers, spreads, 10_000, rng)
        X, y = np.vstack([X, [[-3.0, 2.0]]]), np.append(y, 1)
        X, y = _partition(X, y, 1_000, part, rng)
    return _plane(X, y, f"synthetic-multiplicity ({variant})")


SYNTHETIC: Mapping[str, Callable[..., Dataset]] = Frozen(
    {
        "synthetic-clipping": synthetic_clipping,
        "synthetic-multiplicity": synthetic_multiplicity,
    }
)


# Points by variant and part.
_SYNTHETIC_SIZES: Mapping[str, Mapping[tuple[str, str], int]] = Frozen(
    {
        "synthetic-clipping": {
            ("text", "train"): 10_000,
            ("text", "test"): 10_000,
            ("code", "train"): 6_700,
            ("code", "test"): 3_300,
        },
        "synthetic-multiplicity": {
            ("text", "train"): 2_000,
            ("text", "test"): 20_000,
            ("code", "train"): 1_000,
            ("code", "test"): 19_001,
        },
    }
)


def declare_synthetic(name: str, *, variant: str, part: str) -> Dataset:
    """Declare a synthetic set: its published facts, without points."""
    _check_choice(variant, part)
    return empty_dataset(
        (2,),
        np.float64,
        (0, 1),
        feature_names=("x1", "x2"),
        size=_SYNTHETIC_SIZES[name][variant, part],
        name=f"{name} ({variant})",
    )


def _check_choice(variant: str, part: str) -> None:
    """Raise unless both choices exist."""
    _checks.one_of(("text", "code"), variant=variant)
    _checks.one_of(("train", "test"), part=part)


def _gaussians(
    centers: Array, spreads: list[Array], n: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draw n points from each Gaussian; the class is its index."""
    pairs = zip(centers, spreads, strict=True)
    X = np.vstack([rng.multivariate_normal(center, spread, n) for center, spread in pairs])
    return X, np.repeat(np.arange(len(centers)), n)


def _partition(
    X: Array, y: Array, n_train: int, part: str, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Shuffle the points; the first n_train are for training, the rest for the test."""
    order = rng.permutation(len(X))
    rows = order[:n_train] if part == "train" else order[n_train:]
    return X[rows], y[rows]


def _plane(X: Array, y: Array, name: str) -> Dataset:
    """Points of the plane in two classes. Their number is public, so it is declared."""
    return Dataset(X, y, (0, 1), feature_names=("x1", "x2"), size=len(X), name=name)


@dataclass(frozen=True)
class CatalogEntry:
    """A built-in data set.

    Attributes
    ----------
    name, title : str
        Name to load it by, and a short description.
    shape : str
        Records × features × classes, as text.
    task : str
        What is to be predicted.
    license : str
        Terms of the data.
    parts, variants : tuple of str
        Partitions and versions that can be requested, the default first.
    note : str
        Source, and what a careful user should know.
    schema : Schema or None
        Declared schema of a table; None for a synthetic set.
    """

    name: str
    title: str
    shape: str
    task: str
    license: str
    note: str
    parts: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    schema: Schema | None = None

    def load(
        self,
        *,
        part: str | None = None,
        variant: str | None = None,
        rng: np.random.Generator | None = None,
        row_digests: bool = False,
    ) -> Dataset:
        """Load or draw the set; ``rng`` is for synthetic sets."""
        part, variant = self._choose(part=part), self._choose(variant=variant)
        if self.schema is not None:
            return load_builtin(self.name)
        dataset = SYNTHETIC[self.name](variant=variant, part=part, rng=rng)
        if row_digests:  # a synthetic record is its own content
            dataset = dataset._changed(row_digests=digests_of_records(dataset.X, dataset.y))
        return dataset

    def declare(self, *, part: str | None = None, variant: str | None = None) -> Dataset:
        """Return the published facts as a data set without records."""
        part, variant = self._choose(part=part), self._choose(variant=variant)
        if part is None or variant is None:
            return declare_builtin(self.name)
        return declare_synthetic(self.name, variant=variant, part=part)

    def _choose(self, **choice: str | None) -> str | None:
        """Return the requested part or variant, or the default."""
        ((kind, value),) = choice.items()
        known = self.parts if kind == "part" else self.variants
        if value is None:
            return known[0] if known else None
        if value not in known:
            raise DataError(
                f"{self.name}: {kind}",
                "one of " + ", ".join(map(repr, known)) if known else f"no {kind}",
                repr(value),
                f"Leave it out to get {known[0]!r}." if known else "Leave it out.",
            )
        return value


def _sklearn_entry(name: str, title: str, shape: str, task: str) -> CatalogEntry:
    """Entry of a set inside scikit-learn."""
    license_, note = "CC BY 4.0, as UCI lists it", "Part of scikit-learn."
    return CatalogEntry(name, title, shape, task, license_, note, schema=SCHEMAS[name])


def _synthetic_entry(name: str, title: str, shape: str, note: str) -> CatalogEntry:
    """Entry of a synthetic set."""
    task, license_ = "which of two Gaussians", "none needed: drawn at random"
    return CatalogEntry(
        name, title, shape, task, license_, note, ("train", "test"), ("text", "code")
    )


CATALOG: Mapping[str, CatalogEntry] = Frozen(
    {
        known.name: known
        for known in (
            _sklearn_entry(
                "breast-cancer",
                "Breast Cancer Wisconsin",
                "569 × 30 × 2",
                "malignant or benign",
            ),
            _sklearn_entry(
                "digits", "8×8 handwritten digits", "1,797 × 64 × 10", "which digit"
            ),
            _sklearn_entry("wine", "Italian wines", "178 × 13 × 3", "which cultivar"),
            _synthetic_entry(
                "synthetic-clipping",
                "two Gaussians, clipping",
                "10,000 + 10,000 × 2 × 2",
                "Zhang et al. 2022, appendix B.1, as their text or their code has it.",
            ),
            _synthetic_entry(
                "synthetic-multiplicity",
                "two Gaussians, multiplicity",
                "2,000 + 20,000 × 2 × 2",
                "Kulynych et al. 2023, Eq. 11, as their text or their code has it.",
            ),
        )
    }
)


def entry(name: str) -> CatalogEntry:
    """Look up a built-in data set.

    Raises
    ------
    DataError
        If there is no set of that name; the message lists similar names.

    Examples
    --------
    >>> entry("breast-cancer").task
    'malignant or benign'
    """
    if name not in CATALOG:
        similar = difflib.get_close_matches(name, CATALOG, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(similar)}? " if similar else ""
        raise DataError(
            "data set",
            "the name of a built-in set, or the path of a file",
            repr(name),
            f"{hint}`veracal data list` shows all names.",
        )
    return CATALOG[name]
