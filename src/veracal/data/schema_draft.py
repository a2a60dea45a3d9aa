"""Drafts of schemas from the records of a file, to be completed with public knowledge.

A draft is not private: each field that was read from the records is marked, and the draft is
rejected as a schema until the data holder has replaced these fields.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import polars as pl

from veracal._types import Progress
from veracal.data.files import DEFAULT_LIMITS, Limits
from veracal.data.schema import FORMAT, SEPARATORS, quoted
from veracal.data.tables import (
    is_supported,
    read_column_names,
    read_table,
    stated_types,
    text_separator,
)
from veracal.errors import DataError

MOST_VALUES = 40  # maximal number of values of a proposed category
_MARKS = ("", "?", "NA", "N/A", "n/a", "nan", "NaN", "null", "NULL", "None", ".", "-")
_MAX_NON_NUMERIC = 3  # maximal number of values in a numeric column that are no numbers
_LONGEST_MARK = 30
_MOSTLY = 0.8
_LARGEST_WHOLE = 2**53  # above it a float has no room for all whole numbers
_TARGET_NAMES = ("target", "label", "class", "y", "outcome", "diagnosis")
_OPENING = """\
# A DRAFT, made from the records. Lines marked '!' were read from them: replace
# them by public knowledge (a code book, the law, the range of a device). Lines
# marked '?' are to be filled in. Then delete the next line.
draft = true"""
_FEATURES = {f'kind = "{kind}"' for kind in ("number", "category", "vector")}

Reason = Literal["read from the records", "to be filled in"]
Role = Literal["target", "guess", "unit", "slot", "group"]


@dataclass
class Profile:
    """Summary of one column, updated batch by batch."""

    values: set[str] | None = field(default_factory=set)  # None if too many for a category
    marks: set[str] = field(default_factory=set)  # values that usually mark a missing one
    non_numeric: set[str] | None = field(
        default_factory=set
    )  # no finite numbers; None if too many
    present: int = 0  # records with a value
    numbers: int = 0  # records with a number
    whole: bool = True  # whether all numbers are integers
    low: float = float("inf")
    high: float = float("-inf")
    longest: int = 0  # characters of the longest value
    widths: set[int] = field(default_factory=set)  # lengths of the lists of a list column
    unsupported: str | None = None  # type that no schema can read; such a column is not read

    def update(self, column: pl.Series) -> None:
        """Include one batch of the column."""
        if isinstance(column.dtype, pl.Array | pl.List):
            lists = column if isinstance(column.dtype, pl.List) else column.arr.to_list()
            self.widths |= set(lists.list.len().drop_nulls().unique().to_list())
            column = lists.explode(empty_as_null=True, keep_nulls=True)
        if column.dtype.is_float():  # integers without a point, as a CSV file would hold them
            whole = column.cast(pl.Int64, strict=False)
            if (whole.cast(column.dtype) == column).fill_null(column.is_null()).all():
                column = whole
        texts = column.cast(pl.String, strict=False)
        missing = texts.is_in(_MARKS) | texts.is_null()
        self.marks |= set(texts.filter(missing).fill_null("").unique().to_list())
        present = texts.filter(~missing)
        self.present += present.len()
        self.longest = max(self.longest, int(present.str.len_chars().max() or 0))  # type: ignore[arg-type]
        self.values = _union(self.values, present, MOST_VALUES)
        numbers = present.cast(pl.Float64, strict=False)
        finite = numbers.is_finite().fill_null(False)
        self.non_numeric = _union(self.non_numeric, present.filter(~finite), _MAX_NON_NUMERIC)
        numbers = numbers.filter(finite)
        if numbers.len():
            self.numbers += numbers.len()
            self.low = min(self.low, float(numbers.min()))  # type: ignore[arg-type]
            self.high = max(self.high, float(numbers.max()))  # type: ignore[arg-type]
            self.whole &= bool((numbers == numbers.floor()).all())

    @property
    def is_numeric(self) -> bool:
        """Whether every value is a number."""
        return self.non_numeric == set()

    @property
    def is_code(self) -> bool:
        """Whether its numbers are codes of a binary value and not a quantity."""
        codes = None if self.values is None else self.values - (self.non_numeric or set())
        return codes is not None and codes <= {"0", "1", "2"} and len(codes) <= 2

    @property
    def is_quantity(self) -> bool:
        """Whether its numbers measure a quantity."""
        return self.low < self.high and not self.is_code

    @property
    def is_mostly_numeric(self) -> bool:
        """Whether all but a few values are numbers."""
        return bool(self.non_numeric) and self.numbers >= _MOSTLY * self.present

    @property
    def suggested_marks(self) -> set[str]:
        """Values among numbers that may mark missing ones; none with digits, such as '90+'."""
        non_numeric = self.non_numeric or set()
        are_words = all(
            len(text) <= _LONGEST_MARK and not any(map(str.isdigit, text))
            for text in non_numeric
        )
        return (
            non_numeric if self.is_mostly_numeric and self.is_quantity and are_words else set()
        )

    def without(self, marks: set[str]) -> "Profile":
        """Return the profile with these values treated as marks of missing ones."""
        sets = (self.values, self.non_numeric)
        values, non_numeric = (None if texts is None else texts - marks for texts in sets)
        occurring = {mark for texts in sets if texts for mark in texts & marks}
        return replace(
            self, values=values, non_numeric=non_numeric, marks=self.marks | occurring
        )

    @property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest number, as integers if all numbers are."""
        low, high = self.low, self.high
        if self.whole and max(abs(low), abs(high)) <= _LARGEST_WHOLE:
            return int(low), int(high)
        return low, high

    @property
    def sorted_values(self) -> list[str]:
        """Distinct values in their order, if there are few."""
        return sorted(self.values or (), key=float if self.is_numeric else str)


