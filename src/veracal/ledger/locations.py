"""Where the ledger of a data set is, unless the user names another.

One ledger belongs to one data set, wherever the results of its runs are put. Its file is in

- ``$VERACAL_LEDGERS``, if that is set,
- else ``$XDG_DATA_HOME/veracal/ledgers``,
- else ``~/.local/share/veracal/ledgers``,

a folder that only its owner may read. Its name has a hash of the path of the data, with links
resolved. A file or folder that is there under another path, too (a hard link, a bind mount,
another spelling on a file system that ignores case), has the ledger that was opened for the
other path, as long as that exists. Data that is copied, moved or renamed gets another ledger:
that is a hole, which only the data holder can close, by naming the ledger. The path itself is
the data holder's business: it is in a small file beside the ledger, and never in its chain.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from veracal.accounting import Budget
from veracal.data import CATALOG, placed
from veracal.errors import LedgerError
from veracal.ledger.book import Ledger, open_ledger
from veracal.ledger.storage import new_ledger, reading

SUFFIX = ".ledger"
_BESIDE = ".data.json"
_LONGEST = 60  # characters of a stem


def default_folder(*, create: bool = True) -> Path:
    """The folder of default ledgers, which only its owner may read.

    Parameters
    ----------
    create : bool
        Make it if it is not there.

    Raises
    ------
    LedgerError
        If it cannot be made, is no folder, belongs to another user, or others may read it.
    """
    folder = _named_folder()
    try:
        if create:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not folder.exists():
            return folder
        found = folder.stat()
    except OSError as cause:
        raise LedgerError(
            f"{folder}: the folder of ledgers cannot be used ({cause.strerror or cause}).",
            "Set VERACAL_LEDGERS to a folder of your own, or name a ledger.",
        ) from cause
    if found.st_uid != os.geteuid():
        raise LedgerError(
            f"{folder}: the folder of ledgers belongs to another user.",
            "Set VERACAL_LEDGERS to a folder of your own, or name a ledger.",
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise LedgerError(
            f"{folder}: other users may read the folder of ledgers.",
            f"Make it yours alone: chmod 700 {folder}",
        )
    return folder


def _named_folder() -> Path:
    """Where the folder is, by the environment."""
    if chosen := os.environ.get("VERACAL_LEDGERS"):
        return Path(chosen).expanduser().absolute()
    # The specification of these folders says to ignore a relative path.
    base = Path(os.environ.get("XDG_DATA_HOME", ""))
    home = base if base.is_absolute() else Path.home() / ".local" / "share"
    return home / "veracal" / "ledgers"


def default_ledger_path(data: str | Path) -> Path:
    """Path of the ledger that belongs to a data set, whether or not it was opened.

    Parameters
    ----------
    data : path or str
        A file or a folder that exists, or the name of a built-in data set.

    Returns
    -------
    Path
        In :func:`default_folder`, which is made if it is not there.

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
    """Path of the ledger of a data set in a folder, by any path that the data has."""
    place = folder / ledger_name(data)
    if not os.path.lexists(place) and Path(data).exists():
        for ledger in sorted(folder.glob(f"*{SUFFIX}")):
            known = noted_data(ledger)
            if known is not None and _is_same(_resolved(Path(data)), Path(known)):
                return ledger
    return place


def _is_same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file or folder."""
    try:
        return one.samefile(other)
    except OSError:  # the other one has gone
        return False


def ledger_name(data: str | Path) -> str:
    """Name of the file of a data set's ledger."""
    path = Path(data)
    if not path.exists():
        if isinstance(data, str) and data in CATALOG:
            return f"builtin-{data}{SUFFIX}"
        raise LedgerError(
            f"{data}: no such file, folder or built-in data set, so it has no ledger."
        )
    resolved = _resolved(path)
    mark = hashlib.sha256(os.fsencode(resolved)).hexdigest()[:16]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", resolved.stem)[:_LONGEST] or "data"
    return f"{stem}-{mark}{SUFFIX}"


