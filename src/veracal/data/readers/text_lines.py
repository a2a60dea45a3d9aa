"""Lines of text files, and what is written in them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from veracal._types import Progress
from veracal.data.limits import DEFAULT_LIMITS, Limits, opened
from veracal.data.readers.strict_json import parse_json
from veracal.errors import DataError, LimitError

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
