r"""The permanent assignment of individuals to partitions.

The total cost of mechanisms on different partitions is the maximum of their costs only if no
individual is ever in two partitions, over all runs on a data set. Therefore the assignment
belongs to the ledger of the data set: it is drawn once, stored beside the ledger, and reused by
every run.

For each individual a keyed hash of its id and the number of its partition are stored. The key
of 32 bytes comes from the operating system and is stored in a separate file. Neither file
contains an id, a record or a digest that could be compared with a guessed record, and nothing
in them enters a ledger's chain, an export, an artifact, a report or a reply. Both files are
created atomically on a local disk, readable by their owner only.
"""

import hashlib
import hmac
import json
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats, Ints
from veracal.data import (
    TEXT,
    Dataset,
    Ignore,
    Relation,
    Schema,
    Split,
    assign_partitions,
    check_fractions,
    check_identity,
    draws_by_digest,
    draws_by_id,
    even_draws,
    iterate_digests,
    key_fingerprints,
    record_digests,
    split_by_assignment,
)
from veracal.errors import DataError, LedgerError
from veracal.ledger.storage import (
    check_new_path,
    check_settings,
    connect,
    locked_folder,
    publish,
    translate_errors,
)

KeyedBy = Literal["unit", "row", "slot"]
Fractions = tuple[float, float, float]
UNASSIGNED = -1
_FORMAT = 1
_APPLICATION = 0x56435054  # "VCPT", in the header of the file
_SYNCHRONOUS = 3  # EXTRA: the deletion of a journal reaches the disk, too
_SETTING = f"synchronous = {_SYNCHRONOUS}"
_KEY_BYTES = 32
_FAILURES = {
    "outcome": "Nothing was assigned or charged. If the file is damaged, restore it with its key "
    "from a backup.",
    "missing": "expected the assignment of individuals to partitions, but the file does not "
    "exist. Check the path, or restore the file beside its ledger.",
}
_HASH = np.dtype("S16")  # compares all bytes, up to trailing zeros
_SCHEMA = """
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    rule TEXT NOT NULL,
    key_check BLOB NOT NULL,
    recording INTEGER NOT NULL,
    sealed INTEGER NOT NULL CHECK (sealed IN (0, 1))
) STRICT;
CREATE TABLE assignments (
    hash BLOB PRIMARY KEY CHECK (length(hash) = 16),
    partition INTEGER NOT NULL CHECK (partition IN (0, 1, 2)),
    rows INTEGER NOT NULL CHECK (rows > 0)
) STRICT, WITHOUT ROWID;
"""


@dataclass(frozen=True)
class PartitionRule:
    """The rule that assigns individuals to partitions. All settings are public.

    Parameters
    ----------
    fractions : three floats that sum to 1
        Shares of train, calibration and test.
    relation : 'add-remove' or 'replace-one'
    split_key : str
        Public string that determines the draws.
    keyed_by : 'unit', 'row' or 'slot'
        What identifies an individual: a unit id, the digest of a row's content, or a slot
        id under replace-one.
    columns : tuple of str
        Declared columns that identify an individual, in order, if records have a schema. Other
        columns of the same file would identify other individuals.
    """

    fractions: Fractions
    relation: Relation
    split_key: str
    keyed_by: KeyedBy
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(map(str, self.columns)))
        object.__setattr__(self, "fractions", tuple(map(float, self.fractions)))
        check_fractions(self.fractions)
        _checks.one_of(("add-remove", "replace-one"), relation=self.relation)
        allowed = ("slot",) if self.relation == "replace-one" else ("unit", "row")
        _checks.one_of(allowed, keyed_by=self.keyed_by)
        if not isinstance(self.split_key, str):
            raise ValueError(f"Expected split_key to be a string, got {self.split_key!r}.")

    @classmethod
    def for_dataset(
        cls,
        data: Dataset | Schema,
        fractions: Fractions,
        relation: Relation,
        split_key: str,
        *,
        schema: Schema | None = None,
    ) -> "PartitionRule":
        """Choose what identifies an individual, from the declarations.

        Parameters
        ----------
        data : Dataset or Schema
        fractions, relation, split_key
            As in the class.
        schema : Schema, optional
            The schema of the data set. Its identifying columns become part of the rule, so
            that a run with another schema for the same file is rejected.

        Raises
        ------
        DataError
            Under replace-one without a slot column, or with a unit column.
        """
        declares = data.unit if isinstance(data, Schema) else data.units
        slots = data.slot if isinstance(data, Schema) else data.slots
        keyed_by: KeyedBy = "row" if declares is None else "unit"
        if relation == "replace-one":
            if slots is None or declares is not None:
                raise DataError(
                    data.name,
                    "one slot id per individual, which a replacement inherits, to partition "
                    "records under replace-one",
                    "none" if slots is None else "units, which may have rows in several slots",
                    "Declare a column as kind = 'slot' (and none as 'unit'), or use the "
                    "relation add-remove.",
                )
            keyed_by = "slot"
        declared = data if isinstance(data, Schema) else schema
        columns = () if declared is None else _identifying_columns(declared, keyed_by)
        return cls(fractions, relation, split_key, keyed_by, columns)

    def __str__(self) -> str:
        shares = "/".join(f"{share:g}" for share in self.fractions)
        names = ", ".join(self.columns)
        columns = f" ({names[:200]}{'…' if len(names) > 200 else ''})" if names else ""
        return (
            f"the split key {self.split_key!r} with shares {shares} by {self.keyed_by}{columns}"
        )

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> "PartitionRule":
        """Parse the fields, of which tuples may be lists."""
        try:
            lists = {name: tuple(entries[name]) for name in ("fractions", "columns")}
            return cls(**{**entries, **lists})
        except (KeyError, TypeError, ValueError) as cause:
            raise DataError(
                "partitions",
                "a rule with fractions, relation, split_key and keyed_by",
                repr(entries)[:80],
                "Update Veracal if the file is newer.",
            ) from cause


