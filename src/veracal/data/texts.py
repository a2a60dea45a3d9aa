"""What files write where they mean a class.

Lines of text files, and what is written in them.

Sentences and pairs of sentences with a label, from tab-separated or JSON lines.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from veracal import _checks
from veracal._types import Frozen, Progress
from veracal.data.dataset import Dataset, Group, check_learnable
from veracal.data.files import DEFAULT_LIMITS, Limits, opened, parse_json
from veracal.data.labels import TEXT, Label, check_classes
from veracal.data.row_digests import as_digests, digest_of_texts
from veracal.errors import DataError, LimitError, SchemaError


def alias_problem(
    aliases: Mapping[str, Label], classes: Sequence[Label], marks: Collection[str] = ()
) -> tuple[str, str] | None:
    """Say what was expected and found where what a file writes has two meanings, or none.

    Parameters
    ----------
    aliases : mapping of str to class
        What the file writes, and the class it means.
    classes : sequence of str or int
        Each is also written as it is.
    marks : collection of str
        What the file writes where a record has no label.
    """
    if isinstance(marks, str):
        return "a tuple of marks", repr(marks)
    written = {str(label) for label in classes}
    for text, target in aliases.items():
        if target not in classes:
            return "labels that stand for declared classes", repr(target)
        if text in written:
            return "aliases that are not classes themselves", repr(text)
    for mark in marks:
        if mark in written or mark in aliases:
            return "marks of missing labels that stand for no class", repr(mark)
    return None


def coded(aliases: Mapping[str, Label], classes: Sequence[Label]) -> dict[str, int]:
    """Return the position of the class that each text means."""
    place = {label: i for i, label in enumerate(classes)}
    known = {str(label): i for label, i in place.items()}
    return known | {text: place[label] for text, label in aliases.items()}


Column = str | int
Record = Mapping[Column, str]
Lines = Iterator[tuple[int, str]]
_FIELDS_A_LINE = 32  # longest line, in longest fields


def numbered_lines(path: Path, limits: Limits, progress: Progress | None = None) -> Lines:
    r"""Yield lines and their numbers from 1, each within the limits before it is decoded.

    Lines end in ``\n`` or ``\r\n`` and nowhere else: a file of sentences may well hold
    the other characters that Unicode counts as ends of lines.
    """
    with opened(path, limits) as file:
        total = path.stat().st_size
        limits.check("memory_bytes", total, path)
        longest = _FIELDS_A_LINE * limits.field_bytes
        done = number = 0
        while raw := file.readline(longest + 1):
            number += 1
            limits.check("rows", number, path)
            done += len(raw)
            if progress and number % 4096 == 1:
                progress(done, total)
            yield number, _decoded(raw, longest, f"{path}, line {number}", first=number == 1)
        if progress:
            progress(done, total)


def read_names(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> tuple[str, ...]:
    """Read a published list of names, one a line, such as the classes of a collection."""
    names: dict[str, None] = {}
    for number, line in numbered_lines(Path(path), limits):
        name = line.strip()
        if name in names:
            raise DataError(
                f"{path}, line {number}", "each name once", repr(name[:60]), "Remove the line."
            )
        if name:
            names[name] = None
    return tuple(names)


def tab_records(
    lines: Lines,
    path: Path,
    columns: Sequence[Column],
    *,
    width: int | None,
    broken: int,
    limits: Limits,
) -> Iterator[tuple[str, Record]]:
    """Cut lines at their tabs, and nowhere else.

    Parameters
    ----------
    width : int, optional
        Number of columns of a file without a header. None: the first line names them.
    broken : int
        Most lines of another width that are left out instead of refused.
    """
    width, places = _layout(lines, path, columns, width, limits)
    for number, line in lines:
        fields = line.split("\t")
        where = f"{path}, line {number}"
        if len(fields) == width:
            yield where, {column: fields[place] for column, place in places.items()}
        elif broken > 0:
            broken -= 1
        else:
            raise DataError(
                where,
                f"{width} columns",
                str(len(fields)),
                "Correct the line; if the published file is known to have such lines, declare "
                "how many by dataclasses.replace(form, broken=…).",
            )


def json_records(
    lines: Lines,
    path: Path,
    columns: Sequence[Column],
    *,
    texts: Collection[Column],
    ids: Collection[Column] = (),
) -> Iterator[tuple[str, Record]]:
    """Parse each line as a JSON object.

    Parameters
    ----------
    texts : collection of columns
        Must be strings; others may be numbers.
    ids : collection of columns
        Strings or whole numbers: of 7 and 7.0 nobody knows whether they are one person.
    """
    for number, line in lines:
        where = f"{path}, line {number}"
        value = parse_json(line, where)
        if not isinstance(value, dict):
            raise DataError(
                where, "a JSON object", type(value).__name__, "Write one object a line."
            )
        for column in columns:
            if column not in value:
                raise _no_column(where, column, ", ".join(value))
        for column in ids:
            if isinstance(value[column], float):
                raise DataError(
                    f"{where}: {column}",
                    "text or a whole number, as ids are",
                    repr(value[column]),
                    "Write ids as text.",
                )
        yield where, {c: _scalar(value[c], c, c in texts, where) for c in columns}


def _decoded(raw: bytes, longest: int, where: str, *, first: bool) -> str:
    """Turn the bytes of a line into text without its end."""
    if len(raw) > longest:
        raise LimitError(
            where,
            f"a line of at most {longest:,} bytes",
            "a longer one",
            "Nothing was kept. If the file can be trusted, pass larger Limits(field_bytes=…).",
        )
    if b"\0" in raw:
        raise _not_utf8(where, "a zero byte, as in UTF-16 and in binary files")
    try:
        text = raw.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as cause:
        broken = raw[cause.start : cause.end].hex(" ")
        raise _not_utf8(where, f"byte {broken} at column {cause.start + 1}") from cause
    return text.removesuffix("\n").removesuffix("\r")


def _layout(
    lines: Lines, path: Path, columns: Sequence[Column], width: int | None, limits: Limits
) -> tuple[int, dict[Column, int]]:
    """Return the number of columns, and the place of each that is read."""
    where, names = f"{path}: columns", []
    if width is None:
        names = next(lines)[1].split("\t")
        width = len(names)
        limits.check("columns", width, path)
        if len(set(names)) < width:
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise DataError(
                where, "different names", f"{twice[:60]!r} twice", "Rename one in the header."
            )
    places: dict[Column, int] = {}
    for column in columns:
        known = column in names if isinstance(column, str) else 0 <= column < width
        if not known:
            raise _no_column(where, column, ", ".join(names) or f"{width} columns")
        places[column] = names.index(column) if isinstance(column, str) else column
    return width, places


def _scalar(value: object, column: Column, only_text: bool, where: str) -> str:
    """Return a field of a JSON object as text."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(value, str) or (number and not only_text):
        return str(value)
    raise DataError(
        f"{where}: {column}", "text", type(value).__name__, "Correct the record or the form."
    )


