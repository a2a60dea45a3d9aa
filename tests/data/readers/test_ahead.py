"""Reading ahead gives the same items in the same order, and leaves no thread behind."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from veracal.data import Number, Schema, Target, scan
from veracal.data.tables import QuoteChecked, prefetch
from veracal.errors import DataError

SCHEMA = Schema({"x": Number(0, 1), "y": Target((0, 1))})


def readers() -> list[threading.Thread]:
    """Threads that read ahead now."""
    return [t for t in threading.enumerate() if t.name.startswith("reading")]


def broken(items: int) -> Iterator[int]:
    """So many items, and then an error."""
    yield from range(items)
    raise DataError("items", "more", "none", "PricedQuery for fewer.")


def test_items_come_in_their_order_and_none_is_lost() -> None:
    assert list(prefetch(range(100))) == list(range(100))
    assert list(prefetch([])) == []
    assert list(prefetch([None, 0, ""])) == [None, 0, ""]  # no item ends the stream
    assert readers() == []


def test_only_the_next_item_is_computed_ahead() -> None:
    computed = []
    stream = prefetch(computed.append(i) or i for i in range(10))  # type: ignore[func-returns-value]
    assert next(stream) == 0
    end = time.monotonic() + 120
    while len(computed) < 2 and time.monotonic() < end:
        time.sleep(0.001)
    time.sleep(0.05)
    assert computed == [0, 1]
    stream.close()
    assert computed == [0, 1] and readers() == []


def test_an_error_comes_after_the_items_before_it() -> None:
    stream, items = prefetch(broken(3)), []
    with pytest.raises(DataError, match="expected more"):
        items.extend(stream)
    assert items == [0, 1, 2] and readers() == []


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of several blocks, each of some megabytes."""
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "0.123456789012345678901234567890,1\n" * 400_000)
    return path


def test_closing_early_stops_the_reading(table: Path, monkeypatch) -> None:
    read, sizes = QuoteChecked.read, []

    def counted(file, *size):
        items = read(file, *size)
        sizes.append(len(items))
        return items

    monkeypatch.setattr(QuoteChecked, "read", counted)
    stream = scan(table, SCHEMA)
    assert len(next(stream)) > 0
    stream.close()  # type: ignore[attr-defined]
    assert readers() == []
    assert sum(sizes) <= 2 * 2**22 < table.stat().st_size  # one block, and one ahead of it


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"2,1\n", r"a number in \[0, 1\], found '2' in record 400001"),
        (b"1\n", "2 fields in each record, found 1 in one"),
        (b'0,"1\n', "a closing quotation mark"),
        (b"\xff,1\n", "expected UTF-8 text"),
        (b"0,1\xff\n", "expected UTF-8 text"),
    ],
)
def test_a_late_error_ends_the_reading(table: Path, line: bytes, message: str) -> None:
    with table.open("ab") as file:
        file.write(line)
    read: list[int] = []
    with pytest.raises(DataError, match=message):
        read.extend(map(len, scan(table, SCHEMA)))
    # The records before it; only a bad quotation mark raises as soon as it is read.
    assert sum(read) > 200_000 or b'"' in line
    assert readers() == []
