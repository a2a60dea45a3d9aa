"""Arrays in the safetensors format, checked before any memory is taken for them."""

import math
import struct
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from safetensors.numpy import load, save

from veracal._types import Floats
from veracal.data.readers.strict_json import parse_json
from veracal.errors import DataError

_LENGTH = 8  # bytes that tell how long the header is
_LONGEST_HEADER = 2**20
_TYPES = {"F64": (8, "doubles"), "F32": (4, "single precision")}
Precision = Literal["F64", "F32"]

Shapes = Mapping[str, tuple[int, ...]]


def to_bytes(arrays: Mapping[str, Floats], precision: Precision = "F64") -> bytes:
    """Write arrays, all in doubles or in single precision."""
    dtype = np.dtype(f"f{_TYPES[precision][0]}")
    plain = {name: np.ascontiguousarray(a, dtype=dtype) for name, a in arrays.items()}
    return bytes(save(plain))


def from_bytes(
    content: bytes, shapes: Shapes, where: str, precision: Precision = "F64"
) -> dict[str, Floats]:
    """Read finite numbers of known names and shapes.

    The header says where each array lies; it is compared with what is expected, to the
    byte, before the arrays are read.

    Raises
    ------
    DataError
        For anything else: other names, shapes or types, bytes that are missing or too many, a
        number that is not finite.
    """
    found = _header(content, where)
    found.pop("__metadata__", None)
    if set(found) != set(shapes):
        raise _no_weights(where, f"arrays {', '.join(shapes)}", ", ".join(found)[:200])
    start = _LENGTH + struct.unpack("<Q", content[:_LENGTH])[0]
    spans, (width, words) = list[list[int]](), _TYPES[precision]
    for name, shape in shapes.items():
        size = width * math.prod(shape)
        offsets = found[name].get("data_offsets") if isinstance(found[name], dict) else None
        right = {"dtype": precision, "shape": list(shape), "data_offsets": offsets}
        if found[name] != right or not _span(offsets, size):
            expected = f"{name} of shape {shape}, in {words}"
            raise _no_weights(where, expected, repr(found[name])[:200])
        assert isinstance(offsets, list)
        spans.append(offsets)
    _check_cover(sorted(spans), len(content) - start, where)
    arrays = load(content)
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise _no_weights(where, f"finite numbers in {name}", "NaN or infinity")
        array.flags.writeable = False
    return dict(arrays)


def _header(content: bytes, where: str) -> dict[str, Any]:
    """The description at the beginning of the file."""
    if len(content) < _LENGTH:
        raise _no_weights(where, "a safetensors file", f"{len(content)} bytes")
    length = struct.unpack("<Q", content[:_LENGTH])[0]
    if length > min(_LONGEST_HEADER, len(content) - _LENGTH):
        raise _no_weights(where, "a header inside the file", f"one of {length} bytes")
    try:
        text = content[_LENGTH : _LENGTH + length].decode()
    except UnicodeDecodeError as cause:
        raise _no_weights(where, "a header in UTF-8", "other bytes") from cause
    found = parse_json(text, where)
    if not isinstance(found, dict):
        raise _no_weights(where, "a header with the names of arrays", type(found).__name__)
    return found


def _span(offsets: Any, size: int) -> bool:
    """Whether offsets are two whole numbers that far apart."""
    whole = isinstance(offsets, list) and [type(x) for x in offsets] == [int, int]
    return whole and offsets[0] >= 0 and offsets[1] - offsets[0] == size


def _check_cover(spans: list[list[int]], size: int, where: str) -> None:
    """Refuse bytes that belong to no array, or to two."""
    edges = [0, *(edge for span in spans for edge in span), size]
    if edges[::2] != edges[1::2]:
        raise _no_weights(where, "arrays one after the other", f"{spans} of {size} bytes")


def _no_weights(where: str, expected: str, found: str) -> DataError:
    """Error for a file that is not what it should be."""
    return DataError(where, expected, found, "Get the artifact again from whoever made it.")
