"""idx files arrive unchanged, or not at all."""

import gzip
import struct

import numpy as np
import pytest

from benchmarks.datasets.idx import load_idx, read_idx
from veracal.data.files import Limits
from veracal.errors import DataError, LimitError

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx(array):
    """Bytes of an idx file."""
    code = CODES[array.dtype.str[1:]]
    head = struct.pack(f">4B{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.fixture
def file(tmp_path):
    """A function that writes bytes, and returns the path."""

    def write(data, name="a-idx-ubyte"):
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return write


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("dtype", CODES)
def test_every_type_is_read(file, dtype, pack):
    array = np.arange(-5, 19).astype(dtype).reshape(2, 3, 4)

    array_read = read_idx(file(pack(idx(array))))

    np.testing.assert_array_equal(array_read, array)
    assert array_read.dtype == array.dtype
    assert array_read.dtype.isnative


def test_a_pair_of_files_is_a_data_set(file):
    images = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    labels = np.array([1, 0, 1], np.uint8)

    data = load_idx(
        file(idx(images), "images"), file(idx(labels), "labels"), classes=range(2), size=3
    )

    np.testing.assert_array_equal(data.X, images)
    assert data.X.dtype == np.uint8
    assert data.y.tolist() == [1, 0, 1]
    assert (data.size, data.name) == (3, "images")


def test_labels_outside_the_classes_are_refused(file):
    images, labels = np.zeros((1, 2, 2), np.uint8), np.array([7], np.uint8)

    with pytest.raises(DataError, match="labels: expected one of 0, 1, found '7' in record 1"):
        load_idx(file(idx(images), "images"), file(idx(labels), "labels"), classes=range(2))


def test_images_of_one_class_are_refused(file):
    images, labels = np.zeros((2, 2, 2), np.uint8), np.array([1, 1], np.uint8)

    with pytest.raises(DataError, match="labels: expected records of at least two classes"):
        load_idx(file(idx(images), "images"), file(idx(labels), "labels"), classes=range(2))


WHOLE = idx(np.zeros((3, 2), np.uint8))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0", "expected an idx file.*found 00"),
        (b"\1" + WHOLE[1:], "expected an idx file.*found 01 00 08 02"),
        (b"\0\0\x0a\2" + WHOLE[4:], "expected an idx file"),
        (b"\0\0\x08\0" + WHOLE[4:], "expected an idx file"),
        (b"\0\0\x08\xff" + WHOLE[4:], "expected an idx file"),
        (WHOLE[:10], "8 bytes after the header, found 6 in the header"),
        (WHOLE[:-1], "expected 6 bytes after the header, found 5"),
        (WHOLE + b"\0", "expected 6 bytes after the header, found 7"),
        (struct.pack(">4B2I", 0, 0, 8, 2, 0, 2), "at least one record"),
        # 4 GB announced, nothing there: found out before anything is allocated.
        (struct.pack(">4BI", 0, 0, 8, 1, 2**32 - 1), "at most 1,000,000,000 rows"),
        (
            struct.pack(">4B2I", 0, 0, 14, 2, 10**9, 100),
            f"at most {Limits().memory_bytes:,} memory bytes",
        ),
        (struct.pack(">4B2I", 0, 0, 8, 2, 1, 2**32 - 1), "at most 200,000 columns"),
        (gzip.compress(WHOLE[:-1]), "expected 6 bytes after the header, found 5"),
        (gzip.compress(WHOLE + b"\0"), "expected 6 bytes after the header, found more"),
        (gzip.compress(WHOLE)[:-9], "undamaged gzip file"),
        (gzip.compress(WHOLE)[:12], "undamaged gzip file"),
        (gzip.compress(WHOLE)[:-8] + b"\0" * 8, "undamaged gzip file, found CRC check failed"),
        (b"\x1f\x8b" + b"x" * 30, "undamaged gzip file"),
        (b"", "an empty file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_broken_files_are_refused(file, data, message):
    with pytest.raises(DataError, match=message):
        read_idx(file(data))


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(file):
    bomb = file(gzip.compress(idx(np.zeros((2**14, 200), np.uint8))))

    with pytest.raises(LimitError, match="at most 1,048,576 memory bytes"):
        read_idx(bomb, Limits(memory_bytes=2**20))
    assert read_idx(bomb).shape == (2**14, 200)


def test_a_gzip_bomb_behind_a_small_header_is_not_unpacked(file):
    """The header announces six bytes; what follows is left packed."""
    with pytest.raises(DataError, match="found more"):
        read_idx(file(gzip.compress(WHOLE + b"\0" * 2**26)), Limits(memory_bytes=100))


def test_limits_on_memory_hold(file):
    with pytest.raises(LimitError, match="at most 5 memory bytes"):
        read_idx(file(WHOLE), Limits(memory_bytes=5))


def test_whatever_byte_breaks_the_error_is_ours(file, rng):
    whole = gzip.compress(idx(np.arange(40, dtype=np.uint8).reshape(10, 4)))
    refused = 0
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= int(rng.integers(1, 256))
        try:
            read_idx(file(bytes(broken)))
        except DataError:
            refused += 1

    assert refused > len(whole) / 2
