"""What a look at the records tells of a file's columns."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from veracal._types import Progress
from veracal.data.limits import Limits, opened
from veracal.data.readers.csv_tables import table_columns
from veracal.data.readers.formats import read_table
from veracal.data.readers.tables import is_known
from veracal.errors import DataError

MOST_VALUES = 40  # a column with more different values is not proposed as a category
_MARKS = ("", "?", "NA", "N/A", "n/a", "nan", "NaN", "null", "NULL", "None", ".", "-")
_MOST_ODD = 3  # a column of numbers with more other spellings is not one of numbers
_LONGEST_MARK = 30
_MOSTLY = 0.8
_SEPARATORS = {".csv": ",", ".tsv": "\t"}


@dataclass
class Profile:
    """What was seen of one column so far.

    Attributes
    ----------
    values : set of str, or None
        Different values; None if they are too many for a category.
    marks : set of str
        Spellings that usually stand for a missing value.
    odd : set of str, or None
        Values that are no finite number; None if they are too many.
    present, numbers : int
        Records with a value, and with a number.
    whole : bool
        Whether all numbers are.
    low, high : float
        The least and the largest number.
    longest : int
        Characters of the longest value.
    widths : set of int
        Lengths of lists, if it is a column of them.
    foreign : str, optional
        Type of a column that no schema can read; nothing else is known of it.
    """

    values: set[str] | None = field(default_factory=set)
    marks: set[str] = field(default_factory=set)
    odd: set[str] | None = field(default_factory=set)
    present: int = 0
    numbers: int = 0
    whole: bool = True
    low: float = float("inf")
    high: float = float("-inf")
    longest: int = 0
    widths: set[int] = field(default_factory=set)
    foreign: str | None = None

    def see(self, column: pl.Series) -> None:
        """Take in one batch of the column."""
        if isinstance(column.dtype, pl.Array | pl.List):
            lists = column if isinstance(column.dtype, pl.List) else column.arr.to_list()
            self.widths |= set(lists.list.len().drop_nulls().unique().to_list())
            column = lists.explode(empty_as_null=True, keep_nulls=True)
        texts = _as_text(column)
        missing = texts.is_in(_MARKS) | texts.is_null()
        self.marks |= set(texts.filter(missing).drop_nulls().unique().to_list())
        if texts.is_null().any():
            self.marks.add("")
        present = texts.filter(~missing)
        self.present += present.len()
        self.longest = max(self.longest, int(present.str.len_chars().max() or 0))  # type: ignore[arg-type]
        self.values = _joined(self.values, present, MOST_VALUES)
        self._see_numbers(present)

    def _see_numbers(self, present: pl.Series) -> None:
        """Take in the values that are numbers, and those that are not."""
        numbers = present.cast(pl.Float64, strict=False)
        finite = numbers.is_finite().fill_null(False)
        self.odd = _joined(self.odd, present.filter(~finite), _MOST_ODD)
        numbers = numbers.filter(finite)
        if numbers.len():
            self.numbers += numbers.len()
            self.low = min(self.low, float(numbers.min()))  # type: ignore[arg-type]
            self.high = max(self.high, float(numbers.max()))  # type: ignore[arg-type]
            self.whole &= bool((numbers == numbers.floor()).all())

    @property
    def is_numeric(self) -> bool:
        """Whether every value is a number."""
        return self.odd == set()

    @property
    def is_code(self) -> bool:
        """Whether its numbers are codes for yes and no, rather than a quantity."""
        codes = None if self.values is None else self.values - (self.odd or set())
        return codes is not None and codes <= {"0", "1", "2"} and len(codes) <= 2

    @property
    def is_quantity(self) -> bool:
        """Whether its numbers, if it has any, measure something."""
        return self.low < self.high and not self.is_code

    @property
    def is_mostly_numeric(self) -> bool:
        """Whether all but a few spellings are numbers."""
        return bool(self.odd) and self.numbers >= _MOSTLY * self.present

    @property
    def suggested_marks(self) -> set[str]:
        """Spellings among numbers that may stand for a missing one: no digits, as in '90+'."""
        odd = self.odd or set()
        wordy = all(
            len(text) <= _LONGEST_MARK and not any(map(str.isdigit, text)) for text in odd
        )
        return odd if self.is_mostly_numeric and self.is_quantity and wordy else set()

    def without(self, marks: Collection[str]) -> "Profile":
        """Return the column as it looks once these spellings stand for a missing value."""
        values, odd = (None if seen is None else seen - {*marks} for seen in self._seen)
        found = {mark for seen in self._seen if seen for mark in seen & {*marks}}
        return replace(self, values=values, odd=odd, marks=self.marks | found)

    @property
    def _seen(self) -> tuple[set[str] | None, set[str] | None]:
        return self.values, self.odd


def look(
    path: Path,
    *,
    header: bool,
    separator: str | None,
    limits: Limits,
    progress: Progress | None,
) -> dict[str, Profile]:
    """Read a file once and say what each of its columns looks like, in their order."""
    _check_columns(path, header, separator, limits)
    types = _column_types(path, limits)
    foreign = {name: str(kind) for name, kind in types.items() if not is_known(kind)}
    profiles = {name: Profile(foreign=foreign.get(name)) for name in types}
    frames = read_table(
        path,
        header=header,
        separator=separator,
        ignored=foreign,
        limits=limits,
        progress=progress,
    )
    rows = 0
    for frame in frames:
        rows += frame.height
        for column in frame.iter_columns():
            profiles.setdefault(column.name, Profile()).see(column)
    if not rows:
        raise DataError(str(path), "at least one record", "none", "Name a file with records.")
    return profiles


def _as_text(column: pl.Series) -> pl.Series:
    """Write values as a CSV file would show them, whole numbers without a point."""
    if column.dtype.is_float():
        whole = column.cast(pl.Int64, strict=False)
        if (whole.cast(column.dtype) == column).fill_null(column.is_null()).all():
            return whole.cast(pl.String)
    return column.cast(pl.String, strict=False)


def _joined(seen: set[str] | None, texts: pl.Series, most: int) -> set[str] | None:
    """Add different texts to those seen before, unless they become too many."""
    if seen is None:
        return None
    seen = seen | set(texts.unique().to_list())
    return seen if len(seen) <= most else None


def _column_types(path: Path, limits: Limits) -> dict[str, pa.DataType]:
    """Types that a Parquet or Arrow file states for its columns; none for other files."""
    suffix = path.suffix.lower()
    with opened(path, limits) as file:
        try:
            if suffix in (".parquet", ".pq"):
                schema = pa.parquet.read_schema(file)
            elif suffix in (".arrow", ".arrows", ".feather", ".ipc"):
                magic = file.read(6) == b"ARROW1"
                file.seek(0)
                schema = (pa.ipc.open_file if magic else pa.ipc.open_stream)(file).schema
            else:
                return {}
        except (pa.ArrowException, OSError):
            return {}  # whoever reads the records says what is wrong with the file
    return dict(zip(schema.names, schema.types, strict=True))


def _check_columns(path: Path, header: bool, separator: str | None, limits: Limits) -> None:
    """Refuse a CSV file of one column, which is usually one with another separator."""
    usual = _SEPARATORS.get(path.suffix.lower())
    if usual is None:
        return
    used = separator or usual
    if len(table_columns(path, header=header, separator=used, limits=limits)) > 1:
        return
    line = table_columns(path, header=True, separator=used, limits=limits)[0]
    others = [other for other in (";", "\t", "|", ",") if other in line and other != used]
    raise DataError(
        str(path),
        f"several columns, separated by {used!r}",
        f"one in the first line, {line[:60]!r}",
        f"If {others[0]!r} separates them, pass it as separator (--separator {others[0]!r})."
        if others
        else "A column to predict and one to predict it from are needed.",
    )
