"""Data sets that load by name without a file: scikit-learn's, and two synthetic ones."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import polars as pl

from veracal._types import Array, Frozen
from veracal.data.dataset import Dataset
from veracal.data.encoding import declare_dataset, encode
from veracal.data.row_digests import DIGEST, digests_of_records
from veracal.data.rows import read_only
from veracal.data.schema import Number, Schema, Target, Vector
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


SCHEMAS: Mapping[str, Schema] = Frozen(
    {
        "breast-cancer": Schema(
            {
                **{f"mean {name}": Number(0, high) for name, (high, _) in _CELL.items()},
                **{f"{name} error": Number(0, error) for name, (_, error) in _CELL.items()},
                **{f"worst {name}": Number(0, high) for name, (high, _) in _CELL.items()},
                "diagnosis": Target(("malignant", "benign")),
            },
            size=569,
            name="breast-cancer",
        ),
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


@dataclass(frozen=True, eq=False)
class _Synthetic:
    """Two Gaussians in the plane, one for each class, and the parts drawn from them.

    Each part has its own points, half of each class. If ``pooled``, as many points of both are
    drawn together with an outlier of class 1, if any, and are then divided at random.
    """

    centers: tuple[tuple[float, float], ...]
    covariances: tuple[Any, ...]
    sizes: Mapping[str, int]
    pooled: bool = False
    outlier: tuple[float, float] | None = None

    def draw(self, part: str, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw the points of a part and their classes."""
        sizes = [sum(self.sizes.values())] if self.pooled else list(self.sizes.values())
        draws = []
        for n in sizes:
            pairs = zip(self.centers, self.covariances, strict=True)
            X = np.vstack([rng.multivariate_normal(c, cov, n // 2) for c, cov in pairs])
            draws.append((X, np.repeat([0, 1], n // 2)))
        if not self.pooled:
            return draws[list(self.sizes).index(part)]
        X, y = draws[0]
        if self.outlier is not None:
            X, y = np.vstack([X, [self.outlier]]), np.append(y, 1)
        order, n_train = rng.permutation(len(X)), self.sizes["train"]
        rows = order[:n_train] if part == "train" else order[n_train:]
        return X[rows], y[rows]


_WIDE, _NARROW = ((1, 0.5), (0.5, 1)), ((1, 0.1), (0.1, 1))
# By variant, as printed ("text") and as in the authors' code. Zhang et al. (2022, B.1) print
# centers at distance 3 without a direction; here it is the first axis.
_SYNTHETIC: Mapping[str, Mapping[str, _Synthetic]] = Frozen(
    {
        "synthetic-clipping": {
            "text": _Synthetic(
                ((-1.5, 0), (1.5, 0)), (np.eye(2),) * 2, {"train": 10_000, "test": 10_000}
            ),
            "code": _Synthetic(
                ((0, 1.5), (1.5, 0)),
                (np.eye(2),) * 2,
                {"train": 6_700, "test": 3_300},
                pooled=True,
            ),
        },
        "synthetic-multiplicity": {
            "text": _Synthetic(
                ((1, 1), (-1, -1)), (_WIDE, _NARROW), {"train": 2_000, "test": 20_000}
            ),
            "code": _Synthetic(
                ((1, 1), (-1, -1)),
                (_WIDE, _NARROW),
                {"train": 1_000, "test": 19_001},
                pooled=True,
                outlier=(-3, 2),
            ),
        },
    }
)


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
    """

    name: str
    title: str
    shape: str
    task: str
    license: str
    note: str
    parts: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()

    @property
    def schema(self) -> Schema | None:
        """Declared schema of a table; None for a synthetic set."""
        return SCHEMAS.get(self.name)

    def load(
        self,
        *,
        part: str | None = None,
        variant: str | None = None,
        rng: np.random.Generator | None = None,
        row_digests: bool = False,
    ) -> Dataset:
        """Load or draw the set.

        ``rng`` is for synthetic sets: generators of equal state draw matching parts. By default
        it is a fixed one, since the data are public.
        """
        part, variant = self._choose("part", part), self._choose("variant", variant)
        schema = self.schema
        if schema is None:
            assert part is not None
            assert variant is not None
            rng = np.random.default_rng(0) if rng is None else rng
            X, y = _SYNTHETIC[self.name][variant].draw(part, rng)
            dataset = self.declare(part=part, variant=variant)
            # A synthetic record is its own content.
            digests = digests_of_records(X, y) if row_digests else None
            return replace(dataset, X=X, y=y, row_digests=digests)
        from sklearn import datasets  # slow to import, and only needed here

        bunch = getattr(datasets, f"load_{self.name.replace('-', '_')}")()
        labels = np.asarray(schema.classes)[bunch.target]
        if self.name == "digits":
            frame = pl.DataFrame({"pixel": bunch.data})
        else:
            frame = pl.DataFrame(bunch.data, schema=list(map(str, bunch.feature_names)))
        frame = frame.with_columns(pl.Series(schema.target, labels.tolist()))
        dataset = encode(frame, schema, where=self.name, row_digests=True)  # cheap
        # The table is published and never changes, so a row's position is an immutable slot.
        return dataset._changed(slots=read_only(np.arange(len(dataset))))

    def declare(self, *, part: str | None = None, variant: str | None = None) -> Dataset:
        """Return the published facts as a data set without records."""
        part, variant = self._choose("part", part), self._choose("variant", variant)
        if part is None or variant is None:
            dataset = declare_dataset(SCHEMAS[self.name], where=self.name)
            return dataset._changed(slots=read_only(np.arange(0)))
        return Dataset(
            np.empty((0, 2)),
            np.empty(0, np.int64),
            (0, 1),
            row_digests=np.empty(0, DIGEST),
            feature_names=("x1", "x2"),
            size=_SYNTHETIC[self.name][variant].sizes[part],
            name=f"{self.name} ({variant})",
        )

    def _choose(self, kind: Literal["part", "variant"], value: str | None) -> str | None:
        """Return the requested part or variant, or the default."""
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


_UCI = ("CC BY 4.0, as UCI lists it", "Part of scikit-learn.")
_GAUSSIANS = "which of two Gaussians"
_DRAWN = "none needed: drawn at random"
_CHOICES = (("train", "test"), ("text", "code"))
_ENTRIES = (
    CatalogEntry(
        "breast-cancer", "Breast Cancer Wisconsin", "569 × 30 × 2", "malignant or benign", *_UCI
    ),
    CatalogEntry("digits", "8×8 handwritten digits", "1,797 × 64 × 10", "which digit", *_UCI),
    CatalogEntry("wine", "Italian wines", "178 × 13 × 3", "which cultivar", *_UCI),
    CatalogEntry(
        "synthetic-clipping",
        "two Gaussians, clipping",
        "10,000 + 10,000 × 2 × 2",
        _GAUSSIANS,
        _DRAWN,
        "Zhang et al. 2022, appendix B.1, as their text or their code has it.",
        *_CHOICES,
    ),
    CatalogEntry(
        "synthetic-multiplicity",
        "two Gaussians, multiplicity",
        "2,000 + 20,000 × 2 × 2",
        _GAUSSIANS,
        _DRAWN,
        "Kulynych et al. 2023, Eq. 11, as their text or their code has it.",
        *_CHOICES,
    ),
)
CATALOG: Mapping[str, CatalogEntry] = Frozen({known.name: known for known in _ENTRIES})


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
