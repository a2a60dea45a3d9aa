"""A first proposal of a schema, which somebody must still make true."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from veracal._types import Progress
from veracal.data.limits import DEFAULT_LIMITS, Limits
from veracal.data.readers.formats import read_table
from veracal.data.schema import FORMAT, quoted
from veracal.errors import DataError

_MARKS = ("", "?", "NA", "N/A", "n/a", "nan", "NaN", "null", "NULL", "None", ".", "-")
_MOST_VALUES = 40  # a column with more different values is not proposed as a category
_TARGET_NAMES = ("target", "label", "class", "y", "outcome", "diagnosis")
_READ = "read from the records: replace by public knowledge"


@dataclass(frozen=True)
class Warned:
    """A field of a draft that came out of the records, and what to do about it."""

    field: str
    message: str


@dataclass(frozen=True)
class Draft:
    """Text of a proposed schema, which loads only once ``draft = true`` is deleted from it."""

    text: str
    warnings: tuple[Warned, ...]


@dataclass
class _Profile:
    """What was seen of one column so far."""

    values: set[str] | None = field(default_factory=set)  # None: too many to be a category
    marks: set[str] = field(default_factory=set)
    numeric: bool = True
    whole: bool = True
    low: float = float("inf")
    high: float = float("-inf")
    longest: int = 0
    width: int | None = None  # entries of a vector

    def see(self, column: pl.Series) -> None:
        """Take in one batch of the column."""
        if isinstance(column.dtype, pl.Array | pl.List):
            lists = column if isinstance(column.dtype, pl.List) else column.arr.to_list()
            self.width = int(lists.list.len().max() or 0)  # type: ignore[arg-type]
            column = lists.explode(empty_as_null=True, keep_nulls=True)
        texts = column.cast(pl.String, strict=False)
        missing = texts.is_in(_MARKS) | texts.is_null()
        self.marks |= set(texts.filter(missing).drop_nulls().unique().to_list())
        if texts.is_null().any():
            self.marks.add("")
        present = texts.filter(~missing)
        self.longest = max(self.longest, int(present.str.len_chars().max() or 0))  # type: ignore[arg-type]
        self._see_numbers(present.cast(pl.Float64, strict=False))
        if self.values is not None:
            self.values |= set(present.unique().to_list())
            self.values = self.values if len(self.values) <= _MOST_VALUES else None

    def _see_numbers(self, numbers: pl.Series) -> None:
        """Take in the column as numbers, where it has any."""
        self.numeric &= not numbers.is_null().any() and bool(numbers.is_finite().all())
        if self.numeric and numbers.len():
            self.low = min(self.low, float(numbers.min()))  # type: ignore[arg-type]
            self.high = max(self.high, float(numbers.max()))  # type: ignore[arg-type]
            self.whole &= bool((numbers == numbers.floor()).all())


def draft(
    path: str | Path,
    *,
    target: str | None = None,
    unit: str | None = None,
    groups: Sequence[str] = (),
    header: bool = True,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
) -> Draft:
    """Read a file and propose a schema for it.

    Parameters
    ----------
    path : path
        A CSV, TSV, Parquet, Arrow or npz file.
    target, unit : str, optional
        Columns to predict, and that say whom a row belongs to. Without a target the last
        column is proposed.
    groups : sequence of str
        Columns by which results will be told apart.
    header : bool
        Whether the first line of a CSV file names its columns.

    Guarantees
    ----------
    None: a draft is made of what the records say, so publishing it, or training by it,
    leaks. Each such field carries a warning, and the text is refused as a schema until
    somebody deletes its line ``draft = true``.
    """
    path = Path(path)
    profiles: dict[str, _Profile] = {}
    for frame in read_table(path, header=header, limits=limits, progress=progress):
        for column in frame.iter_columns():
            profiles.setdefault(column.name, _Profile()).see(column)
    if not profiles:
        raise DataError(str(path), "at least one record", "none", "Name a file with records.")
    for name in (*groups, *(word for word in (target, unit) if word is not None)):
        if name not in profiles:
            known = ", ".join(map(repr, list(profiles)[:12]))
            raise DataError(
                str(path), f"a column among {known}", repr(name), "Check the spelling."
            )
    return _written(path, profiles, target, unit, groups, header)


def _written(
    path: Path,
    profiles: dict[str, _Profile],
    target: str | None,
    unit: str | None,
    groups: Sequence[str],
    header: bool,
) -> Draft:
    """Write the proposal down."""
    warnings: list[Warned] = []
    if target is None:
        named = [name for name in profiles if name.lower() in _TARGET_NAMES and name != unit]
        target = named[0] if named else [name for name in profiles if name != unit][-1]
        warnings.append(Warned(target, "guessed to be the target: pass --target"))
    marks = sorted(set().union(*(profile.marks for profile in profiles.values())))
    lines = [
        "# A DRAFT. Every line marked '!' was read from the records. Replace it by what is",
        "# publicly known without them (a code book, the law, a device's range), and then",
        "# delete the next line.",
        "draft = true",
        f"format = {FORMAT}",
        f"name = {quoted(path.stem)}",
        "# size = 1000  # a public figure for the number of rows: never count them for it",
        "# norm = 1.0  # public bound on the Euclidean norm of a row of X, if one is needed",
    ]
    if not header:
        lines.append("header = false")
    if marks:
        lines.append(f"missing = {quoted(marks)}  # ! {_READ}")
        warnings.append(Warned("missing", f"marks {marks} {_READ}"))
    for name, profile in profiles.items():
        lines += ["", f"[columns.{quoted(name)}]"]
        lines += _column(name, profile, name == target, name == unit, warnings)
    lines += _groups(groups, profiles)
    return Draft("\n".join(lines) + "\n", tuple(warnings))


def _column(
    name: str, profile: _Profile, is_target: bool, is_unit: bool, warnings: list[Warned]
) -> list[str]:
    """Lines that declare one column."""
    found = [] if is_unit else _kind(name, profile, is_target)
    lines = (
        ['kind = "unit"', "# at_most = 1  # most rows anybody may contribute"]
        if is_unit
        else found
    )
    if profile.marks and not lines[0].startswith('kind = "ignore"'):
        choice = '"drop"' if is_unit or is_target or profile.width else '"indicator"'
        lines.append(f'missing = {choice}  # ! {_READ} (or "drop", or {{ constant = … }})')
    for line in lines:
        if f"  # ! {_READ}" in line:
            warnings.append(Warned(name, line.split("  # ! ")[0] + f": {_READ}"))
    return lines


def _kind(name: str, profile: _Profile, is_target: bool) -> list[str]:
    """Lines for what a column seems to be."""
    values = sorted(profile.values) if profile.values is not None else None
    if is_target:
        listed = values or ["replace", "me"]
        if len(listed) < 2:
            listed = [*listed, "another class"]
        return ['kind = "target"', f"classes = {quoted(listed)}  # ! {_READ}"]
    coded = values is not None and set(values) <= {"0", "1", "2"} and len(values) <= 2
    few = values is not None and (coded or not profile.numeric)
    if profile.width is not None:
        return [
            'kind = "vector"',
            f"size = {profile.width}",
            *_bounds(profile),
        ]
    if profile.numeric and not few and profile.low < profile.high:
        return ['kind = "number"', *_bounds(profile)]
    if few and values:
        return ['kind = "category"', f"values = {quoted(values)}  # ! {_READ}"]
    if profile.longest > 30 and not profile.numeric:
        return ['kind = "ignore"  # free text? Then kind = "text", with no other features']
    return ['kind = "ignore"  # too many values for a category: an id? Then kind = "unit"']


def _bounds(profile: _Profile) -> list[str]:
    """Lines for the bounds of numbers."""
    low, high = (int(x) if profile.whole else x for x in (profile.low, profile.high))
    return [f"lower = {low}  # ! {_READ}", f"upper = {high}  # ! {_READ}"]


def _groups(groups: Sequence[str], profiles: dict[str, _Profile]) -> list[str]:
    """Lines that declare groups."""
    lines = []
    for name in groups:
        lines += ["", f"[groups.{quoted(name)}]", f"column = {quoted(name)}"]
        profile = profiles[name]
        if profile.numeric and (profile.values is None or len(profile.values) > 2):
            low, high = profile.low, profile.high
            lines.append(f"edges = [{low:g}, {(low + high) / 2:g}, {high:g}]  # ! {_READ}")
    return lines
