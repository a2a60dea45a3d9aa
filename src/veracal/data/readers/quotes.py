"""Whether the quotation marks of a CSV file are where they belong."""

import io
import weakref
from typing import BinaryIO

import numpy as np

from veracal.errors import DataError

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
        self._stopped = False
        self.failed = False  # whether it has complained
        self.lent: list[weakref.ref[memoryview]] = []  # what was read and is still in use

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def stop(self) -> None:
        """End here, whatever else the file holds: nobody wants it."""
        self._stopped = True

    def tell(self) -> int:
        """Place in the file up to which it was read."""
        return self._file.tell()

    def read(self, size: int = -1, /) -> memoryview:
        """Read some bytes, judging them as they pass.

        They are noted as lent for as long as anybody holds them, which of bytes nobody can
        tell: whoever ends the process meanwhile ends it badly.
        """
        read = memoryview(b"" if self._stopped else self._read(size))
        self.lent[:] = [*(ref for ref in self.lent if ref() is not None), weakref.ref(read)]
        return read

    def _read(self, size: int) -> bytes:
        """Read some bytes, and judge those that can be judged."""
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
                marks -= 1
            if marks % 2:
                self._inside = False
                if data[stop : stop + 1] not in (*self._ends, b""):
                    expected = "a separator or a line's end after a closing quotation mark"
                    raise self._error(expected, "more text", data, stop)
        if self._inside and opened is not None:
            self._opened_in = self._line + data.count(b"\n", 0, opened)
        self._line += data.count(b"\n")
        self._before = data[-1:] or self._before
        if last and self._inside:
            self._line = self._opened_in
            raise self._error("a closing quotation mark", "none before the file's end", b"", 0)

    def _error(self, expected: str, found: str, data: bytes, place: int) -> DataError:
        """Error that names the line of a place in the bytes at hand."""
        self.failed = True
        line = self._line + data.count(b"\n", 0, place)
        remedy = "Double the quotation marks inside a field, and put one at either end of it."
        if "quotation" not in expected:
            remedy = "Convert the line ends."
        return DataError(self._where, expected, f"{found} (line {line})", remedy)


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
