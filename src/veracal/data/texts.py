"""Labeled sentences and pairs of sentences from tab-separated files or JSON lines."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from veracal import _checks
from veracal._types import Frozen, Progress
from veracal.data.dataset import Dataset, Group, check_learnable
from veracal.data.files import DEFAULT_LIMITS, Limits, open_file, parse_json
from veracal.data.row_digests import as_digests, digest_of_texts
from veracal.data.rows import TEXT, Label, check_classes, first_of
from veracal.errors import DataError, LimitError, SchemaError


def alias_problem(
    aliases: Mapping[str, Label], classes: Sequence[Label], marks: Collection[str] = ()
) -> tuple[str, str] | None:
    """Expected and found, if a text denotes no class or several; None if all are unambiguous.

    A class is denoted by its name and its aliases, a record without a label by a mark.
    """
    if isinstance(marks, str):
        return "a tuple of marks", repr(marks)
    names = {str(label) for label in classes}
    for text, target in aliases.items():
        if target not in classes:
            return "labels that denote declared classes", repr(target)
        if text in names:
            return "aliases that are not classes themselves", repr(text)
    for mark in marks:
        if mark in names or mark in aliases:
            return "marks of missing labels that denote no class", repr(mark)
    return None


def class_codes(aliases: Mapping[str, Label], classes: Sequence[Label]) -> dict[str, int]:
    """Return the index of the class that each text denotes."""
    known = {str(label): i for i, label in enumerate(classes)}
    return known | {text: classes.index(label) for text, label in aliases.items()}


Column = str | int
Record = Mapping[Column, str]
Lines = Iterator[tuple[int, str]]
_FIELDS_A_LINE = 32  # length of the longest line in units of the longest field
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?")


def numbered_lines(path: Path, limits: Limits, progress: Progress | None = None) -> Lines:
    r"""Yield lines and their numbers from 1, checking the limits before decoding.

    Lines end in ``\n`` or ``\r\n`` only: sentences may contain the other characters that
    Unicode defines as ends of lines.
    """
    with open_file(path, limits) as file:
        total = path.stat().st_size
        limits.check("memory_bytes", total, path)
        longest = _FIELDS_A_LINE * limits.field_bytes
        done = number = 0
        while raw := file.readline(longest + 1):
            number += 1
            where = f"{path}, line {number}"
            limits.check("rows", number, path)
            done += len(raw)
            if progress and number % 4096 == 1:
                progress(done, total)
            if len(raw) > longest:
                raise LimitError(
                    where,
                    f"a line of at most {longest:,} bytes",
                    "a longer one",
                    "If the file can be trusted, pass larger Limits(field_bytes=…).",
                )
            problem = "a zero byte, as in UTF-16 and in binary files" if b"\0" in raw else None
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as cause:
                broken = raw[cause.start : cause.end].hex(" ")
                problem = problem or f"byte {broken} at column {cause.start + 1}"
            if problem:
                raise DataError(where, "UTF-8 text", problem, "Convert the file to UTF-8.")
            yield number, text.removesuffix("\n").removesuffix("\r")
        if progress:
            progress(done, total)


def _tab_records(
    lines: Lines, path: Path, form: "TextForm", limits: Limits
) -> Iterator[tuple[str, Record]]:
    """Split lines at their tabs only, and find the columns of the form."""
    where, names, width = f"{path}: columns", [], form.width
    if form.header or width is None:
        names = next(lines)[1].split("\t")
        width = len(names)
        limits.check("columns", width, path)
        if len(set(names)) < width:
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise DataError(
                where, "different names", f"{twice[:60]!r} twice", "Rename one in the header."
            )
    indices: dict[Column, int] = {}
    for column in form.columns:
        known = column in names if isinstance(column, str) else 0 <= column < width
        if not known:
            raise _no_column(where, column, ", ".join(names) or f"{width} columns")
        indices[column] = names.index(column) if isinstance(column, str) else column
    broken = form.broken
    for number, line in lines:
        fields = line.split("\t")
        where = f"{path}, line {number}"
        if len(fields) == width:
            yield where, {column: fields[index] for column, index in indices.items()}
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


def _json_records(lines: Lines, path: Path, form: "TextForm") -> Iterator[tuple[str, Record]]:
    """Parse each line as a JSON object. Labels, groups and ids may be numbers, ids only whole."""
    for number, line in lines:
        where = f"{path}, line {number}"
        value = parse_json(line, where)
        if not isinstance(value, dict):
            raise DataError(
                where, "a JSON object", type(value).__name__, "Write one object a line."
            )
        record: dict[Column, str] = {}
        for column in form.columns:
            if column not in value:
                raise _no_column(where, column, ", ".join(value))
            field = value[column]
            if column == form.unit and isinstance(field, float):
                raise DataError(  # 7 and 7.0 may or may not be the same individual
                    f"{where}: {column}",
                    "text or a whole number, as ids are",
                    repr(field),
                    "Write ids as text.",
                )
            is_number = isinstance(field, int | float) and not isinstance(field, bool)
            if not isinstance(field, str) and (column in form.text or not is_number):
                raise DataError(
                    f"{where}: {column}",
                    "text",
                    type(field).__name__,
                    "Correct the record or the form.",
                )
            record[column] = str(field)
        yield where, record


def _no_column(where: str, column: Column, present: str) -> DataError:
    """Error for an absent column."""
    return DataError(
        where,
        f"a column {column!r}",
        present[:200],
        "Correct the columns of the form. Files without labels, such as GLUE's test files, "
        "cannot be loaded: use the train or the dev file.",
    )


@dataclass(frozen=True)
class Rating:
    """Rule that maps a number to one of two classes, by its side of a cut.

    Attributes
    ----------
    cut : float
        Numbers below it denote the first class, numbers above it the last.
    tie : str or int, optional
        Class of a number equal to the cut. None: such a row is dropped.
    """

    cut: float = 0.0
    tie: Label | None = None


@dataclass(frozen=True)
class TextForm:
    r"""Public facts about a file of labeled text.

    Attributes
    ----------
    text : tuple of one or two columns
        The sentence, or the two sentences of a pair. Columns are named as in the header
        or in the JSON objects; in tab-separated files also by their index from 0.
    label : column
    classes : tuple of str or int
        Declared labels.
    aliases : mapping of str to class
        Labels in the file that differ from the name of the class. The name of a class cannot
        be an alias.
    drop : tuple of str
        Marks of a missing label; such records are dropped. None of them is a class or an
        alias.
    rating : Rating, optional
        Rule that maps numbers in the label column to classes.
    groups : mapping of column to tuple of values
        Columns that divide the records, and their values.
    unit : column, optional
        Column of unit ids. Ids are text or, in JSON, integers: 7 and "7" are the same
        individual, 7.0 is rejected. Every record has one.
    unit_until : str
        If not empty, the id is the text before its first occurrence.
    lines : 'tsv' or 'jsonl'
        Fields between tabs, where quotation marks are ordinary characters, as in the files
        of GLUE; or one JSON object a line.
    header : bool
        Whether the first line of a tab-separated file names its columns.
    width : int, optional
        Number of columns of a file without a header.
    broken : int
        Number of lines that may be skipped because they have another number of columns: a
        known fact about a published file. With 0 they are errors.
    size : int, optional
        Public number of records. It is never compared with the real one.
    name : str, optional
        Name of the data; by default that of the file.
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
    size: int | None = None
    name: str | None = None

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
        ids = () if self.unit is None else (self.unit,)
        return (*self.text, self.label, *self.groups, *ids)

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
            return "labels that denote declared classes", repr(tie)
        numbered = any(isinstance(column, int) for column in self.columns)
        if self.lines == "jsonl" and (numbered or not self.header):
            return "names of columns for JSON objects", "indices"
        if not self.header and (self.width is None or set(map(type, self.columns)) != {int}):
            return "indices of columns and a width for a file without header", repr(
                self.columns
            )
        return None


