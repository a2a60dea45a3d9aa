"""Default paths of ledgers.

One ledger belongs to one data set, for all runs. Unless the user names a ledger, its file is in

- ``$VERACAL_LEDGERS``, if that is set,
- else ``$XDG_DATA_HOME/veracal/ledgers``,
- else ``~/.local/share/veracal/ledgers``,

a folder that only its owner can read. The file name contains a hash of the resolved path of the
data. Data that is also accessible by another path (a hard link, a bind mount, another spelling
on a case-insensitive file system) has the ledger that was opened for the other path, as long as
that path exists. Data that is copied, moved or renamed gets another ledger: only the data
holder can prevent this, by naming the ledger. The path of the data is private to the data
holder: it is stored in a small file beside the ledger, and never in its chain.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from veracal.accounting import Budget
from veracal.data import CATALOG, atomic_file
from veracal.errors import LedgerError
from veracal.ledger.ledger import Ledger, open_ledger
from veracal.ledger.storage import check_new_path, reading

SUFFIX = ".ledger"
_DATA_PATH_SUFFIX = ".data.json"
_MAX_STEM_LENGTH = 60  # characters of a stem


def default_folder(*, create: bool = True) -> Path:
    """The folder of default ledgers, which only its owner can read.

    Parameters
    ----------
    create : bool
        Create it if it is missing.

    Raises
    ------
    LedgerError
        If it cannot be created, is not a folder, belongs to another user, or is readable by
        other users.
    """
    if configured := os.environ.get("VERACAL_LEDGERS"):
        folder = Path(configured).expanduser().absolute()
    else:
        # The XDG specification requires relative paths to be ignored.
        base = Path(os.environ.get("XDG_DATA_HOME", ""))
        home = base if base.is_absolute() else Path.home() / ".local" / "share"
        folder = home / "veracal" / "ledgers"
    elsewhere = "Set VERACAL_LEDGERS to another folder, or name a ledger."
    try:
        if create:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not folder.exists():
            return folder
        status = folder.stat()
    except OSError as cause:
        raise LedgerError(
            f"{folder}: the folder of ledgers cannot be used ({cause.strerror or cause}).",
            elsewhere,
        ) from cause
    if status.st_uid != os.geteuid():
        raise LedgerError(
            f"{folder}: the folder of ledgers belongs to another user.", elsewhere
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise LedgerError(
            f"{folder}: other users can read the folder of ledgers.",
            f"Remove their permissions: chmod 700 {folder}",
        )
    return folder


def default_ledger_path(data: str | Path) -> Path:
    """Path of the ledger of a data set, whether or not it exists.

    Parameters
    ----------
    data : path or str
        An existing file or folder, or the name of a built-in data set.

    Examples
    --------
    >>> folder = getfixture("tmp_path")
    >>> getfixture("monkeypatch").setenv("VERACAL_LEDGERS", str(folder / "ledgers"))
    >>> default_ledger_path("wine").name
    'builtin-wine.ledger'
    >>> (folder / "visits.csv").touch()
    >>> default_ledger_path(folder / "visits.csv").name
    'visits-....ledger'
    """
    return _ledger_in(default_folder(), data)


def _ledger_in(folder: Path, data: str | Path) -> Path:
    """Path of the ledger of a data set in a folder, found by any path of the data."""
    path = folder / ledger_name(data)
    if not os.path.lexists(path) and Path(data).exists():
        for ledger in sorted(folder.glob(f"*{SUFFIX}")):
            with suppress(OSError):  # its data does not exist
                data_path = read_data_path(ledger)
                if data_path is not None and _resolved(Path(data)).samefile(data_path):
                    return ledger
    return path


def ledger_name(data: str | Path) -> str:
    """File name of a data set's ledger."""
    path = Path(data)
    if not path.exists():
        if isinstance(data, str) and data in CATALOG:
            return f"builtin-{data}{SUFFIX}"
        raise LedgerError(
            f"{data}: no such file, folder or built-in data set, so it has no ledger."
        )
    resolved = _resolved(path)
    mark = hashlib.sha256(os.fsencode(resolved)).hexdigest()[:16]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", resolved.stem)[:_MAX_STEM_LENGTH] or "data"
    return f"{stem}-{mark}{SUFFIX}"


