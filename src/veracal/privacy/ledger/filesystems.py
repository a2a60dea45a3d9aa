"""Which file systems can be trusted with a ledger.

SQLite's write-ahead log shares memory between processes and relies on locks and on ``fsync``.
Over a network these are promised by nobody: two machines would each believe that they hold
the lock, and both would spend the same budget (https://www.sqlite.org/wal.html).
"""

import os
import re
from pathlib import Path

from veracal.errors import LedgerError

_MOUNTS = Path("/proc/self/mountinfo")
_SHARED = re.compile(
    r"nfs.*|cifs|smb.*|9p|afs|afpfs|webdav|davfs.*|ceph|glusterfs|lustre|gpfs|beegfs|orangefs"
    r"|pvfs2?|ocfs2|gfs2?|coda|ncpfs|ncp|vboxsf|vmhgfs|prl_fs|virtiofs|fuse(\..*)?"
)


def refuse_shared(folder: Path) -> None:
    """Raise if a folder lies on a file system that other machines may share.

    Where the system does not list its mounts (elsewhere than on Linux) nothing is known and
    nothing refused.
    """
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    kind = kind_of(os.path.realpath(folder), mounts)
    if kind is not None and _SHARED.fullmatch(kind):
        raise LedgerError(
            f"{folder}: expected a local file system, found {kind}.",
            "Over a network or a bridge between machines, locks and fsync promise nothing, and "
            "a budget could be spent twice. Keep the ledger on a local disk.",
        )


def kind_of(path: str, mounts: str) -> str | None:
    r"""Type of the file system that holds a path, by the text of a mountinfo file.

    The deepest mount point above the path decides; of several on one point, the last.

    Examples
    --------
    >>> mounts = '''1 0 8:1 / / rw - ext4 /dev/sda1 rw
    ... 2 1 0:40 / /mnt/my\\040share rw shared:2 - nfs4 host:/export rw'''
    >>> kind_of("/mnt/my share/ledger", mounts), kind_of("/mnt/mine", mounts)
    ('nfs4', 'ext4')
    """
    found, depth = None, -1
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if not rest or len(fields.split()) < 5:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields.split()[4])
        parts = [part for part in point.split("/") if part]
        if path.split("/")[1 : len(parts) + 1] == parts and len(parts) >= depth:
            found, depth = rest.split()[0], len(parts)
    return found