def load_text(
    path: str | Path,
    form: TextForm,
    *,
    limits: Limits = DEFAULT_LIMITS,
    row_digests: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Load labeled sentences or pairs from a UTF-8 file, as text of shape (n, 1) or (n, 2).

    Parameters
    ----------
    row_digests : bool
        Whether to compute a digest of each record from the columns of the form.

    Raises
    ------
    DataError
        At the first line that violates the form.
    """
    path = Path(path)
    known = class_codes(form.aliases, form.classes)
    rows: list[tuple[str, ...]] = []
    codes: list[int] = []
    for where, record in _records(path, form, limits, progress):
        code = _label_code(record[form.label], form, known, f"{where}: label")
        if code is not None:
            rows.append(tuple(record[column] for column in form.columns))
            codes.append(code)
            for column, values in form.groups.items():
                if record[column] not in map(str, values):
                    raise DataError(
                        f"{where}: {column}",
                        f"one of {first_of(values)}",
                        repr(record[column][:60]),
                        "Declare the value, or correct the record.",
                    )
            if form.unit is not None and not record[form.unit].strip():
                raise DataError(
                    f"{where}: {form.unit}",
                    "an id",
                    "none",
                    "Records without an id would count as one individual: add it, or drop the "
                    "record.",
                )
    if not rows:
        raise DataError(
            path, "at least one labeled record", "none", "Name a file with records."
        )
    columns = [np.array(column, TEXT) for column in zip(*rows, strict=True)]
    n_texts = len(form.text)
    dataset = Dataset(
        np.stack(columns[:n_texts], axis=1),
        np.array(codes, np.int64),
        form.classes,
        groups={
            str(column): Group.from_values(columns[n_texts + 1 + i], values)
            for i, (column, values) in enumerate(form.groups.items())
        },
        units=None if form.unit is None else columns[-1],
        row_digests=as_digests(map(digest_of_texts, rows)) if row_digests else None,
        size=form.size,
        may_drop=form.may_drop,
        name=path.name if form.name is None else form.name,
    )
    check_learnable(dataset, path)
    return dataset


def _label_code(text: str, form: TextForm, known: Mapping[str, int], where: str) -> int | None:
    """Index of a label among the classes, or None if its row is dropped."""
    if text in form.drop:
        return None
    if form.rating is not None:
        if not _NUMBER.fullmatch(text):
            raise DataError(
                where, "a number", repr(text[:60]), "Correct the record or the form."
            )
        value, tie = float(text), form.rating.tie
        if value == form.rating.cut:
            return None if tie is None else form.classes.index(tie)
        return 0 if value < form.rating.cut else len(form.classes) - 1
    if text not in known:
        raise DataError(
            where,
            f"one of {first_of([*known, *form.drop])}",
            repr(text[:60]),
            "Declare the label, or a mark of missing labels, or correct the record.",
        )
    return known[text]


def _records(
    path: Path, form: TextForm, limits: Limits, progress: Progress | None
) -> Iterator[tuple[str, Record]]:
    """Yield the location of each record, and its columns of the form."""
    lines = numbered_lines(path, limits, progress)
    records = (
        _json_records(lines, path, form)
        if form.lines == "jsonl"
        else _tab_records(lines, path, form, limits)
    )
    for where, record in records:
        for column, value in record.items():
            if 4 * len(value) > limits.field_bytes:  # a character takes at most four bytes
                limits.check("field_bytes", len(value.encode()), f"{where}: {column}")
        if form.unit is not None and form.unit_until:
            record = {**record, form.unit: record[form.unit].partition(form.unit_until)[0]}
        yield where, record
