"""Drafts of schemas from the records of a file, to be completed with public knowledge.

A draft is not private: each field that was read from the records is marked, and the draft is
rejected as a schema until the data holder has replaced these fields.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from veracal._types import Progress
from veracal.data.files import DEFAULT_LIMITS, Limits, open_file
from veracal.data.formats import read_table
from veracal.data.schema import FORMAT, SEPARATORS, quoted
from veracal.data.tables import is_supported, read_column_names
from veracal.errors import DataError

MOST_VALUES = 40  # maximal number of values of a proposed category
_MARKS = ("", "?", "NA", "N/A", "n/a", "nan", "NaN", "null", "NULL", "None", ".", "-")
_MAX_ODD = 3  # maximal number of values in a numeric column that are no numbers
_LONGEST_MARK = 30
_MOSTLY = 0.8
_SEPARATORS = {".csv": ",", ".tsv": "\t"}


@dataclass
class Profile:
    """Summary of one column, updated batch by batch.

    Attributes
    ----------
    values : set of str, or None
        Distinct values; None if there are too many for a category.
    marks : set of str
        Values that usually mark a missing one.
    odd : set of str, or None
        Values that are no finite number; None if there are too many.
    present, numbers : int
        Number of records with a value, and with a number.
    whole : bool
        Whether all numbers are integers.
    low, high : float
        Smallest and largest number.
    longest : int
        Length of the longest value in characters.
    widths : set of int
        Lengths of the lists of a list column.
    foreign : str, optional
        Type of a column that no schema can read; such a column is not read.
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

    def update(self, column: pl.Series) -> None:
        """Include one batch of the column."""
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
        self.values = _union(self.values, present, MOST_VALUES)
        self._update_numbers(present)

    def _update_numbers(self, present: pl.Series) -> None:
        """Include the values that are numbers, and those that are not."""
        numbers = present.cast(pl.Float64, strict=False)
        finite = numbers.is_finite().fill_null(False)
        self.odd = _union(self.odd, present.filter(~finite), _MAX_ODD)
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
        """Whether its numbers are codes of a binary value and not a quantity."""
        codes = None if self.values is None else self.values - (self.odd or set())
        return codes is not None and codes <= {"0", "1", "2"} and len(codes) <= 2

    @property
    def is_quantity(self) -> bool:
        """Whether its numbers measure a quantity."""
        return self.low < self.high and not self.is_code

    @property
    def is_mostly_numeric(self) -> bool:
        """Whether all but a few values are numbers."""
        return bool(self.odd) and self.numbers >= _MOSTLY * self.present

    @property
    def suggested_marks(self) -> set[str]:
        """Values among numbers that may mark missing ones; none with digits, such as '90+'."""
        odd = self.odd or set()
        are_words = all(
            len(text) <= _LONGEST_MARK and not any(map(str.isdigit, text)) for text in odd
        )
        return odd if self.is_mostly_numeric and self.is_quantity and are_words else set()

    def without(self, marks: Collection[str]) -> "Profile":
        """Return the profile with these values treated as marks of missing ones."""
        sets = (self.values, self.odd)
        values, odd = (None if texts is None else texts - {*marks} for texts in sets)
        occurring = {mark for texts in sets if texts for mark in texts & {*marks}}
        return replace(self, values=values, odd=odd, marks=self.marks | occurring)


def profile_columns(
    path: Path,
    *,
    header: bool,
    separator: str | None,
    limits: Limits,
    progress: Progress | None,
) -> dict[str, Profile]:
    """Read a file once and summarize each of its columns, in their order."""
    _check_columns(path, header, separator, limits)
    types = _column_types(path, limits)
    foreign = {name: str(kind) for name, kind in types.items() if not is_supported(kind)}
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
            profiles.setdefault(column.name, Profile()).update(column)
    if not rows:
        raise DataError(str(path), "at least one record", "none", "Name a file with records.")
    return profiles


