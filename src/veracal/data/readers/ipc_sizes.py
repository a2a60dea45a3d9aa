"""How large the batches of an Arrow file become once they are unpacked.

Each compressed buffer opens with its unpacked length, but which bytes are buffers stands in
the message's flatbuffer header, and pyarrow shows neither before it has unpacked everything.
Of the flatbuffers only the path to those lists is read here (format: Arrow columnar format,
"IPC"; numbers are positions of fields in File.fbs and Message.fbs).
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from veracal.data.limits import Limits
from veracal.data.readers.archives import check_expansion

_MAGIC = b"ARROW1"
_CONTINUED = b"\xff\xff\xff\xff"
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_MESSAGE_TYPE, _MESSAGE_HEADER = 1, 2
_DICTIONARY_DATA = 1
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_IS_DICTIONARY, _IS_BATCH = 2, 3
_HARMLESS = 2**26  # bytes of one batch, which is unpacked as a whole


def check_batches(path: Path, limits: Limits) -> None:
    """Raise a :class:`LimitError` if a batch would unpack to more than the limits allow."""
    with pa.memory_map(str(path)) as file:
        data = file.read_buffer()
        found = _in_file(data) if data[:6].to_pybytes() == _MAGIC else _in_stream(data)
        try:
            for header, body in found:
                unpacked = sum(_unpacked_sizes(header, body))
                limits.check("memory_bytes", unpacked, path)
                check_expansion(body.size, unpacked, path, limits, harmless=_HARMLESS)
        except (struct.error, IndexError, OverflowError) as cause:
            raise pa.ArrowInvalid(f"a header that cannot be followed: {cause}") from cause


def _in_file(data: pa.Buffer) -> Iterator[tuple[bytes, pa.Buffer]]:
    """Headers and bodies that the footer of a file names."""
    size = struct.unpack("<i", data[data.size - 10 : data.size - 6])[0]
    if not 0 < size <= data.size - 16:
        raise IndexError("the footer's size")
    footer = data[data.size - 10 - size : data.size - 10].to_pybytes()
    root = struct.unpack_from("<I", footer)[0]
    for blocks in (_FOOTER_DICTIONARIES, _FOOTER_BATCHES):
        place = _follow(footer, root, blocks)
        count = 0 if place is None else struct.unpack_from("<I", footer, place)[0]
        for i in range(count):
            start, header, _, body = struct.unpack_from(
                "<qiiq", footer, (place or 0) + 4 + 24 * i
            )
            if min(start, header, body) < 0 or start + header + body > data.size:
                raise IndexError("the place of a batch")
            message = data[start : start + header].to_pybytes()
            prefix = 8 if message[:4] == _CONTINUED else 4
            yield message[prefix:], data[start + header : start + header + body]


def _in_stream(data: pa.Buffer) -> Iterator[tuple[bytes, pa.Buffer]]:
    """Headers and bodies of the messages of a stream."""
    for message in pa.ipc.MessageReader.open_stream(data):
        if message.body is not None:
            yield message.metadata.to_pybytes(), message.body


def _unpacked_sizes(header: bytes, body: pa.Buffer) -> Iterator[int]:
    """Sizes of the buffers of a batch after unpacking."""
    message = struct.unpack_from("<I", header)[0]
    kind = _field(header, message, _MESSAGE_TYPE)
    batch = _follow(header, message, _MESSAGE_HEADER)
    if kind is not None and batch is not None and header[kind] == _IS_DICTIONARY:
        batch = _follow(header, batch, _DICTIONARY_DATA)
    if kind is None or batch is None or header[kind] not in (_IS_DICTIONARY, _IS_BATCH):
        return
    place = _follow(header, batch, _BATCH_BUFFERS)
    packed = _field(header, batch, _BATCH_COMPRESSION) is not None
    count = 0 if place is None else struct.unpack_from("<I", header, place)[0]
    for i in range(count):
        offset, length = struct.unpack_from("<qq", header, (place or 0) + 4 + 16 * i)
        unpacked = -1
        if packed and length >= 8:
            unpacked = struct.unpack("<q", body[offset : offset + 8])[0]
        yield length if unpacked < 0 else unpacked


def _field(header: bytes, table: int, number: int) -> int | None:
    """Place of a field of a flatbuffer table, if it is there."""
    vtable = table - struct.unpack_from("<i", header, table)[0]
    if vtable < 0:
        raise IndexError("a table of fields")
    if 4 + 2 * number >= struct.unpack_from("<H", header, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", header, vtable + 4 + 2 * number)[0]
    return table + offset if offset else None


def _follow(header: bytes, table: int, number: int) -> int | None:
    """Place that a field of a flatbuffer table points to, if it is there."""
    place = _field(header, table, number)
    return None if place is None else place + int(struct.unpack_from("<I", header, place)[0])
