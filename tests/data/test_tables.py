"""Quotation marks gone astray are noticed, and those that are right are not."""

import csv
import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veracal.data import Ignore, Number, Schema, Target, Text, UnitColumn, load, scan
from veracal.data.tables import QuoteChecked, prefetch, split_records
from veracal.errors import DataError, LimitError


def pass_through(data: bytes, step: int) -> bytes:
    """Read bytes through the check, so many at a time."""
    file = QuoteChecked(io.BytesIO(data), ",", "t.csv")
    parts = []
    while part := file.read(step):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "text",
    [
        'a,b\n"x, y",2\n',
        'a,b\n"say ""hi""",2\r\n"",""\r\n',
        'a,b\n"two\nlines","""quoted"""\n',
        'a,b\n5" pipe,12"\n',  # quotation marks inside an unquoted field are literal
        'a,b\n"last"',
        'a,b\n"a\rb",1\n',
        '"",""',
    ],
)
def test_sound_files_pass_unchanged(text: str, step: int) -> None:
    assert pass_through(text.encode(), step) == text.encode()


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('a,b\n1,"oops\n2,3\n', r"closing quotation mark, found none .*\(line 2\)"),
        ('a,b\n1,2\n"x""\n2,3\n', r"found none before the file's end \(line 3\)"),
        ('a,b\n"x" y,2\n', r"after a closing quotation mark, found more text \(line 2\)"),
        ('a,b\n1,"q\n2,"ok\n', r"more text \(line 3\)"),
        ("a,b\nfoo\rbar,1\n", r"a lone CR \(line 2\)"),
        ("a,b\r1,2\r", r"a lone CR \(line 1\)"),
    ],
)
def test_marks_gone_astray_are_noticed(text: str, complaint: str, step: int) -> None:
    with pytest.raises(DataError, match=complaint):
        pass_through(text.encode(), step)


FIELDS = st.text(st.sampled_from('ab",\n é'), max_size=6)


@given(st.lists(st.lists(FIELDS, min_size=2, max_size=2), max_size=6), st.integers(1, 9))
def test_what_a_csv_writer_writes_always_passes(rows: list[list[str]], step: int) -> None:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    data = buffer.getvalue().encode()
    assert pass_through(data, step) == data


SCHEMA = Schema(
    {"x": Number(0, 9), "y": Target(("a", "b")), "n": Ignore()},
)


def loaded(folder: Path, text: str, schema: Schema = SCHEMA) -> object:
    """Load a CSV file with this content."""
    (folder / "t.csv").write_text(text, newline="")
    return load(folder / "t.csv", schema=schema)


def test_no_record_is_swallowed_by_a_stray_mark(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="closing quotation mark"):
        loaded(tmp_path, 'x,y,n\n1,a,k\n2,b,"oops\n3,a,k\n4,b,k\n')
    rows = "1,a,k\n2,b,k\n" * 200_000
    with pytest.raises(DataError, match=r"\(line 400002\)"):
        loaded(tmp_path, "x,y,n\n" + rows + '2,b,"oops\n' + rows)


def test_types_are_never_guessed(tmp_path: Path) -> None:
    schema = Schema({"u": UnitColumn(), "x": Number(0, 9), "y": Target(("a", "b"))})
    body = "01,1,a\n1,2,b\n001,3,a\n"
    data = loaded(tmp_path, "u,x,y\n" + body, schema)
    assert data.units.tolist() == ["01", "1", "001"]  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="an empty line"):
        loaded(tmp_path, "\nu,x,y\n" + body, schema)
    with pytest.raises(DataError, match="first line"):
        loaded(tmp_path, '"a\nb",u,y\n1,01,a\n2,1,b\n', schema)


def test_long_fields_are_a_matter_of_limits(tmp_path: Path) -> None:
    from veracal.data import Limits

    (tmp_path / "t.csv").write_text("t,y\n" + "z" * 5_000_000 + ",a\nq,b\n")
    schema = Schema({"t": Text(), "y": Target(("a", "b"))})
    with pytest.raises(DataError, match="field_bytes"):
        load(tmp_path / "t.csv", schema=schema)
    data = load(tmp_path / "t.csv", schema=schema, limits=Limits(field_bytes=2**24))
    assert len(data.X[0, 0]) == 5_000_000


def records(data):
    """Rows as the standard library reads them."""
    return list(csv.reader(io.StringIO(data.decode(), newline="")))


def pieces(data, block):
    """How a file is cut."""
    return list(split_records(QuoteChecked(io.BytesIO(data), ",", "t.csv"), block, "t.csv"))


@pytest.mark.parametrize("block", [12, 13, 17, 40, 1000])
def test_a_file_is_cut_between_records(block):
    data = b'a,b\r\n"x\n,y",1\r\n5"6,2\n"",3\n"""\n""",4\n\n\nlast,"5\n"'
    cut = pieces(data, block)
    assert b"".join(cut).replace(b"\n\n\n", b"\n") == data.replace(b"\n\n\n", b"\n")
    rows = [row for piece in cut for row in records(piece)]
    assert [row for row in rows if row] == [row for row in records(data) if row]
    assert len(cut) > 1 or block == 1000


@given(
    st.lists(
        st.lists(st.text('a",\n\r', max_size=4), min_size=2, max_size=2), min_size=1, max_size=8
    ),
    st.integers(1, 30),
)
def test_whatever_is_written_comes_back_in_pieces(rows, more):
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    data = text.getvalue().encode()
    longest = max(len(f'"{a}","{b}"'.replace('"', '""')) for a, b in rows)
    cut = pieces(data, longest + more)
    assert b"".join(cut) == data
    assert [row for piece in cut for row in records(piece)] == rows


def test_a_record_longer_than_a_block():
    with pytest.raises(LimitError, match="at most 8 bytes"):
        pieces(b"a,b\n" + b"c" * 20 + b"\nd,e\n", 8)
    with pytest.raises(LimitError, match="at most 8 bytes"):
        pieces(b'a,b\n"' + b"c" * 20 + b'"\nd,e\n', 8)
    with pytest.raises(DataError, match="a closing quotation mark"):
        pieces(b'a,b\n"' + b"c" * 20 + b"\nd,e\n" * 9, 8)


# ---------------------------------------------------------------- prefetching


PAIRS = Schema({"x": Number(0, 1), "y": Target((0, 1))})


EARLIER: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def earlier_threads() -> None:
    """Remember threads of earlier tests, whose errors may keep a stream open until collected."""
    EARLIER.clear()
    EARLIER.update(threading.enumerate())


def readers() -> list[threading.Thread]:
    """Threads started by this test that read ahead now."""
    started = set(threading.enumerate()) - EARLIER
    return [thread for thread in started if thread.name.startswith("reading")]


def broken(items: int) -> Iterator[int]:
    """So many items, and then an error."""
    yield from range(items)
    raise DataError("items", "more", "none", "Request fewer.")


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
    stream = scan(table, PAIRS)
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
        read.extend(map(len, scan(table, PAIRS)))
    # The records before it; only a bad quotation mark raises as soon as it is read.
    assert sum(read) > 200_000 or b'"' in line
    assert readers() == []