def _as_text(column: pl.Series) -> pl.Series:
    """Convert values to text as a CSV file would hold them, integers without a point."""
    if column.dtype.is_float():
        whole = column.cast(pl.Int64, strict=False)
        if (whole.cast(column.dtype) == column).fill_null(column.is_null()).all():
            return whole.cast(pl.String)
    return column.cast(pl.String, strict=False)


def _union(texts: set[str] | None, column: pl.Series, most: int) -> set[str] | None:
    """Add the distinct texts of a column; None once there are too many."""
    if texts is None:
        return None
    texts = texts | set(column.unique().to_list())
    return texts if len(texts) <= most else None


def _column_types(path: Path, limits: Limits) -> dict[str, pa.DataType]:
    """Types that a Parquet or Arrow file states for its columns; empty for other files."""
    suffix = path.suffix.lower()
    with open_file(path, limits) as file:
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
            return {}  # reading the records raises a clear error
    return dict(zip(schema.names, schema.types, strict=True))


def _check_columns(path: Path, header: bool, separator: str | None, limits: Limits) -> None:
    """Reject a CSV file with one column, which usually has another separator."""
    usual = _SEPARATORS.get(path.suffix.lower())
    if usual is None:
        return
    used = separator or usual
    if len(read_column_names(path, header=header, separator=used, limits=limits)) > 1:
        return
    line = read_column_names(path, header=True, separator=used, limits=limits)[0]
    others = [other for other in (";", "\t", "|", ",") if other in line and other != used]
    raise DataError(
        str(path),
        f"several columns, separated by {used!r}",
        f"one in the first line, {line[:60]!r}",
        f"If {others[0]!r} separates them, pass it as separator (--separator {others[0]!r})."
        if others
        else "A target column and at least one feature are needed.",
    )


Reason = Literal["read from the records", "to be filled in"]
Role = Literal["target", "guess", "unit", "slot", "group"] | None

_LARGEST_WHOLE = 2**53  # above it a float has no room for all whole numbers
_REASON_MARKS: Mapping[Reason | None, str] = {
    "read from the records": "! ",
    "to be filled in": "? ",
    None: "",
}


@dataclass(frozen=True)
class DraftLine:
    """One line of a draft: TOML, a comment, and the reason why it must be replaced, if any."""

    toml: str
    note: str = ""
    reason: Reason | None = None

    def __str__(self) -> str:
        comment = _REASON_MARKS[self.reason] + self.note
        return f"{self.toml}  # {comment}" if comment else self.toml

    @property
    def field(self) -> str:
        """Name that the line sets, or would set without its comment sign."""
        return self.toml.strip("# []").partition(" =")[0]


def column_lines(profile: Profile, before: Profile, role: Role) -> list[DraftLine]:
    """Propose a declaration of one column.

    Parameters
    ----------
    profile, before : Profile
        Profile of the column with and without the suggested marks of missing values.
    role : Role
        Role of the column, if the caller declared it.
    """
    choice = "drop"
    if role == "slot":
        return [DraftLine('kind = "slot"', "a slot id, which a replacement inherits")]
    if role == "unit":
        lines = [DraftLine('kind = "unit"')]
        lines.append(DraftLine("# at_most = 1", "the maximal number of rows of one individual"))
    elif role == "target":
        lines = [DraftLine('kind = "target"'), _classes(profile)]
    elif role == "guess":
        kind = read('kind = "target"', "a guess: is this the column to predict?")
        lines = [kind, _classes(profile)]
    elif profile.widths:
        lines = _vector(profile)
    else:
        lines = _feature(profile, before, role == "group")
        choice = "indicator"
    if lines[0].toml == 'kind = "ignore"':
        return lines
    return [*lines, _missing(profile, choice)]


def group_lines(profile: Profile) -> list[DraftLine]:
    """Propose edges that cut a number into groups; a category needs none."""
    if not (profile.is_numeric and profile.is_quantity):
        return []
    low, high = _ends(profile)
    middle = low / 2 + high / 2
    if low < middle < high:
        return [read(f"edges = {quoted([low, middle, high])}", "the bounds and the midpoint")]
    return [fill(f"edges = {quoted([low, high])}", "the edges of the groups")]


