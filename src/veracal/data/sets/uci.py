"""The four UCI tables of Kulynych et al. (2023), as their Table 1 counts them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from veracal import _checks
from veracal._types import Frozen
from veracal.data.columns import Category, Column, Number, Target
from veracal.data.dataset import Dataset
from veracal.data.encode import encode_nothing
from veracal.data.limits import DEFAULT_LIMITS, Limits
from veracal.data.loading import load
from veracal.data.schema import Grouping, Schema

VARIANTS = ("plain", "text", "code")


def _table(
    name: str,
    columns: Mapping[str, Column],
    size: int,
    ages: tuple[str, list[float]] | None = None,
) -> Schema:
    """Schema of a UCI file: no header, '?' for missing values, rows that have any dropped."""
    groups = {"age": Grouping(ages[0], ages[1])} if ages else {}
    return Schema(columns, groups=groups, missing=("?",), size=size, header=False, name=name)


def _number(lower: float, upper: float) -> Number:
    return Number(lower, upper, missing="drop")


def _category(values: str) -> Category:
    return Category(values.split(), missing="drop")


# The file's names are anonymous. UCI also lists a value 't' of A4, which nobody has; Table 1
# counts 46 columns without it.
_CREDIT = _table(
    "credit",
    {
        "A1": _category("b a"),
        "A2": _number(0, 100),
        "A3": _number(0, 30),
        "A4": _category("u y l"),
        "A5": _category("g p gg"),
        "A6": _category("c d cc i j k m r q w x e aa ff"),
        "A7": _category("v h bb j n z dd ff o"),
        "A8": _number(0, 30),
        "A9": _category("t f"),
        "A10": _category("t f"),
        "A11": _number(0, 70),
        "A12": _category("t f"),
        "A13": _category("g p s"),
        "A14": _number(0, 2_000),
        "A15": _number(0, 100_000),
        "A16": Target(("-", "+")),
    },
    size=653,
)
_CONTRACEPTION = _table(
    "contraception",
    {
        "wife_age": _number(16, 50),
        "wife_education": _number(1, 4),
        "husband_education": _number(1, 4),
        "children": _number(0, 20),
        "wife_religion": _number(0, 1),
        "wife_working": _number(0, 1),
        "husband_occupation": _number(1, 4),
        "living_standard": _number(1, 4),
        "media_exposure": _number(0, 1),
        "method": Target((1, 2, 3)),
    },
    size=1473,
    ages=("wife_age", [16, 30, 40, 50]),
)
_MAMMOGRAPHY = _table(
    "mammography",
    {
        "bi_rads": _number(0, 6),
        "age": _number(0, 120),
        "shape": _number(1, 4),
        "margin": _number(1, 5),
        "density": _number(1, 4),
        "severity": Target((0, 1)),
    },
    size=830,
)
_SIGNS = (  # in the order of the file
    "erythema scaling definite_borders itching koebner_phenomenon polygonal_papules "
    "follicular_papules oral_mucosal_involvement knee_and_elbow_involvement scalp_involvement "
    "family_history melanin_incontinence eosinophils_in_infiltrate pnl_infiltrate "
    "fibrosis_of_papillary_dermis exocytosis acanthosis hyperkeratosis parakeratosis clubbing "
    "elongation thinning spongiform_pustule munro_microabcess focal_hypergranulosis "
    "no_granular_layer vacuolisation spongiosis saw_tooth_retes follicular_horn_plug "
    "perifollicular_parakeratosis mononuclear_infiltrate band_like_infiltrate"
)
_DERMATOLOGY = _table(
    "dermatology",
    {
        **{sign: _number(0, 1 if sign == "family_history" else 3) for sign in _SIGNS.split()},
        "age": _number(0, 120),
        "disease": Target((1, 2, 3, 4, 5, 6)),
    },
    size=358,
)

SCHEMAS: Mapping[str, Schema] = Frozen(
    {schema.name: schema for schema in (_CREDIT, _CONTRACEPTION, _MAMMOGRAPHY, _DERMATOLOGY)}
)
_CLASSES = {
    "credit": ("rejected", "approved"),
    "contraception": ("none", "long-term", "short-term"),
    "mammography": ("benign", "malignant"),
    "dermatology": (
        "psoriasis",
        "seboreic dermatitis",
        "lichen planus",
        "pityriasis rosea",
        "chronic dermatitis",
        "pityriasis rubra pilaris",
    ),
}
# What the paper's text names as the positive class, and what its published code takes.
_POSITIVE = {
    "credit": {"text": "approved", "code": "approved"},
    "contraception": {"text": "long-term", "code": "none"},
    "mammography": {"text": "malignant", "code": "malignant"},
    "dermatology": {"text": "seboreic dermatitis", "code": "psoriasis"},
}


def load_uci(
    name: str,
    path: str | Path,
    *,
    variant: str = "plain",
    limits: Limits = DEFAULT_LIMITS,
    row_digests: bool = False,
) -> Dataset:
    """Load one of the four tables from its file.

    Parameters
    ----------
    name : 'credit', 'contraception', 'mammography' or 'dermatology'
    path : path
        The headerless CSV file.
    variant : 'plain', 'text' or 'code'
        Plain: all classes, numbers scaled by declared bounds. The others are the paper's
        binary tasks: one class against the rest, as its text or its code chooses it, with
        numbers standardized over the whole table.

    Notes
    -----
    Standardizing reads every row, the later test rows included, so 'text' and 'code' serve to
    reproduce published figures and never a private release.
    """
    _checks.one_of(SCHEMAS, name=name)
    _checks.one_of(VARIANTS, variant=variant)
    dataset = load(Path(path), schema=SCHEMAS[name], limits=limits, row_digests=row_digests)
    return _in_variant(dataset, name, variant)


def declare_uci(name: str, *, variant: str = "plain") -> Dataset:
    """What is published about one of the four tables, as a data set without a row."""
    return _in_variant(encode_nothing(SCHEMAS[name], where=name), name, variant)


def _in_variant(dataset: Dataset, name: str, variant: str) -> Dataset:
    """The table with its classes, as it is or as the paper has it."""
    # The number of rows after dropping is published, so these may also serve replace-one.
    dataset = dataset._changed(classes=_CLASSES[name], may_drop=False)
    return dataset if variant == "plain" else _as_published(dataset, name, variant)


def _as_published(dataset: Dataset, name: str, variant: str) -> Dataset:
    """One class against the rest, and numbers of mean 0 and variance 1."""
    positive = _POSITIVE[name][variant]
    X = np.array(dataset.X)
    columns = zip(SCHEMAS[name].feature_names, X.T, strict=True)
    for number in (values for feature, values in columns if "=" not in feature and len(X)):
        number[:] = (number - number.mean()) / number.std()
    return Dataset(
        X,
        (dataset.y == _CLASSES[name].index(positive)).astype(np.int64),
        ("other", positive),
        groups=dataset.groups,
        feature_names=dataset.feature_names,
        size=dataset.size,
        row_digests=dataset.row_digests,
        encoded=True,
        name=f"{name} ({variant})",
    )