@dataclass(frozen=True, repr=False)
class AssignmentNotice:
    """Comparison of records with the individuals that were recorded before.

    An id with a different spelling looks like a new individual, who may be assigned to the test
    partition after having been trained on. Software cannot distinguish the two cases, but the
    data holder can, from these counts. The counts are not private and for the data holder only:
    no release, report, ledger or result may contain them, and ``repr`` omits them.

    Attributes
    ----------
    keyed_by : 'unit', 'row' or 'slot'
    known, new : int
        Individuals of these records that were recorded before, and that were not. New units are
        assigned to a partition if new ones are admitted; rows and slots are not.
    absent : int
        Recorded individuals that are not in these records.
    left_out : int
        Rows of these records that are in no partition.
    """

    keyed_by: KeyedBy
    known: int
    new: int
    absent: int
    left_out: int

    def __repr__(self) -> str:
        return f"AssignmentNotice(keyed_by={self.keyed_by!r})"


@dataclass(frozen=True, eq=False, repr=False)
class Assignment:
    """Partition of each row of a data set.

    Attributes
    ----------
    parts : array of int8 of shape (n,)
        0, 1, 2 for train, calibration and test; -1 for a row in no partition.
    left_out : int
        Number of rows in no partition. It is not private: for the data holder only.
    recording : int
        Number of the recording that was used, for :meth:`PartitionStore.seal`.
    notice : AssignmentNotice or None
        For the data holder before a charge: individuals are new, or rows are in no partition.
    """

    parts: Ints
    left_out: int
    recording: int
    notice: AssignmentNotice | None = None
    _new_units: "_Table | None" = None  # new units, which sealing records

    def __repr__(self) -> str:
        return f"Assignment(recording={self.recording})"