def read(toml: str, note: str) -> DraftLine:
    """Make a line whose value was read from the records."""
    return DraftLine(toml, note, "read from the records")


def fill(toml: str, note: str) -> DraftLine:
    """Make a line whose value is to be filled in."""
    return DraftLine(toml, f"to be filled in: {note}", "to be filled in")


def _missing(profile: Profile, choice: str) -> DraftLine:
    """Propose a treatment of missing values, which may be absent by chance."""
    others = '; or "drop", or { constant = … }' if choice == "indicator" else ""
    if profile.marks:
        return read(f'missing = "{choice}"', f"some are missing{others}")
    return read(f'# missing = "{choice}"', "none is missing; can values be missing?")


def _classes(profile: Profile) -> DraftLine:
    """Propose the classes of a target, at least two."""
    values = _sorted(profile)
    if len(values) >= 2:
        return read(f"classes = {quoted(values)}", "those that occur")
    if values:
        return fill(f"classes = {quoted([*values, 'another class'])}", "only one class occurs")
    return fill('classes = ["replace", "me"]', "the classes")


def _vector(profile: Profile) -> list[DraftLine]:
    """Propose a declaration of a column of lists."""
    if len(profile.widths) != 1 or 0 in profile.widths:
        return [read('kind = "ignore"', "lists of different lengths")]
    size = read(f"size = {profile.widths.copy().pop()}", "the length of every list")
    return [read('kind = "vector"', "lists of numbers"), size, *_bounds(profile)]


def _feature(profile: Profile, before: Profile, is_group: bool) -> list[DraftLine]:
    """Propose a declaration of a feature."""
    values = _sorted(profile)
    if profile.is_numeric and profile.is_quantity:
        odd = ", ".join(map(repr, sorted(before.odd or ())))
        note = f"mostly numbers, but also {odd}: a missing mark?" if odd else "only numbers"
        return [read('kind = "number"', note), *_bounds(profile)]
    if values and (is_group or not profile.is_numeric or profile.is_code):
        kind = read('kind = "category"', "few different values")
        return [kind, read(f"values = {quoted(values)}", "those that occur")]
    if is_group:
        kind = read('kind = "category"', _why_not(profile))
        return [kind, fill('values = ["replace", "me"]', "every value it may have")]
    return [read('kind = "ignore"', _why_not(profile))]


def _why_not(profile: Profile) -> str:
    """Reason why a column is not proposed as a feature."""
    if profile.foreign is not None:
        return f"a schema cannot read the type {profile.foreign}"
    if not profile.present:
        return "no record has a value"
    if profile.values is not None:
        return "the same in every record"
    if profile.is_mostly_numeric:
        odd = ", ".join(repr(text[:20]) for text in sorted(profile.odd or ()))
        return f"mostly numbers, but also {odd}: write them as numbers?"
    if profile.longest > 30:
        return 'free text? Then kind = "text", and no other features'
    return 'too many values for a category: an id? Then kind = "unit"'


def _bounds(profile: Profile) -> list[DraftLine]:
    """Propose bounds of numbers."""
    if not profile.low < profile.high:
        return [fill("lower = 0", "all values are equal"), fill("upper = 1", "as above")]
    low, high = _ends(profile)
    return [read(f"lower = {low}", "the smallest"), read(f"upper = {high}", "the largest")]


def _ends(profile: Profile) -> tuple[float, float]:
    """Smallest and largest number, as integers if all numbers are."""
    low, high = profile.low, profile.high
    if profile.whole and max(abs(low), abs(high)) <= _LARGEST_WHOLE:
        return int(low), int(high)
    return low, high


def _sorted(profile: Profile) -> list[str]:
    """Distinct values in their order, if there are few."""
    return sorted(profile.values or (), key=float if profile.is_numeric else str)


_TARGET_NAMES = ("target", "label", "class", "y", "outcome", "diagnosis")
_OPENING = """\
# A DRAFT, made from the records. Lines marked '!' were read from them: replace
# them by public knowledge (a code book, the law, the range of a device). Lines
# marked '?' are to be filled in. Then delete the next line.
draft = true"""
_FEATURES = {f'kind = "{kind}"' for kind in ("number", "category", "vector")}