def _not_utf8(where: str, found: str) -> DataError:
    """Error for bytes that are not text."""
    return DataError(where, "UTF-8 text", found, "Convert the file to UTF-8.")


def _no_column(where: str, column: Column, found: str) -> DataError:
    """Error for a column that is not there."""
    return DataError(
        where,
        f"a column {column!r}",
        found[:200],
        "Name the right columns in the form. Files without labels, as GLUE's test files are, "
        "cannot be loaded: take the train or the dev file.",
    )


_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?")


@dataclass(frozen=True)
class Rating:
    """Rule that turns a number into one of two classes, by its side of a cut.

    Attributes
    ----------
    cut : float
        Numbers below it are of the first class, numbers above it of the last.
    tie : str or int, optional
        Class of a number equal to the cut. None: such a row is left out.
    """

    cut: float = 0.0
    tie: Label | None = None


@dataclass(frozen=True)
class TextForm:
    r"""What is publicly known about a file of labelled text.

    Attributes
    ----------
    text : tuple of one or two columns
        The sentence, or the two sentences of a pair. Columns are named as in the header
        or in the JSON objects; in tab-separated files they may also be given by position,
        from 0.
    label : column
    classes : tuple of str or int
        Declared labels.
    aliases : mapping of str to class
        Labels as the file writes them, where that is not the name of the class. What is
        the name of a class cannot be an alias.
    drop : tuple of str
        Marks that stand where a record has no label; such records are left out. None of
        them is a class or an alias.
    rating : Rating, optional
        If the label column holds numbers, how they become classes.
    groups : mapping of column to tuple of values
        Columns that divide the records, and the values each may have.
    unit : column, optional
        Column that says whom a row belongs to. Ids are text or, in JSON, whole numbers:
        7 and "7" are the same person, 7.0 is refused. Every record has one.
    unit_until : str
        If not empty, only what stands before the first occurrence of it names the unit.
    lines : 'tsv' or 'jsonl'
        Fields between tabs, where quotation marks are ordinary characters, as in the files
        of GLUE; or one JSON object a line.
    header : bool
        Whether the first line of a tab-separated file names its columns.
    width : int, optional
        Number of columns of a file without a header.
    broken : int
        Most lines that may be left out because they do not have the columns of the others:
        a figure that is known about the published file. Usually 0: they are errors.
    """

    text: tuple[Column, ...]
    label: Column
    classes: tuple[Label, ...]
    aliases: Mapping[str, Label] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    rating: Rating | None = None
    groups: Mapping[Column, tuple[Label, ...]] = field(default_factory=dict)
    unit: Column | None = None
    unit_until: str = ""
    lines: Literal["tsv", "jsonl"] = "tsv"
    header: bool = True
    width: int | None = None
    broken: int = 0

    def __post_init__(self) -> None:
        _checks.one_of(("tsv", "jsonl"), lines=self.lines)
        _checks.whole(least=0, broken=self.broken)
        object.__setattr__(self, "classes", check_classes(self.classes, "text form"))
        object.__setattr__(self, "aliases", Frozen(self.aliases))
        object.__setattr__(self, "groups", Frozen(self.groups))
        if problem := self._problem():
            raise SchemaError("text form", *problem, "Correct the form.")

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns that are read."""
        return (*self.text, self.label, *self.groups, *_ids(self))

    @property
    def may_drop(self) -> bool:
        """Whether reading by this form may leave records out."""
        return bool(self.drop or self.broken or (self.rating and self.rating.tie is None))

    def _problem(self) -> tuple[str, str] | None:
        """Say what was expected and found where the form contradicts itself."""
        if len(self.text) not in (1, 2):
            return "one or two columns of text", str(len(self.text))
        if problem := alias_problem(self.aliases, self.classes, self.drop):
            return problem
        tie = None if self.rating is None else self.rating.tie
        if tie is not None and tie not in self.classes:
            return "labels that stand for declared classes", repr(tie)
        numbered = any(isinstance(column, int) for column in self.columns)
        if self.lines == "jsonl" and (numbered or not self.header):
            return "columns of JSON objects by their names", "positions"
        if not self.header and (self.width is None or set(map(type, self.columns)) != {int}):
            return "positions of columns and a width for a file without header", repr(
                self.columns
            )
        return None


def load_text(
    path: str | Path,
    form: TextForm,
    *,
    limits: Limits = DEFAULT_LIMITS,
    size: int | None = None,
    name: str | None = None,
    row_digests: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Load labelled sentences or pairs.

    Parameters
    ----------
    path : path
        A UTF-8 file, with or without byte-order mark.
    form : TextForm
        Its columns and classes; ``veracal.data.sets.text`` has many ready-made.
    limits : Limits
        What is refused as too large.
    size : int, optional
        Declared number of rows.
    name : str, optional
        What to call the data set; by default as the file.
    row_digests : bool
        Whether to identify each record, by the form's columns as they are written.
    progress : callable, optional
        Called with the bytes read, and the bytes there are.

    Returns
    -------
    Dataset
        With text of shape (n, 1) or (n, 2).

    Raises
    ------
    DataError
        Naming the first line that is not as the form says.
    """
    path = Path(path)
    labels = _Labels(form)
    rows: list[tuple[str, ...]] = []
    codes: list[int] = []
    for where, record in _records(path, form, limits, progress):
        code = labels.code(record[form.label], where)
        if code is not None:
            _check_owner(record, form, where)
            rows.append(tuple(record[column] for column in form.columns))
            codes.append(code)
    if not rows:
        raise DataError(
            str(path), "at least one labelled record", "none", "Name a file with records."
        )
    dataset = _dataset(rows, codes, form, size, path.name if name is None else name)
    if row_digests:
        dataset = dataset._changed(row_digests=as_digests(map(digest_of_texts, rows)))
    check_learnable(dataset, path)
    return dataset


