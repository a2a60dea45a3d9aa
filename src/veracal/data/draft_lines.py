"""Lines of a draft: what each column of a file is proposed to be."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from veracal.data.profiles import Profile
from veracal.data.schema import quoted

Reason = Literal["read from the records", "to be filled in"]
Role = Literal["target", "guess", "unit", "slot", "group"] | None

_LARGEST_WHOLE = 2**53  # above it a float has no room for all whole numbers
_MARKS: Mapping[Reason | None, str] = {
    "read from the records": "! ",
    "to be filled in": "? ",
    None: "",
}


@dataclass(frozen=True)
class Line:
    """One line of a draft: TOML, a comment, and why it must not stay as it is, if so."""

    toml: str
    note: str = ""
    reason: Reason | None = None

    def __str__(self) -> str:
        comment = _MARKS[self.reason] + self.note
        return f"{self.toml}  # {comment}" if comment else self.toml

    @property
    def field(self) -> str:
        """What the line sets, or would set if it were no comment."""
        return self.toml.strip("# []").partition(" =")[0]


def column_lines(profile: Profile, before: Profile, role: Role) -> list[Line]:
    """Propose a declaration of one column.

    Parameters
    ----------
    profile, before : Profile
        How the column looks with and without the marks suggested for missing values.
    role : Role
        What it is for, if somebody said so.
    """
    choice = "drop"
    if role == "slot":
        return [Line('kind = "slot"', "an id of a place, which a replacement inherits")]
    if role == "unit":
        lines = [Line('kind = "unit"')]
        lines.append(Line("# at_most = 1", "the most rows anybody may contribute"))
    elif role == "target":
        lines = [Line('kind = "target"'), _classes(profile)]
    elif role == "guess":
        kind = read('kind = "target"', "a guess: is it what you want to predict?")
        lines = [kind, _classes(profile)]
    elif profile.widths:
        lines = _vector(profile)
    else:
        lines = _feature(profile, before, role == "group")
        choice = "indicator"
    if lines[0].toml == 'kind = "ignore"':
        return lines
    return [*lines, _missing(profile, choice)]


def group_lines(profile: Profile) -> list[Line]:
    """Propose edges that divide people by a number; a category needs none."""
    if not (profile.is_numeric and profile.is_quantity):
        return []
    low, high = _ends(profile)
    half = low / 2 + high / 2
    if low < half < high:
        return [read(f"edges = {quoted([low, half, high])}", "the ends and half-way")]
    return [fill(f"edges = {quoted([low, high])}", "where to cut")]


def read(toml: str, note: str) -> Line:
    """Make a line that came out of the records."""
    return Line(toml, note, "read from the records")


def fill(toml: str, note: str) -> Line:
    """Make a line that says nothing yet."""
    return Line(toml, f"to be filled in: {note}", "to be filled in")


def _missing(profile: Profile, choice: str) -> Line:
    """What becomes of missing values, which may be none in these records by chance."""
    others = '; or "drop", or { constant = … }' if choice == "indicator" else ""
    if profile.marks:
        return read(f'missing = "{choice}"', f"some are missing{others}")
    return read(f'# missing = "{choice}"', "none is missing; can any be?")


def _classes(profile: Profile) -> Line:
    """The classes of a target, or as many as are needed to make sense."""
    values = _sorted(profile)
    if len(values) >= 2:
        return read(f"classes = {quoted(values)}", "those that occur")
    if values:
        return fill(f"classes = {quoted([*values, 'another class'])}", "only one class occurs")
    return fill('classes = ["replace", "me"]', "the classes, of which there are few")


def _vector(profile: Profile) -> list[Line]:
    """Lines for a column of lists."""
    if len(profile.widths) != 1 or 0 in profile.widths:
        return [read('kind = "ignore"', "lists of different lengths")]
    size = read(f"size = {profile.widths.copy().pop()}", "the length of every list")
    return [read('kind = "vector"', "lists of numbers"), size, *_bounds(profile)]


def _feature(profile: Profile, before: Profile, is_group: bool) -> list[Line]:
    """Lines for what a column seems to be."""
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
    """Say why a column is not proposed as a feature."""
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


def _bounds(profile: Profile) -> list[Line]:
    """Lines for the bounds of numbers."""
    if not profile.low < profile.high:
        return [fill("lower = 0", "no two values differ"), fill("upper = 1", "as above")]
    low, high = _ends(profile)
    return [read(f"lower = {low}", "the smallest"), read(f"upper = {high}", "the largest")]


def _ends(profile: Profile) -> tuple[float, float]:
    """The smallest and the largest number, written without a point if all are whole."""
    low, high = profile.low, profile.high
    if profile.whole and max(abs(low), abs(high)) <= _LARGEST_WHOLE:
        return int(low), int(high)
    return low, high


def _sorted(profile: Profile) -> list[str]:
    """Different values in their order, if they are few."""
    return sorted(profile.values or (), key=float if profile.is_numeric else str)