@dataclass(frozen=True)
class DraftWarning:
    """A field of a draft that must be replaced: its section, its name and the reason."""

    where: str
    field: str
    reason: Reason


@dataclass(frozen=True)
class Draft:
    """Text of a proposed schema, which loads only after ``draft = true`` has been deleted."""

    text: str
    warnings: tuple[DraftWarning, ...]


@dataclass(frozen=True)
class _Roles:
    """Roles of columns, declared by the caller or guessed."""

    target: str
    unit: str | None
    slot: str | None
    groups: tuple[str, ...]
    guessed: bool

    def of(self, name: str) -> Role:
        """Role of one column."""
        if name == self.target:
            return "guess" if self.guessed else "target"
        if name == self.unit:
            return "unit"
        if name == self.slot:
            return "slot"
        return "group" if name in self.groups else None


def draft(
    path: str | Path,
    *,
    target: str | None = None,
    unit: str | None = None,
    slot: str | None = None,
    groups: Sequence[str] = (),
    header: bool = True,
    separator: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
) -> Draft:
    """Read a file and propose a schema for it.

    Parameters
    ----------
    path : path
        A CSV, TSV, Parquet, Arrow or npz file.
    target, unit : str, optional
        Column to predict, and column of unit ids. Without a target, one is guessed by its
        name, or else the last column is used.
    slot : str, optional
        Instead of a unit, for replace-one: column of slot ids, which replacements inherit.
    groups : sequence of str
        Columns by which results will be broken down.
    header : bool
        Whether the first line of a CSV file names its columns.
    separator : str, optional
        Character between fields of a CSV file; by default a comma, and a tab for ``.tsv``.

    Guarantees
    ----------
    None: a draft is computed from the records, so publishing it or training with it leaks
    them. Each such field carries a warning, including the kind of a column and the absence of
    missing values, and the text is rejected as a schema until its line ``draft = true`` is
    deleted.
    """
    path = Path(path)
    if separator is not None and not (len(separator) == 1 and separator in SEPARATORS):
        raise DataError(
            "separator",
            "one character that can separate fields",
            repr(separator),
            "Name a comma, semicolon, tab, bar, colon or blank.",
        )
    profiles = profile_columns(
        path, header=header, separator=separator, limits=limits, progress=progress
    )
    if unit is not None and slot is not None:
        raise DataError(
            str(path),
            "a unit (for add-remove) or a slot (for replace-one)",
            "both",
            "Name one of them.",
        )
    roles = _roles(path, profiles, target, unit, slot, tuple(dict.fromkeys(groups)))
    profiles = _with_classes(profiles, roles.target)
    return _compose(path, profiles, roles, header, separator)


def _with_classes(profiles: dict[str, Profile], target: str) -> dict[str, Profile]:
    """Treat a mark as a class if the target would have only one class without it.

    Classes are written as + and - more often than missing labels as -.
    """
    profile = profiles[target]
    marks = profile.marks - {""}
    if len(profile.values or ()) != 1 or profile.is_numeric or not marks:
        return profiles
    others = {name: replace(each, marks=each.marks - marks) for name, each in profiles.items()}
    values = {*(profile.values or ()), *marks}
    return {**others, target: replace(profile, values=values, marks=profile.marks - marks)}


def _roles(
    path: Path,
    profiles: Mapping[str, Profile],
    target: str | None,
    unit: str | None,
    slot: str | None,
    groups: tuple[str, ...],
) -> _Roles:
    """Determine the roles of the columns, or raise."""
    for name in (*groups, *(word for word in (target, unit, slot) if word is not None)):
        if name not in profiles:
            known = ", ".join(map(repr, list(profiles)[:12]))
            if len(profiles) > 12:
                known += f", …, {list(profiles)[-1]!r}"  # often the target
            raise DataError(
                str(path), f"a column among {known}", repr(name), "Check the spelling."
            )
        profile = profiles[name]
        if profile.foreign or profile.widths:
            raise DataError(
                f"{path}: column {name!r}",
                "single values, as numbers or text",
                f"the type {profile.foreign}" if profile.foreign else "lists",
                "Convert the column, or name another.",
            )
    candidates = [name for name, p in profiles.items() if not (p.foreign or p.widths)]
    candidates = [name for name in candidates if name not in (unit, slot, *groups)]
    named = [name for name in candidates if name.lower() in _TARGET_NAMES]
    guess = target or next(iter(named or candidates[-1:]), None)
    if guess is None:
        raise DataError(
            str(path),
            "a column to predict",
            "none beside those with another role",
            "Name fewer, or check the separator.",
        )
    roles = _Roles(guess, unit, slot, groups, guessed=target is None)
    _check_roles(path, roles)
    return roles