def _dataset(
    rows: Sequence[tuple[str, ...]],
    codes: Sequence[int],
    form: TextForm,
    size: int | None,
    name: str,
) -> Dataset:
    """Gather records, each the columns of the form in its order, into a data set."""
    columns = [np.array(column, TEXT) for column in zip(*rows, strict=True)]
    first = len(form.text) + 1
    return Dataset(
        np.stack(columns[: len(form.text)], axis=1),
        np.array(codes, np.int64),
        form.classes,
        groups={
            str(column): Group.from_values(columns[first + i], values)
            for i, (column, values) in enumerate(form.groups.items())
        },
        units=None if form.unit is None else columns[-1],
        size=size,
        may_drop=form.may_drop,
        name=name,
    )


def _check_owner(record: Record, form: TextForm, where: str) -> None:
    """Refuse a record that belongs to nobody, or to a group that was not declared."""
    if form.unit is not None and not record[form.unit].strip():
        raise DataError(
            f"{where}: {form.unit}",
            "an id",
            "none",
            "All who lack one would count as one person: give each an id, or drop the record.",
        )
    for column, values in form.groups.items():
        if record[column] not in map(str, values):
            listed = ", ".join(map(repr, values[:8])) + ", …" * (len(values) > 8)
            raise DataError(
                f"{where}: {column}",
                f"one of {listed}",
                repr(record[column][:60]),
                "Declare the value, or correct the record.",
            )