class PartitionStore:
    """The stored assignment of one data set.

    Parameters
    ----------
    path : path
        An SQLite file, by convention the ledger's path with the suffix ``.partitions``. Its
        secret key is in a file with the further suffix ``.key``.

    Guarantees
    ----------
    Once a recording is sealed, or ``fresh`` is false, no individual is in two partitions over
    all calls of :meth:`assign`: on any machine, with any version of the libraries, in any
    order of rows, with any features, and after any correction of values.

    - By units: a unit keeps its partition. A new unit is assigned by a hash of its id alone,
      and recorded when the assignment is sealed. A run that stops before that leaves no trace,
      so the next run notifies the data holder of the same new units again.
    - By rows: a row is used only if its content was recorded, and at most as often as it was
      recorded. A corrected or new row is in no partition.
    - By slots: a slot keeps its partition for any individual; an unknown slot is in none.

    Therefore the assignments of neighboring data sets differ in exactly one partition, by one
    unit. A recording is one transaction: two processes get the same one, and a crash leaves all
    of it or nothing. Without unit ids, one case is not covered: a corrected row that equals,
    cell for cell, a recorded row of another individual who has left since then.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._transaction(write=False) as connection:
            rule, check = connection.execute("SELECT rule, key_check FROM state").fetchone()
        self.rule = PartitionRule.from_dict(json.loads(rule))
        self._secret = _read_key(key_path(self.path))
        if not hmac.compare_digest(bytes(check), _key_check(self._secret)):
            raise LedgerError(
                f"{key_path(self.path)}: expected the secret key of {self.path}, found another.",
                "Restore the key file that was created with it: without it, individuals cannot "
                "be recognized and would change partitions.",
            )

    def __repr__(self) -> str:
        return f"PartitionStore({str(self.path)!r})"

    @classmethod
    def create(cls, path: str | Path, rule: PartitionRule) -> "PartitionStore":
        """Create a store without assignments, and its secret key.

        Raises a ``DataError`` if a file exists at the path, and a ``LedgerError`` if the folder
        is on a file system that other machines may share.
        """
        path, key = Path(path), key_path(Path(path))
        with translate_errors(path, **_FAILURES), locked_folder(path) as folder:
            check_new_path(path, "partition store")
            if os.path.lexists(key):  # left by an interrupted creation
                secret = _read_key(key)
            else:
                secret = os.urandom(_KEY_BYTES)
                with publish(key, folder) as temporary:
                    temporary.write_bytes(secret)
            with publish(path, folder) as temporary, connect(temporary, _SETTING) as connection:
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {_FORMAT}")
                connection.executescript(_SCHEMA)
                connection.execute(
                    "INSERT INTO state VALUES (1, ?, ?, 0, 0)",
                    (json.dumps(asdict(rule), sort_keys=True), _key_check(secret)),
                )
        return cls(path)

    @classmethod
    def obtain(cls, path: str | Path, rule: PartitionRule, *, fresh: bool) -> "PartitionStore":
        """Open the store at a path, or create it if nothing was charged yet.

        ``fresh`` tells whether no charge was ever made against the ledger. Only then a store is
        created, or the rule of an unsealed store is changed. Raises a ``LedgerError`` if the
        store is missing although something was charged, or has another rule.
        """
        path = Path(path)
        if not os.path.lexists(path):
            if not fresh:
                raise LedgerError(
                    f"{path}: expected the partition assignment of earlier runs, but the file "
                    "does not exist.",
                    "Restore it beside its ledger, with its key file: a new assignment would "
                    "put individuals in two partitions.",
                )
            with suppress(DataError):  # created concurrently; it is opened below
                return cls.create(path, rule)
        store = cls(path)
        if store.rule != rule and fresh:
            with store._transaction(write=True) as connection:
                update = connection.execute(
                    "UPDATE state SET rule = ?, recording = recording + 1 WHERE sealed = 0",
                    (json.dumps(asdict(rule), sort_keys=True),),
                )
                if update.rowcount == 1:
                    connection.execute("DELETE FROM assignments")
                    store.rule = rule
        if store.rule != rule:
            raise LedgerError(
                f"{path}: individuals were assigned by {store.rule}, but this "
                f"run specifies {rule}.",
                "With another split, or identified by other columns, an individual could be in "
                "two partitions. Use the settings and columns of the first run, or another "
                "ledger if these are other individuals.",
            )
        return store

    def assign(self, dataset: Dataset, *, fresh: bool, grow: bool = True) -> Assignment:
        """Partition of each row. Rows and slots are recorded if nothing was charged yet.

        Parameters
        ----------
        dataset : Dataset
            With units, slots or row digests, as required by the rule.
        fresh : bool
            Whether no charge was ever made against the ledger. Then rows and slots are
            recorded again, replacing an earlier recording that was never sealed.
        grow : bool
            Whether new units are assigned to a partition, which :meth:`seal` records. If not,
            they are in none: a measurement needs no new units, and an id with a different
            spelling looks like a new unit.
        """
        ids, draws = self._identify(dataset)
        hashes = self._hash_ids(ids)
        # Distinct individuals in the order of their hashes, which does not depend on the rows'.
        keys, first, numbers = np.unique(hashes, return_index=True, return_inverse=True)
        draws = draws[first]
        drawn = assign_partitions(
            even_draws(draws) if self.rule.keyed_by == "slot" else draws, self.rule.fractions
        )
        current = _Table(keys, drawn, np.bincount(numbers))
        by_units, new_units = self.rule.keyed_by == "unit", None
        with self._transaction(write=fresh and not by_units) as connection:
            rule, recording, sealed = connection.execute(
                "SELECT rule, recording, sealed FROM state"
            ).fetchone()
            if PartitionRule.from_dict(json.loads(rule)) != self.rule:
                raise LedgerError(
                    f"{self.path}: another run has changed the rule. Start again."
                )
            table = _load_table(connection)
            if (
                fresh
                and not by_units
                and not sealed
                and not all(map(np.array_equal, table, current))
            ):
                recording += 1
                connection.execute("DELETE FROM assignments")
                connection.execute("UPDATE state SET recording = ?", (recording,))
                _insert(connection, current)
                table = current
        is_known = np.isin(keys, table.keys)
        known, recorded, present = int(is_known.sum()), len(table.keys), len(keys)
        parts = table.values_of(keys, table.parts, UNASSIGNED).astype(np.int8)
        if by_units and grow:
            new_units = _Table(*(column[~is_known] for column in current))
            parts[~is_known] = new_units.parts
        parts = parts[numbers]
        if not by_units:
            recorded_rows = table.values_of(keys, table.rows, 0)
            parts[_rank_within_groups(numbers) >= recorded_rows[numbers]] = UNASSIGNED
        left_out = int(np.count_nonzero(parts < 0))
        if self.rule.keyed_by == "row":  # equal rows count as separate individuals
            known, recorded, present = len(parts) - left_out, int(table.rows.sum()), len(parts)
        notice = AssignmentNotice(
            self.rule.keyed_by, known, present - known, recorded - known, left_out
        )
        is_needed = left_out > 0 or (recorded > 0 and notice.new > 0)
        return Assignment(parts, left_out, recording, notice if is_needed else None, new_units)

    def seal(self, assignment: Assignment) -> None:
        """Make a recording permanent. Call it before the first charge that relies on it.

        New units are recorded now. If another process has recorded one of them meanwhile, the
        rule has assigned it to the same partition.

        Raises
        ------
        LedgerError
            If another run has recorded other rows since the assignment was made.
        """
        with self._transaction(write=True) as connection:
            update = connection.execute(
                "UPDATE state SET sealed = 1 WHERE recording = ?", (assignment.recording,)
            )
            if update.rowcount != 1:
                raise LedgerError(
                    f"{self.path}: another run has recorded other rows.",
                    "Nothing was charged. Start again.",
                )
            if assignment._new_units is not None:
                _insert(connection, assignment._new_units)

    def slot_counts(self) -> tuple[int, int, int]:
        """Number of recorded slots in train, calibration and test.

        Under replace-one the number of records is public, and every slot has one record. The
        numbers of units and rows are private and not available.
        """
        if self.rule.keyed_by != "slot":
            raise ValueError(
                f"Expected partitions of slots, whose number is public, got {self.rule!r}."
            )
        with self._transaction(write=False) as connection:
            counts = dict(
                connection.execute(
                    "SELECT partition, count(*) FROM assignments GROUP BY partition"
                )
            )
        return counts.get(0, 0), counts.get(1, 0), counts.get(2, 0)

    @property
    def sealed(self) -> bool:
        """Whether a recording was made permanent."""
        with self._transaction(write=False) as connection:
            return bool(connection.execute("SELECT sealed FROM state").fetchone()[0])

    def _identify(self, dataset: Dataset) -> tuple[Iterable[bytes], Floats]:
        """Id of the individual of each row, and its uniform draw."""
        kind, key = self.rule.keyed_by, self.rule.split_key
        if (dataset.units is None) == (kind == "unit"):
            raise DataError(
                dataset.name,
                f"records with{'' if kind == 'unit' else 'out'} unit ids, like those whose "
                "partitions were first assigned",
                "none" if kind == "unit" else "unit ids",
                "Use the schema of the first run, or another ledger for other individuals.",
            )
        if self.rule.relation == "replace-one" and dataset.may_drop:
            raise DataError(
                dataset.name,
                "a public number of rows for replace-one",
                "records whose loading may have dropped rows",
                "Use add-remove, or a treatment of missing values that keeps every row.",
            )
        check_identity(dataset, self.rule.relation)
        if kind == "row":
            digests = record_digests(dataset)
            return iterate_digests(digests), draws_by_digest(digests, key)
        ids = dataset.units if kind == "unit" else dataset.slots
        assert ids is not None
        return (text.encode() for text in ids.astype(TEXT).tolist()), draws_by_id(ids, key)

    def _hash_ids(self, ids: Iterable[bytes]) -> Array:
        """Keyed hash of each individual."""
        prefix = hashlib.blake2b(
            f"{self.rule.keyed_by}:".encode(), key=self._secret, digest_size=16
        )
        hashes = bytearray()
        for content in ids:
            one = prefix.copy()
            one.update(content)
            hashes += one.digest()
        return np.frombuffer(bytes(hashes), _HASH)

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        """A transaction; the writes of a block are on the disk once it ends normally."""
        with (
            translate_errors(self.path, **_FAILURES),
            connect(self.path, _SETTING) as connection,
        ):
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            check_settings(
                connection,
                self.path,
                "a partition store",
                application=_APPLICATION,
                version=_FORMAT,
                settings=("delete", _SYNCHRONOUS),
            )
            yield connection
            connection.execute("COMMIT")


def split_and_assign(
    dataset: Dataset, store: PartitionStore, *, fresh: bool, grow: bool = True
) -> tuple[Split, Assignment]:
    """Split records by the stored assignment of their ledger.

    The arguments are those of :meth:`PartitionStore.assign`. The split is that of
    :func:`veracal.data.split` with a key. Declared sizes of partitions are fractions of the
    declared total; under replace-one they are the true sizes, which are public. Seal the
    assignment before anything that relies on it is charged.
    """
    rule = store.rule
    marks = key_fingerprints(rule.split_key)
    if any(one in dataset.split_keys for one in marks):
        raise DataError(
            dataset.name,
            "records that were not split by this key before",
            "one of their partitions",
            "Split the whole data set.",
        )
    assignment = store.assign(dataset, fresh=fresh, grow=grow)
    marked = dataset._changed(split_keys=(*dataset.split_keys, *marks))
    split = split_by_assignment(
        marked, assignment.parts, rule.fractions, rule.relation, secret=False
    )
    if rule.relation == "replace-one":
        sized: dict[str, Any] = {n: p._changed(size=len(p)) for n, p in split.parts.items()}
        split = replace(split, **sized)
    return split, assignment


class _Table(NamedTuple):
    """Individuals sorted by their keyed hash, with partition and number of rows."""

    keys: Array
    parts: Ints
    rows: Ints

    def values_of(self, keys: Array, values: Ints, absent: int) -> Ints:
        """The value of each individual; ``absent`` for those that are not in the table."""
        if not len(self.keys):
            return np.full(len(keys), absent)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, values[at], absent)


def _rank_within_groups(numbers: Ints) -> Ints:
    """For each row, how many earlier rows have the same number."""
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    lengths = np.diff(starts, append=len(order))
    ranks = np.empty(len(numbers), np.int64)
    ranks[order] = np.arange(len(order)) - np.repeat(starts, lengths)
    return ranks


def _load_table(connection: sqlite3.Connection) -> _Table:
    """The recorded assignments."""
    cursor = connection.execute("SELECT hash, partition, rows FROM assignments ORDER BY hash")
    columns = tuple(zip(*cursor, strict=True))
    keys, parts, rows = columns or ((), (), ())
    return _Table(
        np.frombuffer(b"".join(keys), _HASH),
        np.array(parts, dtype=np.int8),
        np.array(rows, dtype=np.int64),
    )


def _insert(connection: sqlite3.Connection, table: _Table) -> None:
    """Record individuals, in the order of their hashes, unless they are recorded already."""
    connection.executemany(
        "INSERT INTO assignments VALUES (?, ?, ?) ON CONFLICT (hash) DO NOTHING",
        zip(
            iterate_digests(table.keys), table.parts.tolist(), table.rows.tolist(), strict=True
        ),
    )


def _identifying_columns(schema: Schema, keyed_by: KeyedBy) -> tuple[str, ...]:
    """Columns of a schema that identify the individual of a record."""
    if keyed_by == "row":
        kept = schema.columns.items()
        return tuple(name for name, column in kept if not isinstance(column, Ignore))
    name = schema.unit if keyed_by == "unit" else schema.slot
    return () if name is None else (name,)  # published tables have slots without a column


def _key_check(secret: bytes) -> bytes:
    """A hash that identifies the key and reveals nothing else."""
    return hashlib.blake2b(b"veracal partitions", key=secret, digest_size=16).digest()


def key_path(path: Path) -> Path:
    """Path of a store's secret key."""
    return Path(f"{path}.key")


def _read_key(path: Path) -> bytes:
    """Read a secret key from a file that only its owner can read."""
    remedy = (
        "Restore the key file that was created with the partitions: without it, individuals "
        "cannot be recognized and would change partitions."
    )
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as cause:
        raise LedgerError(
            f"{path}: expected a secret key, found {cause.strerror or cause}.", remedy
        ) from cause
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise LedgerError(
                f"{path}: expected a regular file with one name, found a link.", remedy
            )
        if status.st_mode & 0o077:
            raise LedgerError(
                f"{path}: expected a secret key that only its owner can read, found mode "
                f"{stat.S_IMODE(status.st_mode):o}.",
                "Remove the permissions of other users (chmod 600).",
            )
        secret = file.read(_KEY_BYTES + 1)
    if len(secret) != _KEY_BYTES:
        raise LedgerError(
            f"{path}: expected a key of {_KEY_BYTES} bytes, found {len(secret)}.", remedy
        )
    return secret
