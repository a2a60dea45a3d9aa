"""Whether the quotation marks of a CSV file are where they belong."""

import io
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from veracal.errors import DataError, LimitError

_MARK, _RETURN, _FEED = b'"\r\n'


class QuoteChecked(io.RawIOBase):
    """A CSV file that complains, while it is read, of quotation marks gone astray.

    Parsers forgive: after a mark that is never closed, all further records become part of
    one field, and they are gone without a word. Here a mark opens a field only at its
    start, two stand for one inside, and what closes a field is followed by a separator or
    by the end of the line. A carriage return outside quotes must belong to a line feed.

    Parameters
    ----------
    file : binary file
    separator : str
        Character between fields.
    where : str
        The file's name, for errors.
    """

    def __init__(self, file: BinaryIO, separator: str, where: str) -> None:
        super().__init__()
        self._file, self._where = file, where
        self._ends = (separator.encode(), b"\n", b"\r")
        self._held = b""  # bytes that cannot be judged before more is seen
        self._before = b"\n"  # byte before the next one to be judged
        self._inside = False
        self._opened_in, self._line = 0, 1
        self._judged = 0  # bytes
        self.ended = 0  # place after the last record that is known to be whole

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def tell(self) -> int:
        """Place in the file up to which it was read."""
        return self._file.tell()

    def read(self, size: int = -1, /) -> bytes:
        """Read some bytes, judging them as they pass."""
        data = self._file.read(size)
        judged = self._held + data
        if data:
            # Marks and returns at the end may go on in what is read next.
            kept = len(judged) - len(judged.rstrip(b'"\r'))
            self._held = judged[len(judged) - kept :] if kept else b""
            judged = judged[: len(judged) - kept]
        self._judge(judged, last=not data)
        return data

    def _judge(self, data: bytes, *, last: bool) -> None:
        """Follow the marks through some bytes."""
        opened = None  # where in these bytes the field was opened that is open now
        outside, texts = 0, []  # where text outside of marks begins now, and all before it
        for start, stop in _events(data):
            if data[start] == _RETURN:
                if not self._inside:
                    raise self._error("lines that end in LF or CRLF", "a lone CR", data, start)
                continue
            marks = stop - start
            if not self._inside:
                if (data[start - 1 : start] or self._before) not in self._ends:
                    continue  # a mark in the middle of a plain field stands for itself
                self._inside, opened = True, start
                texts.append((outside, start))
                marks -= 1
            if marks % 2:
                self._inside, outside = False, stop
                if data[stop : stop + 1] not in (*self._ends, b""):
                    expected = "a separator or a line's end after a closing quotation mark"
                    raise self._error(expected, "more text", data, stop)
        if not self._inside:
            texts.append((outside, len(data)))
        self._note_end(data, texts)
        if self._inside and opened is not None:
            self._opened_in = self._line + data.count(b"\n", 0, opened)
        self._line += data.count(b"\n")
        self._before = data[-1:] or self._before
        if last and self._inside:
            self._line = self._opened_in
            raise self._error("a closing quotation mark", "none before the file's end", b"", 0)

    def _note_end(self, data: bytes, outside: list[tuple[int, int]]) -> None:
        """Remember where the last record in some bytes ends: at a line feed outside marks."""
        for start, stop in reversed(outside):
            if (place := data.rfind(b"\n", start, stop)) >= 0:
                self.ended = self._judged + place + 1
                break
        self._judged += len(data)

    def _error(self, expected: str, found: str, data: bytes, place: int) -> DataError:
        """Error that names the line of a place in the bytes at hand."""
        line = self._line + data.count(b"\n", 0, place)
        remedy = "Double the quotation marks inside a field, and put one at either end of it."
        if "quotation" not in expected:
            remedy = "Convert the line ends."
        return DataError(self._where, expected, f"{found} (line {line})", remedy)


def whole_records(file: QuoteChecked, block: int, where: str) -> Iterator[bytes]:
    """Pieces of a file of about a block each, cut between records.

    Raises
    ------
    LimitError
        For a record longer than a block.
    """
    rest, start = b"", 0
    while data := file.read(block):
        rest += data
        if file.ended > start:
            piece, rest = rest[: file.ended - start], rest[file.ended - start :]
            start = file.ended
            if piece.strip(b"\r\n"):
                yield piece
        if len(rest) > block:
            while file.ended <= start and file.read(block):
                pass  # a mark that is never closed is told as that
            raise LimitError(
                where,
                f"records of at most {block:,} bytes",
                "a longer one",
                "Pass Limits with a larger field_bytes, a quarter of that.",
            )
    if rest.strip(b"\r\n"):
        yield rest


def _events(data: bytes) -> list[tuple[int, int]]:
    """Where quotation marks in a row and lone carriage returns start and stop, in order."""
    if b'"' not in data and b"\r" not in data:
        return []
    values = np.frombuffer(data, np.uint8)
    marks = np.flatnonzero(values == _MARK)
    starts = marks[np.diff(marks, prepend=-2) > 1]
    stops = marks[np.diff(marks, append=len(data) + 1) > 1] + 1
    returns = np.flatnonzero(values == _RETURN)
    followed = values[np.minimum(returns + 1, len(values) - 1)]
    lone = returns[followed != _FEED]
    events = zip(
        [*starts.tolist(), *lone.tolist()], [*stops.tolist(), *(lone + 1).tolist()], strict=True
    )
    return sorted(events) if len(lone) else list(events)