class _Labels:
    """Codes of the labels a form declares."""

    def __init__(self, form: TextForm) -> None:
        self.form = form
        self.known: dict[str, int | None] = {**coded(form.aliases, form.classes)}
        self.known.update(dict.fromkeys(form.drop))
        self.tie = None
        if form.rating is not None and form.rating.tie is not None:
            self.tie = form.classes.index(form.rating.tie)

    def code(self, text: str, where: str) -> int | None:
        """Position of a label among the classes, or None if its row is left out."""
        if self.form.rating is not None and text not in self.form.drop:
            return self._rated(text, self.form.rating, where)
        if text not in self.known:
            words = ", ".join(map(repr, list(self.known)[:8]))
            raise DataError(
                f"{where}: label",
                f"one of {words}{', …' if len(self.known) > 8 else ''}",
                repr(text[:60]),
                "Declare the label, or a mark for records without one, or correct the record.",
            )
        return self.known[text]

    def _rated(self, text: str, rating: Rating, where: str) -> int | None:
        """Side of the cut on which a number lies."""
        if not _NUMBER.fullmatch(text):
            raise DataError(
                f"{where}: label",
                "a number",
                repr(text[:60]),
                "Correct the record or the form.",
            )
        value = float(text)
        if value == rating.cut:
            return self.tie
        return 0 if value < rating.cut else len(self.form.classes) - 1


def _records(
    path: Path, form: TextForm, limits: Limits, progress: Progress | None
) -> Iterator[tuple[str, Record]]:
    """Yield the place of each record, and the columns of the form in it."""
    lines = numbered_lines(path, limits, progress)
    records = (
        json_records(lines, path, form.columns, texts=form.text, ids=_ids(form))
        if form.lines == "jsonl"
        else tab_records(
            lines,
            path,
            form.columns,
            width=None if form.header else form.width,
            broken=form.broken,
            limits=limits,
        )
    )
    for where, record in records:
        for column, value in record.items():
            if 4 * len(value) > limits.field_bytes:  # a character takes at most four bytes
                limits.check("field_bytes", len(value.encode()), f"{where}: {column}")
        if form.unit is not None and form.unit_until:
            record = {**record, form.unit: record[form.unit].partition(form.unit_until)[0]}
        yield where, record


def _ids(form: TextForm) -> tuple[Column, ...]:
    """Columns that tell people apart."""
    return () if form.unit is None else (form.unit,)
