"""A first proposal of a schema, which somebody must still make true."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from veracal._types import Progress
from veracal.data.draft_lines import Line, Reason, Role, column_lines, fill, group_lines, read
from veracal.data.limits import DEFAULT_LIMITS, Limits
from veracal.data.profiles import Profile, look
from veracal.data.schema import FORMAT, quoted
from veracal.data.schema_checks import SEPARATORS
from veracal.errors import DataError

_TARGET_NAMES = ("target", "label", "class", "y", "outcome", "diagnosis")
_OPENING = """\
# A DRAFT, made by looking at the records. Lines marked '!' were read from them:
# put what is publicly known in their place (a code book, the law, a device's
# range). Lines marked '?' are to be filled in. Then delete the next line.
draft = true"""
_FEATURES = {f'kind = "{kind}"' for kind in ("number", "category", "vector")}


@dataclass(frozen=True)
class Warned:
    """A field of a draft that cannot stay as it is: where it stands, and why."""

    where: str
    field: str
    reason: Reason


@dataclass(frozen=True)
class Draft:
    """Text of a proposed schema, which loads only once ``draft = true`` is deleted from it."""

    text: str
    warnings: tuple[Warned, ...]


@dataclass(frozen=True)
class _Roles:
    """What columns are for, as far as somebody said so."""

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
        Columns to predict, and that say whom a row belongs to. Without a target one is
        guessed by its name, or else the last column is taken.
    slot : str, optional
        In place of a unit, under replace-one: column with the id of the place that a row
        holds, which a replacement inherits.
    groups : sequence of str
        Columns by which results will be told apart.
    header : bool
        Whether the first line of a CSV file names its columns.
    separator : str, optional
        Character between fields of a CSV file; by default a comma, and a tab for ``.tsv``.

    Guarantees
    ----------
    None: a draft is made of what the records say, so publishing it, or training by it,
    leaks. Each such field carries a warning, what a column is taken for and that nothing
    in it was missing included, and the text is refused as a schema until somebody deletes
    its line ``draft = true``.
    """
    path = Path(path)
    if separator is not None and not (len(separator) == 1 and separator in SEPARATORS):
        raise DataError(
            "separator",
            "one character that can stand between fields",
            repr(separator),
            "Name a comma, semicolon, tab, bar, colon or blank.",
        )
    profiles = look(path, header=header, separator=separator, limits=limits, progress=progress)
    if unit is not None and slot is not None:
        raise DataError(
            str(path),
            "a unit (for add-remove) or a slot (for replace-one)",
            "both",
            "Name one of them.",
        )
    roles = _roles(path, profiles, target, unit, slot, tuple(dict.fromkeys(groups)))
    profiles = _with_classes(profiles, roles.target)
    return _written(path, profiles, roles, header, separator)


def _with_classes(profiles: dict[str, Profile], target: str) -> dict[str, Profile]:
    """Take a mark for a class where a column to predict would have one class without it.

    Classes are written as + and - more often than labels are missing as -.
    """
    found = profiles[target]
    marks = found.marks - {""}
    if len(found.values or ()) != 1 or found.is_numeric or not marks:
        return profiles
    others = {name: replace(each, marks=each.marks - marks) for name, each in profiles.items()}
    values = {*(found.values or ()), *marks}
    kept = replace(found, values=values, marks=found.marks - marks)
    return {**others, target: kept}


def _roles(
    path: Path,
    profiles: Mapping[str, Profile],
    target: str | None,
    unit: str | None,
    slot: str | None,
    groups: tuple[str, ...],
) -> _Roles:
    """Settle what columns are for, or raise."""
    for name in (*groups, *(word for word in (target, unit, slot) if word is not None)):
        if name not in profiles:
            known = ", ".join(map(repr, list(profiles)[:12]))
            if len(profiles) > 12:
                known += f", …, {list(profiles)[-1]!r}"  # where the target often is
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
    left = [name for name, p in profiles.items() if not (p.foreign or p.widths)]
    left = [name for name in left if name not in (unit, slot, *groups)]
    named = [name for name in left if name.lower() in _TARGET_NAMES]
    guess = target or next(iter(named or left[-1:]), None)
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
    """Raise if a column has two roles that do not go together."""
    if roles.target in (roles.unit, roles.slot):
        raise DataError(
            f"{path}: column {roles.target!r}",
            "one column to predict, another that says whom a row belongs to",
            "one for both",
            "Name two.",
        )
    for name in roles.groups:
        taken = {roles.target: "the target", roles.unit: "the unit", roles.slot: "the slot"}
        role = taken.get(name)
        if role is not None:
            raise DataError(
                f"{path}: group {name!r}",
                "an attribute that people share, beside the target and the unit",
                f"{role} itself",
                "Name another column.",
            )


def _written(
    path: Path,
    profiles: Mapping[str, Profile],
    roles: _Roles,
    header: bool,
    separator: str | None,
) -> Draft:
    """Write the proposal down."""
    suggested: set[str] = set()
    for name, profile in profiles.items():
        if name not in (roles.target, roles.unit, roles.slot):
            suggested |= profile.suggested_marks
    seen = {name: profile.without(suggested) for name, profile in profiles.items()}
    columns = {
        name: column_lines(profile, profiles[name], roles.of(name))
        for name, profile in seen.items()
    }
    sections = {"schema": list(_heading(path, seen, columns.values(), header, separator))}
    for name, lines in columns.items():
        sections[f"column {name!r}"] = [Line(f"\n[columns.{quoted(name)}]"), *lines]
    for name in roles.groups:
        title = [Line(f"\n[groups.{quoted(name)}]"), Line(f"column = {quoted(name)}")]
        sections[f"group {name!r}"] = [*title, *group_lines(seen[name])]
    text = "\n".join(str(line) for lines in sections.values() for line in lines)
    return Draft(text + "\n", tuple(_warnings(sections)))


def _warnings(sections: Mapping[str, Iterable[Line]]) -> Iterator[Warned]:
    """One warning for each line that must not stay as it is."""
    for where, lines in sections.items():
        for line in lines:
            if line.reason is not None:
                yield Warned(where, line.field, line.reason)


def _heading(
    path: Path,
    profiles: Mapping[str, Profile],
    columns: Iterable[Sequence[Line]],
    header: bool,
    separator: str | None,
) -> Iterator[Line]:
    """Lines about the table as a whole."""
    yield Line(_OPENING)
    yield Line(f"format = {FORMAT}")
    # A name whose bytes are no text cannot stand in TOML.
    yield Line(f"name = {quoted(path.stem.encode(errors='replace').decode())}")
    yield Line("# size = 1000", "a public figure for the number of rows: do not count them")
    yield Line("# norm = 1.0", "a public bound on the Euclidean norm of a row of X, if any")
    if not header:
        yield Line("header = false")
    if separator is not None:
        yield Line(f"separator = {quoted(separator)}")
    marks = sorted(set().union(*(profile.marks for profile in profiles.values())))
    if marks:
        yield read(f"missing = {quoted(marks)}", "spellings of a missing value that occur")
    else:
        yield read('# missing = [""]', "no missing value occurs; can any?")
    if {lines[0].toml for lines in columns}.isdisjoint(_FEATURES):
        yield fill("# [columns]", "none looks like a feature; declare one")