def _resolved(path: Path) -> Path:
    """Resolved path of a data set; ``X.npy`` stands for its folder, as in loading."""
    return path.parent.resolve() if path.name == "X.npy" else path.resolve()


def display_name(data: str | Path) -> str:
    """Public name of a data set: that of its file or folder, or of a built-in one."""
    path = Path(data)
    name = _resolved(path).name if path.exists() else str(data)
    return "".join(c if c.isprintable() else "?" for c in name)[:200].strip() or "data"


def write_data_path(ledger: Path, data: str | Path) -> None:
    """Write the path of the data to a file beside its ledger, readable by its owner only."""
    path = Path(data)
    if path.exists():
        text = json.dumps({"data": str(_resolved(path))})
        with atomic_file(_data_path_file(ledger), force=True) as file:
            file.write(text.encode())


def open_ledger_for_data(
    path: str | Path, budget: Budget, data: str | Path, **settings: Any
) -> Ledger:
    """Create the ledger of a data set, with the path of the data in a file beside it.

    The path is written first: a process that is killed in between leaves no ledger without it,
    and the next call writes it again.

    ``path``, ``budget`` and ``settings`` are as in :func:`veracal.ledger.open_ledger`.
    """
    ledger_path = Path(path).absolute()
    check_new_path(ledger_path)  # the data path of an existing ledger must not change
    write_data_path(ledger_path, data)
    try:
        return open_ledger(ledger_path, budget, data=display_name(data), **settings)
    except BaseException:
        if not os.path.lexists(ledger_path):
            _data_path_file(ledger_path).unlink(missing_ok=True)
        raise


def restore_data_path(ledger: Ledger, data: str | Path) -> None:
    """Write the path of the data beside its ledger if that file is missing or damaged.

    Only for a ledger whose opening names this data set: another one may belong to other data.
    """
    if ledger.opening.data == display_name(data) and read_data_path(ledger.path) is None:
        write_data_path(ledger.path, data)


def read_data_path(ledger: Path) -> str | None:
    """Path of a ledger's data from the file beside it, if there is one."""
    try:
        content = json.loads(_data_path_file(ledger).read_bytes())
    except (OSError, ValueError):
        return None
    data = content.get("data") if isinstance(content, dict) else None
    return data if isinstance(data, str) else None


def list_default_ledgers() -> Iterator[Path]:
    """All ledgers in the default folder."""
    folder = default_folder(create=False)
    if folder.exists():
        yield from sorted(folder.glob(f"*{SUFFIX}"))


def resolve_ledger(given: str | Path) -> Path:
    """Path of a ledger: the given ledger file, or the default ledger of the given data set.

    Raises
    ------
    LedgerError
        If a data set has no ledger yet.
    """
    path = Path(given)
    if os.path.lexists(path) and not _is_data(path):
        return path
    try:
        default = _ledger_in(default_folder(create=False), given)
    except LedgerError:
        if path.exists():
            raise
        return path  # opening it raises that the file does not exist
    if os.path.lexists(default):
        return default
    raise LedgerError(
        f"{given}: this data set has no ledger yet. The first fit opens one, or create it with "
        f"`veracal ledger open --data {given}`."
    )


def _is_data(path: Path) -> bool:
    """Whether a path is a folder, or a file that is not a database."""
    if path.is_dir():
        return True
    if path.suffix != SUFFIX and path.is_file() and path.stat().st_nlink > 1:
        return True  # a ledger has one name
    try:
        # Open it with SQLite only: otherwise SQLite's locks on it would be released.
        with reading(path):
            return False
    except LedgerError as error:
        name = getattr(error.__cause__, "sqlite_errorname", None) or ""
        return name == "SQLITE_NOTADB" and path.suffix != SUFFIX


def _data_path_file(ledger: Path) -> Path:
    """The file beside a ledger that contains the path of its data."""
    return ledger.with_name(f"{ledger.name}{_DATA_PATH_SUFFIX}")
