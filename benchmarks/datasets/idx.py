"""Arrays in idx files, the form of MNIST, packed by gzip or not."""

import gzip
import math
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from veracal._types import Array
from veracal.data.dataset import Dataset, check_learnable
from veracal.data.files import DEFAULT_LIMITS, Limits, open_file
from veracal.data.rows import Label, encode_labels
from veracal.errors import DataError

# Third byte of the file: type of the numbers, which are big-endian.
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MOST_AXES = 8


def read_idx(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> Array:
    """Read an idx file, packed by gzip or not, whatever its name ends in.

    The file opens with two zero bytes, a byte for the type of its numbers, one for the
    number of axes, and four for the length of each axis.

    Returns
    -------
    array
        In this machine's byte order.
    """
    path = Path(path)
    with open_file(path, limits) as raw, _decompressed(raw, path) as (file, packed):
        dtype, shape, start = _header(file, path)
        limits.check("rows", shape[0], path)
        limits.check("columns", math.prod(shape[1:]), path)
        size = math.prod(shape) * dtype.itemsize
        limits.check("memory_bytes", size, path)
        length = path.stat().st_size
        if not packed and length != start + size:
            raise _wrong_length(path, size, str(length - start))
        data = file.read(size)
        if len(data) < size or file.read(1):
            raise _wrong_length(path, size, str(len(data)) if len(data) < size else "more")
    array = np.frombuffer(data, dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="))


def is_idx(path: Path) -> bool:
    """Tell by its name whether a file is an idx file, packed or not."""
    return path.suffix.lower() == ".idx" or re.search(r"[.-]idx\d", path.name) is not None


def read_idx_pair(images: Path, limits: Limits = DEFAULT_LIMITS) -> dict[str, Array]:
    """Read images and, from the file beside them that MNIST's names ask for, their labels.

    Returns
    -------
    dict of arrays
        ``X``, of shape (n, d), and ``y``, of shape (n,): the columns a schema declares.
    """
    labels = images.with_name(images.name.replace("images", "labels").replace("idx3", "idx1"))
    if labels == images:
        raise DataError(
            str(images),
            "a name with 'images' in it, beside a file of labels",
            "another name",
            "Rename the two as train-images-idx3-ubyte and train-labels-idx1-ubyte.",
        )
    X = read_idx(images, limits)
    return {"X": X.reshape(len(X), -1), "y": read_idx(labels, limits)}


def load_idx(
    images: str | Path,
    labels: str | Path,
    *,
    classes: Sequence[Label],
    limits: Limits = DEFAULT_LIMITS,
    size: int | None = None,
    name: str | None = None,
) -> Dataset:
    """Load a pair of idx files: images of shape (n, height, width), and their labels."""
    dataset = Dataset(
        read_idx(images, limits),
        encode_labels(read_idx(labels, limits), classes, str(labels)),
        tuple(classes),
        size=size,
        name=Path(images).name if name is None else name,
    )
    check_learnable(dataset, labels)
    return dataset


@contextmanager
def _decompressed(raw: BinaryIO, path: Path) -> Iterator[tuple[BinaryIO, bool]]:
    """Decompress a file if it is packed; also yield whether it is."""
    packed = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    if not packed:
        yield raw, False
        return
    try:
        with gzip.GzipFile(fileobj=raw) as file:
            yield cast(BinaryIO, file), True
    except (EOFError, zlib.error, gzip.BadGzipFile) as cause:
        raise DataError(
            str(path), "an undamaged gzip file", str(cause), "Fetch the file again."
        ) from cause


def _header(file: BinaryIO, path: Path) -> tuple["np.dtype[np.generic]", tuple[int, ...], int]:
    """Read type, shape and length of the header."""
    magic = file.read(4)
    known = len(magic) == 4 and magic[:2] == b"\0\0" and magic[2] in _TYPES
    if not known or not 1 <= magic[3] <= _MOST_AXES:
        raise DataError(
            str(path),
            "an idx file: two zero bytes, a type, a number of axes",
            magic.hex(" ") or "nothing",
            "Name one of MNIST's four files, or another of their form.",
        )
    axes = file.read(4 * magic[3])
    if len(axes) < 4 * magic[3]:
        raise _wrong_length(path, 4 * magic[3], f"{len(axes)} in the header")
    shape = struct.unpack(f">{magic[3]}I", axes)
    if 0 in shape:
        raise DataError(
            str(path), "at least one record", f"shape {shape}", "Name another file."
        )
    return np.dtype(_TYPES[magic[2]]), shape, 4 + len(axes)


def _wrong_length(path: Path, expected: int, length: str) -> DataError:
    """Error for a file that is not as long as its header says."""
    return DataError(
        str(path), f"{expected:,} bytes after the header", length, "Fetch the file again."
    )
