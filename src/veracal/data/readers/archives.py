"""Members of a zip archive, none of which is read before all of them are checked."""

import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from veracal.data.limits import Limits, opened
from veracal.errors import DataError, LimitError

NO_BOMB = 2**20  # bytes; what is smaller is no bomb, however well it packs
_END, _END64, _LOCATOR64, _ENTRY = b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\1\2"
_DAMAGED = (
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
)


class Archive:
    """Checked members of an open zip archive.

    Guarantees
    ----------
    Every name is a relative path that stays below its root, no two are equal, none is a
    link, none is encrypted, and no member may grow beyond the limits when it is unpacked.
    """

    def __init__(
        self, path: Path, archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]
    ) -> None:
        self._path, self._archive, self._members = path, archive, members

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files, sorted."""
        return tuple(sorted(self._members))

    def size(self, name: str) -> int:
        """Bytes of a member once unpacked."""
        return self._members[name].file_size

    def read(self, name: str) -> bytes:
        """Unpack one member."""
        where = f"{self._path}: {name}"
        try:
            with self._archive.open(self._members[name]) as member:
                data = member.read(self.size(name) + 1)
        except _DAMAGED as cause:
            raise _damaged(where, str(cause)) from cause
        if len(data) != self.size(name):
            raise _damaged(where, f"{len(data):,} bytes instead of {self.size(name):,}")
        return data


@contextmanager
def open_archive(path: Path, limits: Limits) -> Iterator[Archive]:
    """Open a zip file whose directory passes every check."""
    with opened(path, limits) as file:
        _count_entries(file, path, limits)
        try:
            archive = zipfile.ZipFile(file)
        except _DAMAGED as cause:
            raise _damaged(str(path), str(cause)) from cause
        with archive:
            yield Archive(path, archive, _checked(archive, path, limits))


def check_expansion(
    packed: int, unpacked: int, where: object, limits: Limits, *, harmless: int = NO_BOMB
) -> None:
    """Refuse what would grow more than ``limits.expansion`` times, to more than is harmless."""
    if unpacked <= max(harmless, limits.expansion * packed):
        return
    raise LimitError(
        str(where),
        f"data that unpacks to at most {limits.expansion} times its packed size",
        f"{packed:,} bytes that unpack to {unpacked:,}",
        "Nothing was unpacked. If the file can be trusted, pass "
        f"Limits(expansion={-(-unpacked // max(packed, 1))}).",
    )


def _checked(
    archive: zipfile.ZipFile, path: Path, limits: Limits
) -> Mapping[str, zipfile.ZipInfo]:
    """Check every entry of the directory, then their sum."""
    members: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        if entry.is_dir():
            continue
        _check_entry(entry, f"{path}: {entry.orig_filename!r}", limits)
        if entry.filename in members:
            raise DataError(
                str(path),
                "members of different names",
                f"{entry.filename!r} twice",
                "Nothing was unpacked. Make the archive again.",
            )
        members[entry.filename] = entry
    packed, unpacked = path.stat().st_size, sum(m.file_size for m in members.values())
    check_expansion(packed, unpacked, path, limits)
    return members


def _check_entry(entry: zipfile.ZipInfo, where: str, limits: Limits) -> None:
    """Refuse a member that is strange, or too large."""
    if strange := _strange(entry):
        raise DataError(
            where,
            "a plain file, stored or deflated, with a relative name",
            strange,
            "Nothing was unpacked. Make the archive again from the files themselves.",
        )
    limits.check("memory_bytes", entry.file_size, where)
    check_expansion(entry.compress_size, entry.file_size, where, limits)


def _strange(entry: zipfile.ZipInfo) -> str | None:
    """Say what is wrong with an entry, if anything is."""
    name = entry.orig_filename
    if "\0" in name or "\\" in name or name[1:2] == ":":
        return "a name with a forbidden character"
    if name.startswith("/") or not {"..", ".", ""}.isdisjoint(name.split("/")):
        return "a name that may lead out of the archive"
    if stat.S_ISLNK(entry.external_attr >> 16):
        return "a symbolic link"
    if entry.flag_bits & 0x1:
        return "an encrypted member"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"compression method {entry.compress_type}"
    return None


def _count_entries(file: BinaryIO, path: Path, limits: Limits) -> None:
    """Count the directory's entries without keeping them, and stop above the limit.

    The number an archive states about itself may be a lie, and ``zipfile`` would build an
    object for each entry before anybody could ask.
    """
    start, size = _directory(file, path)
    file.seek(start)
    count = taken = 0
    while taken < size:
        head = file.read(46)
        if len(head) < 46 or head[:4] != _ENTRY:
            raise _damaged(str(path), "a directory that breaks off")
        more = sum(struct.unpack("<3H", head[28:34]))  # name, extra field, comment
        file.seek(more, 1)
        taken += 46 + more
        count += 1
        limits.check("members", count, path)
    file.seek(0)


def _directory(file: BinaryIO, path: Path) -> tuple[int, int]:
    """Find where the central directory starts, and how many bytes it takes."""
    length = file.seek(0, 2)
    base = file.seek(max(0, length - 22 - 0xFFFF))
    tail = file.read()
    place = tail.rfind(_END)
    if place < 0 or len(tail) - place < 22:
        raise DataError(str(path), "a zip archive", "another kind of file", "Name a zip file.")
    size = struct.unpack("<L", tail[place + 12 : place + 16])[0]
    end = base + place
    if place >= 20 and tail[place - 20 : place - 16] == _LOCATOR64:
        end -= 20 + 56
        file.seek(max(end, 0))
        record = file.read(56)
        if record[:4] != _END64 or len(record) < 56:
            raise _damaged(str(path), "a directory that is not where it should be")
        size = struct.unpack("<Q", record[40:48])[0]
    if size > end:
        raise _damaged(str(path), "a directory larger than the file")
    return end - size, size


def _damaged(where: str, found: str) -> DataError:
    """Error for an archive that cannot be read to its end."""
    return DataError(
        where, "an undamaged zip archive", found or "damage", "Fetch or make the file again."
    )
