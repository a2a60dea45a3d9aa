"""Headers of npy files, read before anything is allocated."""

import io
import math
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from veracal.data.limits import Limits
from veracal.errors import DataError

_MAGIC = b"\x93NUMPY"
_LARGEST_HEADER = 10_000  # numpy's own bound; a plain array's header takes about 100 bytes
_KINDS = "biufU"


@dataclass(frozen=True)
class NpyHeader:
    """What an npy file says about its array.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        Truth values, real numbers or text; never Python objects.
    fortran : bool
        Whether the first axis is the one that runs fastest.
    offset : int
        Bytes before the numbers.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: BinaryIO, length: int, where: str, limits: Limits) -> NpyHeader:
    """Read a header and check it against the limits and the real length of the file.

    Parameters
    ----------
    file : binary file
        At its start; left where the numbers begin.
    length : int
        Bytes of the file, header included.
    where : str
        What to call it in an error.
    limits : Limits
    """
    raw = _raw_header(file, where)
    stream = io.BytesIO(raw)
    version = np.lib.format.read_magic(stream)
    parse = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    try:
        shape, fortran, dtype = parse(stream)
    except Exception as cause:  # a header is a Python literal: many things can be wrong
        raise _not_npy(where, f"a header that cannot be read ({cause})") from cause
    header = NpyHeader(shape, dtype, fortran, len(raw))
    _check_dtype(dtype, where)
    _check_size(header, length, where, limits)
    return header


def _raw_header(file: BinaryIO, where: str) -> bytes:
    """Read the header's bytes once its stated length is known to be sane."""
    start = file.read(8)
    if start[:6] != _MAGIC or len(start) < 8:
        raise _not_npy(where, "another kind of file")
    if start[6:] not in (b"\1\0", b"\2\0"):
        raise _not_npy(where, f"npy version {start[6]}.{start[7]}")
    form = "<H" if start[6] == 1 else "<I"
    count = file.read(struct.calcsize(form))
    if len(count) < struct.calcsize(form):
        raise _not_npy(where, "a header that breaks off")
    size = struct.unpack(form, count)[0]
    if size > _LARGEST_HEADER:
        raise _not_npy(where, f"a header of {size:,} bytes")
    text = file.read(size)
    if len(text) < size:
        raise _not_npy(where, "a header that breaks off")
    return start + count + text


def _check_dtype(dtype: np.dtype[Any], where: str) -> None:
    """Refuse types that need pickle, and those we have no use for."""
    if dtype.hasobject:
        raise DataError(
            where,
            "numbers or text",
            "Python objects, which only pickle can read",
            "Pickle runs whatever code the file holds, so it is never used here. Save the "
            "array as numbers, or as text with astype(str).",
        )
    if dtype.kind not in _KINDS or dtype.itemsize == 0 or dtype.names or dtype.subdtype:
        raise DataError(
            where,
            "numbers or text",
            f"type {str(dtype)[:60]}",
            "Save numbers, or text with astype(str), one array for each column.",
        )
    if dtype.kind == "f" and dtype.itemsize > 8:
        raise DataError(
            where,
            "numbers of at most 64 bits",
            f"type {dtype}, which differs from machine to machine",
            "Save the array with astype('float64').",
        )


def _check_size(header: NpyHeader, length: int, where: str, limits: Limits) -> None:
    """Check the stated shape against the limits, then against the bytes that are there."""
    if any(side < 0 for side in header.shape):
        raise _not_npy(where, f"shape {header.shape}")
    if header.shape:
        limits.check("rows", header.shape[0], where)
        limits.check("columns", math.prod(header.shape[1:]), where)
    if header.offset + header.nbytes != length:
        raise DataError(
            where,
            f"{header.nbytes:,} bytes for {header.dtype} of shape {header.shape}",
            f"{length - header.offset:,}",
            "The file is cut short or was written to while it was saved: save it again.",
        )


def _not_npy(where: str, found: str) -> DataError:
    """Error for what is not an npy file of the usual kind."""
    return DataError(
        where, "an array in npy format 1.0 or 2.0", found, "Save it with numpy.save."
    )