def _union(texts: set[str] | None, column: pl.Series, most: int) -> set[str] | None:
    """Add the distinct texts of a column; None once there are too many."""
    if texts is None:
        return None
    texts = texts | set(column.unique().to_list())
    return texts if len(texts) <= most else None


@dataclass(frozen=True)
class DraftLine:
    """One line of a draft: TOML, a comment, and the reason why it must be replaced, if any."""

    toml: str
    note: str = ""
    reason: Reason | None = None

    def __str__(self) -> str:
        sign = {"read from the records": "! ", "to be filled in": "? "}.get(
            str(self.reason), ""
        )
        return f"{self.toml}  # {sign}{self.note}" if self.note else self.toml


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
    """Read a CSV, TSV, Parquet, Arrow or npz file and propose a schema for it.

    Parameters
    ----------
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
    if separator is not None and separator not in tuple(SEPARATORS):
        raise DataError(
            "separator",
            "one character that can separate fields",
            repr(separator),
            "Name a comma, semicolon, tab, bar, colon or blank.",
        )
    if unit is not None and slot is not None:
        raise DataError(
            path,
            "a unit (for add-remove) or a slot (for replace-one)",
            "both",
            "Name one of them.",
        )
    _check_separator(path, header, separator, limits)
    types = stated_types(path, limits)
    unsupported = {name: str(kind) for name, kind in types.items() if not is_supported(kind)}
    profiles = {name: Profile(unsupported=unsupported.get(name)) for name in types}
    rows = 0
    for frame in read_table(
        path,
        header=header,
        separator=separator,
        ignored=unsupported,
        limits=limits,
        progress=progress,
    ):
        rows += frame.height
        for column in frame.iter_columns():
            profiles.setdefault(column.name, Profile()).update(column)
    if not rows:
        raise DataError(path, "at least one record", "none", "Name a file with records.")
    roles = _assign_roles(path, profiles, target, unit, slot, tuple(dict.fromkeys(groups)))
    _restore_classes(profiles, next(iter(roles)))
    suggested: set[str] = set()
    for name, profile in profiles.items():
        if roles.get(name) in (None, "group"):
            suggested |= profile.suggested_marks
    cleaned = {name: profile.without(suggested) for name, profile in profiles.items()}
    columns = {
        name: _propose_column(profile, profiles[name], roles.get(name))
        for name, profile in cleaned.items()
    }
    sections = {"schema": list(_heading(path, cleaned, columns, header, separator))}
    for name, lines in columns.items():
        sections[f"column {name!r}"] = [DraftLine(f"\n[columns.{quoted(name)}]"), *lines]
    for name in dict.fromkeys(groups):
        title = [DraftLine(f"\n[groups.{quoted(name)}]"), DraftLine(f"column = {quoted(name)}")]
        sections[f"group {name!r}"] = [*title, *_propose_edges(cleaned[name])]
    text = "\n".join(str(line) for lines in sections.values() for line in lines)
    warnings = (
        # The field that the line sets, or would set without its comment sign.
        DraftWarning(where, line.toml.strip("# []").partition(" =")[0], line.reason)
        for where, lines in sections.items()
        for line in lines
        if line.reason is not None
    )
    return Draft(text + "\n", tuple(warnings))


def _check_separator(path: Path, header: bool, separator: str | None, limits: Limits) -> None:
    """Reject a CSV file with one column, which usually has another separator."""
    used = text_separator(path, separator)
    if used is None:
        return
    if len(read_column_names(path, header=header, separator=used, limits=limits)) > 1:
        return
    line = read_column_names(path, header=True, separator=used, limits=limits)[0]
    others = [other for other in (";", "\t", "|", ",") if other in line and other != used]
    raise DataError(
        path,
        f"several columns, separated by {used!r}",
        f"one in the first line, {line[:60]!r}",
        f"If {others[0]!r} separates them, pass it as separator (--separator {others[0]!r})."
        if others
        else "A target column and at least one feature are needed.",
    )


def _assign_roles(
    path: Path,
    profiles: Mapping[str, Profile],
    target: str | None,
    unit: str | None,
    slot: str | None,
    groups: tuple[str, ...],
) -> dict[str, Role]:
    """Return the roles of columns, that of the target first, or raise."""
    ids: dict[str, Role] = {} if unit is None else {unit: "unit"}
    ids |= {} if slot is None else {slot: "slot"}
    for name in (*groups, *ids, *(() if target is None else (target,))):
        if name not in profiles:
            known = ", ".join(map(repr, list(profiles)[:12]))
            if len(profiles) > 12:
                known += f", …, {list(profiles)[-1]!r}"  # often the target
            raise DataError(path, f"a column among {known}", repr(name), "Check the spelling.")
        profile = profiles[name]
        if profile.unsupported or profile.widths:
            raise DataError(
                f"{path}: column {name!r}",
                "single values, as numbers or text",
                f"the type {profile.unsupported}" if profile.unsupported else "lists",
                "Convert the column, or name another.",
            )
    if target in ids:
        raise DataError(
            f"{path}: column {target!r}",
            "one column to predict and another one for ids",
            "one for both",
            "Name two.",
        )
    candidates = [
        name
        for name, profile in profiles.items()
        if not (profile.unsupported or profile.widths or name in ids or name in groups)
    ]
    named = [name for name in candidates if name.lower() in _TARGET_NAMES]
    guess = target or next(iter(named or candidates[-1:]), None)
    if guess is None:
        raise DataError(
            path,
            "a column to predict",
            "none beside those with another role",
            "Name fewer, or check the separator.",
        )
    roles: dict[str, Role] = {guess: "guess" if target is None else "target", **ids}
    for name in groups:
        if name in roles:
            raise DataError(
                f"{path}: group {name!r}",
                "an attribute other than the target, the unit and the slot",
                f"the {roles[name]} itself",
                "Name another column.",
            )
        roles[name] = "group"
    return roles


def _restore_classes(profiles: dict[str, Profile], target: str) -> None:
    """Treat a mark as a class if the target would have only one class without it.

    Classes are written as + and - more often than missing labels as -.
    """
    profile = profiles[target]
    marks = profile.marks - {""}
    if len(profile.values or ()) == 1 and not profile.is_numeric:
        profile.values = {*(profile.values or ()), *marks}
        for each in profiles.values():
            each.marks -= marks


def _heading(
    path: Path,
    profiles: Mapping[str, Profile],
    columns: Mapping[str, Sequence[DraftLine]],
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
        yield _read(f"missing = {quoted(marks)}", "marks of a missing value that occur")
    else:
        yield _read('# missing = [""]', "no value is missing; can values be missing?")
    if {lines[0].toml for lines in columns.values()}.isdisjoint(_FEATURES):
        yield _fill("# [columns]", "no column looks like a feature; declare one")


def _read(toml: str, note: str) -> DraftLine:
    """Make a line whose value was read from the records."""
    return DraftLine(toml, note, "read from the records")


def _fill(toml: str, note: str) -> DraftLine:
    """Make a line whose value is to be filled in."""
    return DraftLine(toml, f"to be filled in: {note}", "to be filled in")


def _propose_column(profile: Profile, before: Profile, role: Role | None) -> list[DraftLine]:
    """Propose a declaration of one column.

    ``profile`` treats the suggested marks as missing values, ``before`` does not.
    """
    choice = "drop"
    if role == "slot":
        return [DraftLine('kind = "slot"', "a slot id, which a replacement inherits")]
    if role == "unit":
        lines = [DraftLine('kind = "unit"')]
        lines.append(
            DraftLine("# max_contributions = 1", "the maximal number of rows of one individual")
        )
    elif role in ("target", "guess"):
        guess = _read('kind = "target"', "a guess: is this the column to predict?")
        values = profile.sorted_values
        if len(values) >= 2:
            classes = _read(f"classes = {quoted(values)}", "those that occur")
        elif values:
            example = quoted([*values, "another class"])
            classes = _fill(f"classes = {example}", "only one class occurs")
        else:
            classes = _fill('classes = ["replace", "me"]', "the classes")
        lines = [guess if role == "guess" else DraftLine('kind = "target"'), classes]
    elif profile.widths:
        if len(profile.widths) != 1 or 0 in profile.widths:
            return [_read('kind = "ignore"', "lists of different lengths")]
        (width,) = profile.widths
        lines = [
            _read('kind = "vector"', "lists of numbers"),
            _read(f"size = {width}", "the length of every list"),
            *_propose_bounds(profile),
        ]
    else:
        choice, lines = "indicator", _propose_feature(profile, before, role == "group")
        if lines[0].toml == 'kind = "ignore"':
            return lines
    # That no value is missing may be chance.
    others = '; or "drop", or { constant = … }' if choice == "indicator" else ""
    if profile.marks:
        return [*lines, _read(f'missing = "{choice}"', f"some are missing{others}")]
    none = "none is missing; can values be missing?"
    return [*lines, _read(f'# missing = "{choice}"', none)]


def _propose_feature(profile: Profile, before: Profile, is_group: bool) -> list[DraftLine]:
    """Propose a declaration of a feature, or say why it is none."""
    values = profile.sorted_values
    if profile.is_numeric and profile.is_quantity:
        odd = ", ".join(map(repr, sorted(before.non_numeric or ())))
        note = f"mostly numbers, but also {odd}: a missing mark?" if odd else "only numbers"
        return [_read('kind = "number"', note), *_propose_bounds(profile)]
    if values and (is_group or not profile.is_numeric or profile.is_code):
        kind = _read('kind = "category"', "few different values")
        return [kind, _read(f"values = {quoted(values)}", "those that occur")]
    if profile.unsupported is not None:
        reason = f"a schema cannot read the type {profile.unsupported}"
    elif not profile.present:
        reason = "no record has a value"
    elif profile.values is not None:
        reason = "the same in every record"
    elif profile.is_mostly_numeric:
        odd = ", ".join(repr(text[:20]) for text in sorted(profile.non_numeric or ()))
        reason = f"mostly numbers, but also {odd}: write them as numbers?"
    elif profile.longest > 30:
        reason = 'free text? Then kind = "text", and no other features'
    else:
        reason = 'too many values for a category: an id? Then kind = "unit"'
    if is_group:
        example = _fill('values = ["replace", "me"]', "every value it may have")
        return [_read('kind = "category"', reason), example]
    return [_read('kind = "ignore"', reason)]


def _propose_bounds(profile: Profile) -> list[DraftLine]:
    """Propose bounds of numbers."""
    if not profile.low < profile.high:
        return [_fill("lower = 0", "all values are equal"), _fill("upper = 1", "as above")]
    low, high = profile.ends
    return [_read(f"lower = {low}", "the smallest"), _read(f"upper = {high}", "the largest")]


def _propose_edges(profile: Profile) -> list[DraftLine]:
    """Propose edges that cut a number into groups; a category needs none."""
    if not (profile.is_numeric and profile.is_quantity):
        return []
    low, high = profile.ends
    middle = low / 2 + high / 2
    if low < middle < high:
        return [_read(f"edges = {quoted([low, middle, high])}", "the bounds and the midpoint")]
    return [_fill(f"edges = {quoted([low, high])}", "the edges of the groups")]