def _resolved(path: Path) -> Path:
    """The one path of a data set; ``X.npy`` stands for its folder, as it does when loaded."""
    return path.parent.resolve() if path.name == "X.npy" else path.resolve()


def display_name(data: str | Path) -> str:
    """Public name of a data set: that of its file or folder, or of a built-in one."""
    path = Path(data)
    shown = _resolved(path).name if path.exists() else str(data)
    return "".join(c if c.isprintable() else "?" for c in shown)[:200].strip() or "data"


def note_data(ledger: Path, data: str | Path) -> None:
    """Write the path of the data beside its ledger, for its owner's eyes only."""
    path = Path(data)
    if path.exists():
        text = json.dumps({"data": str(_resolved(path))})
        with placed(_beside(ledger), force=True) as file:
            file.write(text.encode())


def open_for_data(
    path: str | Path, budget: Budget, data: str | Path, **settings: Any
) -> Ledger:
    """Open the ledger of a data set, with the path of the data beside it.

    The path is written first: a process that is killed in between leaves no ledger without
    it, and the next opening writes it again.

    Parameters
    ----------
    path, budget
        As of :func:`veracal.ledger.open_ledger`.
    data : path or str
        The data set.
    **settings
        As of :func:`veracal.ledger.open_ledger`.
    """
    place = Path(path).absolute()
    new_ledger(place)  # what is noted beside a ledger that exists stays
    note_data(place, data)
    try:
        return open_ledger(place, budget, data=display_name(data), **settings)
    except BaseException:
        if not os.path.lexists(place):
            _beside(place).unlink(missing_ok=True)
        raise


def restore_data_note(ledger: Ledger, data: str | Path) -> None:
    """Write the path of the data beside its ledger if the file is missing or damaged.

    Only for a ledger whose opening names this data set: any other may belong to other data.
    """
    if ledger.opening.data == display_name(data) and noted_data(ledger.path) is None:
        note_data(ledger.path, data)


def noted_data(ledger: Path) -> str | None:
    """Path of the data of a ledger, if it is written beside it."""
    try:
        found = json.loads(_beside(ledger).read_bytes())
    except (OSError, ValueError):
        return None
    data = found.get("data") if isinstance(found, dict) else None
    return data if isinstance(data, str) else None


def default_ledgers() -> Iterator[Path]:
    """Every ledger in the default folder."""
    folder = default_folder(create=False)
    if folder.exists():
        yield from sorted(folder.glob(f"*{SUFFIX}"))


def resolve_ledger(given: str | Path) -> Path:
    """Path of the ledger that a user means: a ledger file, or a data set by its default.

    Raises
    ------
    LedgerError
        If a data set has no ledger yet.
    """
    path = Path(given)
    if os.path.lexists(path) and not _is_data(path):
        return path
    try:
        found = _ledger_in(default_folder(create=False), given)
    except LedgerError:
        if path.exists():
            raise
        return path  # whoever opens it says that nothing is there
    if os.path.lexists(found):
        return found
    raise LedgerError(
        f"{given}: this data set has no ledger yet. The first fit opens one, or "
        f"`veracal ledger open --data {given}` does."
    )


def _is_data(path: Path) -> bool:
    """Whether a path is a folder, or a file that is no database."""
    if path.is_dir():
        return True
    if path.suffix != SUFFIX and path.is_file() and path.stat().st_nlink > 1:
        return True  # a ledger has one name
    try:
        # By SQLite alone: opened otherwise, it would lose the locks that SQLite holds.
        with reading(path):
            return False
    except LedgerError as error:
        name = getattr(error.__cause__, "sqlite_errorname", None) or ""
        return name == "SQLITE_NOTADB" and path.suffix != SUFFIX


def _beside(ledger: Path) -> Path:
    """The file beside a ledger that names its data."""
    return ledger.with_name(f"{ledger.name}{_BESIDE}")
