"""Tables in ARFF and in KEEL's dialect of it, turned into CSV."""

import csv
import io
import re

from veracal.errors import DataError

_ATTRIBUTE = re.compile(r"@attribute\s+(?P<name>'[^']+'|\S+)\s+(?P<kind>.+)", re.IGNORECASE)
_NUMERIC = re.compile(
    r"(?:numeric|real|integer)\s*(?:\[\s*(?P<lower>[^,\]]+),(?P<upper>[^\]]+)\])?",
    re.IGNORECASE,
)


def arff_to_csv(data: bytes, *, header: bool = True, where: str = "ARFF file") -> bytes:
    """Convert an ARFF file of numbers and nominal values.

    Parameters
    ----------
    data : bytes
        The file. KEEL's bounds, as in ``integer [0, 55]``, are read and enforced.
    header : bool
        Whether the CSV's first line names the columns.
    where : str
        Name of the file, for errors.

    Raises
    ------
    DataError
        On anything the file's own declarations do not allow.
    """
    columns, records = _parse(_text(data, where), where)
    for number, record in enumerate(records, start=1):
        _check(record, columns, f"{where}: record {number}")
    result = io.StringIO()
    writer = csv.writer(result, lineterminator="\n")
    writer.writerows([list(columns), *records] if header else records)
    return result.getvalue().encode()


def _text(data: bytes, where: str) -> str:
    """Decode the file."""
    try:
        return data.decode()
    except UnicodeDecodeError as cause:
        raise _wrong(where, "UTF-8 text", f"byte {data[cause.start]:#04x}") from cause


def _parse(text: str, where: str) -> tuple[dict[str, str], list[list[str]]]:
    """Split a file into its columns, name by declared kind, and its records."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("%")]
    starts = [i for i, line in enumerate(lines) if line.lower() == "@data"]
    if not starts or not lines[0].lower().startswith("@relation"):
        raise _wrong(where, "a line @relation and a line @data", "none")
    columns: dict[str, str] = {}
    for line in lines[1 : starts[0]]:
        match = _ATTRIBUTE.fullmatch(line)
        if match is None or (name := match["name"].strip("'")) in columns:
            raise _wrong(where, "attributes of different names", line[:60])
        columns[name] = match["kind"].strip()
    return columns, [_fields(line) for line in lines[starts[0] + 1 :]]


def _fields(line: str) -> list[str]:
    """Split a record or a list of values at its commas."""
    reader = csv.reader([line], quotechar="'", skipinitialspace=True)
    return [field.strip() for field in next(reader)]


def _check(record: list[str], columns: dict[str, str], where: str) -> None:
    """Raise unless each field is of its declared kind; ``?`` is a missing value."""
    if len(record) != len(columns):
        raise _wrong(where, f"{len(columns)} fields", str(len(record)))
    for field, (name, kind) in zip(record, columns.items(), strict=True):
        if field != "?" and not _allowed(field, kind, f"{where}: {name}"):
            raise _wrong(f"{where}: {name}", kind[:80], repr(field)[:40])


def _allowed(field: str, kind: str, where: str) -> bool:
    """Tell whether a field is of a declared kind."""
    if kind.startswith("{") and kind.endswith("}"):
        return field in _fields(kind[1:-1])
    match = _NUMERIC.fullmatch(kind)
    if match is None:
        raise _wrong(where, "a numeric or nominal attribute", kind[:60])
    try:
        number = float(field)
        bounds = (float(match["lower"]), float(match["upper"])) if match["lower"] else None
    except ValueError:
        return False
    return abs(number) < float("inf") if bounds is None else bounds[0] <= number <= bounds[1]


def _wrong(where: str, expected: str, found: str) -> DataError:
    """Error for a file that breaks its own rules."""
    return DataError(where, expected, found, "Correct the file, or convert it to CSV yourself.")