def _check_roles(path: Path, roles: _Roles) -> None:
    """Raise if a column has two incompatible roles."""
    if roles.target in (roles.unit, roles.slot):
        raise DataError(
            f"{path}: column {roles.target!r}",
            "one column to predict and another one for ids",
            "one for both",
            "Name two.",
        )
    for name in roles.groups:
        taken = {roles.target: "the target", roles.unit: "the unit", roles.slot: "the slot"}
        role = taken.get(name)
        if role is not None:
            raise DataError(
                f"{path}: group {name!r}",
                "an attribute other than the target, the unit and the slot",
                f"{role} itself",
                "Name another column.",
            )


def _compose(
    path: Path,
    profiles: Mapping[str, Profile],
    roles: _Roles,
    header: bool,
    separator: str | None,
) -> Draft:
    """Compose the text and the warnings of a draft."""
    suggested: set[str] = set()
    for name, profile in profiles.items():
        if name not in (roles.target, roles.unit, roles.slot):
            suggested |= profile.suggested_marks
    cleaned = {name: profile.without(suggested) for name, profile in profiles.items()}
    columns = {
        name: column_lines(profile, profiles[name], roles.of(name))
        for name, profile in cleaned.items()
    }
    sections = {"schema": list(_heading(path, cleaned, columns.values(), header, separator))}
    for name, lines in columns.items():
        sections[f"column {name!r}"] = [DraftLine(f"\n[columns.{quoted(name)}]"), *lines]
    for name in roles.groups:
        title = [DraftLine(f"\n[groups.{quoted(name)}]"), DraftLine(f"column = {quoted(name)}")]
        sections[f"group {name!r}"] = [*title, *group_lines(cleaned[name])]
    text = "\n".join(str(line) for lines in sections.values() for line in lines)
    return Draft(text + "\n", tuple(_warnings(sections)))


def _warnings(sections: Mapping[str, Iterable[DraftLine]]) -> Iterator[DraftWarning]:
    """One warning for each line that must be replaced."""
    for where, lines in sections.items():
        for line in lines:
            if line.reason is not None:
                yield DraftWarning(where, line.field, line.reason)


def _heading(
    path: Path,
    profiles: Mapping[str, Profile],
    columns: Iterable[Sequence[DraftLine]],
    header: bool,
    separator: str | None,
) -> Iterator[DraftLine]:
    """Lines for the table as a whole."""
    yield DraftLine(_OPENING)
    yield DraftLine(f"format = {FORMAT}")
    # TOML cannot hold a name whose bytes are no text.
    yield DraftLine(f"name = {quoted(path.stem.encode(errors='replace').decode())}")
    yield DraftLine("# size = 1000", "the public number of rows: do not count them")
    yield DraftLine(
        "# norm = 1.0", "a public bound on the Euclidean norm of a row of X, if any"
    )
    if not header:
        yield DraftLine("header = false")
    if separator is not None:
        yield DraftLine(f"separator = {quoted(separator)}")
    marks = sorted(set().union(*(profile.marks for profile in profiles.values())))
    if marks:
        yield read(f"missing = {quoted(marks)}", "marks of a missing value that occur")
    else:
        yield read('# missing = [""]', "no value is missing; can values be missing?")
    if {lines[0].toml for lines in columns}.isdisjoint(_FEATURES):
        yield fill("# [columns]", "no column looks like a feature; declare one")
