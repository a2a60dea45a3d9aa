"""Data sets that need no download: scikit-learn's, and the papers' synthetic ones."""

from collections.abc import Callable, Mapping

import numpy as np
import polars as pl

from veracal import _checks
from veracal._types import Array, Frozen
from veracal.data.columns import Number, Target, Vector
from veracal.data.dataset import Dataset
from veracal.data.encoding import encode, encode_nothing
from veracal.data.labels import frozen
from veracal.data.schema import Schema
from veracal.data.sets.entries import no_records

# Upper bounds are round figures above anything measured in these published sets, which are
# public; lower bounds are 0, since all are lengths, areas, counts or concentrations.
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
    whole = encode(frame, schema, where=name, row_digests=True)  # small: no need to ask
    # Of a published table that never changes, the position of a row is an immutable slot.
    return whole._changed(slots=frozen(np.arange(len(whole))))


def declare_builtin(name: str) -> Dataset:
    """What is published about one of scikit-learn's sets, as a data set without a record."""
    return encode_nothing(SCHEMAS[name], where=name)._changed(slots=frozen(np.arange(0)))


def synthetic_clipping(
    *, variant: str = "text", part: str = "train", rng: np.random.Generator | None = None
) -> Dataset:
    """Two Gaussians that overlap, on which clipping ruins confidence (Zhang et al. 2022, B.1).

    Parameters
    ----------
    variant : 'text' or 'code'
        As printed: 5,000 points a class for training, with centers 3 apart (the direction is
        not given; here along the first axis), and as many again for the test. As in the
        authors' code: 5,000 points a class around (0, 1.5) and (1.5, 0), a third of them set
        aside for the test.
    part : 'train' or 'test'
    rng : Generator, optional
        The same state gives matching parts. By default a fixed one: the data are public.
    """
    _check_choice(variant, part)
    rng = np.random.default_rng(0) if rng is None else rng
    if variant == "text":
        centers = np.array([[-1.5, 0.0], [1.5, 0.0]])
        pools = [_gaussians(centers, [np.eye(2)] * 2, 5_000, rng) for _ in range(2)]
        X, y = pools[part == "test"]
    else:
        X, y = _gaussians(np.array([[0, 1.5], [1.5, 0]]), [np.eye(2)] * 2, 5_000, rng)
        X, y = _deal(X, y, 6_700, part, rng)
    return _plane(X, y, f"synthetic-clipping ({variant})")


def synthetic_multiplicity(
    *, variant: str = "text", part: str = "train", rng: np.random.Generator | None = None
) -> Dataset:
    """Two Gaussians that a line separates well (Kulynych et al. 2023, Eq. 11).

    Parameters
    ----------
    variant : 'text' or 'code'
        As printed: 1,000 points a class for training and 20,000 in all for the test. As in the
        authors' code: 10,000 a class and one outlier at (-3, 2) of class 1, of which 1,000 in
        all are for training and 19,001 for the test.
    part : 'train' or 'test'
    rng : Generator, optional
        The same state gives matching parts. By default a fixed one: the data are public.
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
        X, y = _deal(X, y, 1_000, part, rng)
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
    """What is published about a synthetic set, as a data set without a point."""
    _check_choice(variant, part)
    return no_records(
        (2,),
        np.float64,
        (0, 1),
        feature_names=("x1", "x2"),
        size=_SYNTHETIC_SIZES[name][variant, part],
        name=f"{name} ({variant})",
    )


def _check_choice(variant: str, part: str) -> None:
    """Raise unless both words are known."""
    _checks.one_of(("text", "code"), variant=variant)
    _checks.one_of(("train", "test"), part=part)


def _gaussians(
    centers: Array, spreads: list[Array], n: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draw n points from each of some Gaussians."""
    pairs = zip(centers, spreads, strict=True)
    X = np.vstack([rng.multivariate_normal(center, spread, n) for center, spread in pairs])
    return X, np.repeat(np.arange(len(centers)), n)


def _deal(
    X: Array, y: Array, n_train: int, part: str, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Set aside the first n_train of shuffled points for training, the rest for the test."""
    order = rng.permutation(len(X))
    chosen = order[:n_train] if part == "train" else order[n_train:]
    return X[chosen], y[chosen]


def _plane(X: Array, y: Array, name: str) -> Dataset:
    """Points of the plane in two classes; their number is public, so it is declared."""
    return Dataset(X, y, (0, 1), feature_names=("x1", "x2"), size=len(X), name=name)
