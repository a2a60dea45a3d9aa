r"""The assignment of individuals to partitions, which a data set keeps for good.

Mechanisms on different partitions cost together the largest of their costs only if no
individual is ever in two of them, over all runs on a data set. So the assignment belongs to
the ledger of the data set: it is drawn once, stored beside the ledger, and every run reuses it.

What is stored is a keyed hash of who a record belongs to, and the number of a partition. The
32 bytes of the key come from the operating system and lie in a file of their own. Neither file
holds an id, a record or a digest that could be compared with a guessed record, and nothing of
either enters a ledger's chain, an export, an artifact, a report or a reply.
"""

import hashlib
import hmac
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

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
    check_fractions,
    check_identity,
    cut,
    draws_by_digest,
    draws_by_id,
    each,
    exact_shares,
    identities,
    mark,
    new_file,
    parts_of,
)
from veracal.errors import DataError, LedgerError
from veracal.ledger.partition_files import (
    APPLICATION,
    BESIDE,
    FORMAT,
    KEY_BYTES,
    connect,
    held_folder,
    key_path,
    publish,
    read_key,
    transaction,
)

KeyedBy = Literal["unit", "row", "slot"]
Fractions = tuple[float, float, float]
LEFT_OUT = -1
_HASH = np.dtype("S16")  # compares all bytes; trailing zeros count as what they are
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
    part INTEGER NOT NULL CHECK (part IN (0, 1, 2)),
    rows INTEGER NOT NULL CHECK (rows > 0)
) STRICT, WITHOUT ROWID;
"""


@dataclass(frozen=True)
class PartitionRule:
    """How individuals are assigned to partitions. Every setting is public.

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
        Declared columns that this is read from, in their order, where records have a schema.
        By other columns of the same file an individual would be somebody else.
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
            raise ValueError(f"Expected split_key to be a text, got {self.split_key!r}.")

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
        """Choose what identifies an individual, by what is declared.

        Parameters
        ----------
        data : Dataset or Schema
        fractions, relation, split_key
            As of the class.
        schema : Schema, optional
            That the data set was loaded through: its identifying columns become part of the
            rule, so that a run with another schema of the same file is refused.

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
                    "one slot id for each individual, which a replacement inherits, to "
                    "partition records under replace-one",
                    "none" if slots is None else "units, which may have rows in many slots",
                    "Declare a column as kind = 'slot' (and none as 'unit'), or use the "
                    "relation add-remove.",
                )
            keyed_by = "slot"
        declared = data if isinstance(data, Schema) else schema
        columns = () if declared is None else _identifying(declared, keyed_by)
        return cls(fractions, relation, split_key, keyed_by, columns)

    def to_dict(self) -> dict[str, Any]:
        """Settings as what JSON can hold."""
        lists = {"fractions": list(self.fractions), "columns": list(self.columns)}
        return {**asdict(self), **lists}

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> "PartitionRule":
        """Read what :meth:`to_dict` wrote."""
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
    """How records compare with the individuals that were recorded before them.

    An id that is spelt otherwise than before looks like a new individual, and one who was
    trained on may draw the test partition. No program can tell the two cases apart; the data
    holder can, by these figures. They are figures about the records, for the data holder only:
    no release, report, ledger or result may hold them, and ``repr`` does not show them.

    Attributes
    ----------
    keyed_by : 'unit', 'row' or 'slot'
        What an individual is.
    known : int
        Individuals of these records that were recorded before.
    new : int
        Individuals of these records that were not. Units among them draw a partition where
        new ones may; rows and slots are in none.
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
        0, 1, 2 for train, calibration and test; -1 for a row in none of them.
    left_out : int
        Rows in none of them. A figure about the records: for the data holder only.
    recording : int
        Number of the recording that was used, for :meth:`PartitionStore.seal`.
    notice : AssignmentNotice or None
        What to tell the data holder before anything is charged: some individuals are new
        where others were recorded before, or some rows are in no partition.
    """

    parts: Ints
    left_out: int
    recording: int
    notice: AssignmentNotice | None = None
    _drawn: "_Table | None" = None  # new units, which sealing records

    def __repr__(self) -> str:
        return f"Assignment(recording={self.recording})"


class PartitionStore:
    """The stored assignment of one data set.

    Parameters
    ----------
    path : path
        An SQLite file, by convention the ledger's path with ``.partitions`` after it. Its
        secret key is in a file with ``.key`` after that.

    Guarantees
    ----------
    Once a recording is sealed, or ``fresh`` is false, no individual is in two partitions over
    all calls of :meth:`assign`: on any machine, with any version of the libraries, in any
    order of rows, with any features, and whatever values were corrected meanwhile.

    - By units: a unit keeps its partition; a new one draws by a hash of its id alone, and is
      recorded when the assignment is sealed. A run that stops before leaves no trace, so that
      the next one tells the data holder of the same new units again.
    - By rows: a row counts only if its content was recorded, at most as often as it was.
      A corrected or new row is in no partition.
    - By slots: a slot keeps its partition, whoever holds it; an unknown one is in none.

    Neighboring data sets are therefore assigned so that exactly one partition differs, by one
    unit. A recording is one transaction: two processes get the same one, and a crash leaves
    all of it or nothing. Without unit ids, one case remains open: a corrected row that
    equals, cell for cell, a recorded row of another individual who has left since then.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._transaction(write=False) as connection:
            rule, check = connection.execute("SELECT rule, key_check FROM state").fetchone()
        self.rule = PartitionRule.from_dict(json.loads(rule))
        self._secret = read_key(self.key_path)
        if not hmac.compare_digest(bytes(check), _key_check(self._secret)):
            raise LedgerError(
                f"{self.key_path}: expected the secret key of {self.path}, found another.",
                "Put the key file back that was made with it: without it nobody can be "
                "recognized, and individuals would change partitions.",
            )

    def __repr__(self) -> str:
        return f"PartitionStore({str(self.path)!r})"

    @property
    def key_path(self) -> Path:
        """File of the secret key."""
        return key_path(self.path)

    @classmethod
    def create(cls, path: str | Path, rule: PartitionRule) -> "PartitionStore":
        """Make a store without assignments, and its secret key.

        Raises
        ------
        DataError
            If something is at the path already.
        LedgerError
            If the folder is on a file system that other machines may share.
        """
        path = Path(path)
        with held_folder(path) as folder:
            for ending in ("", *BESIDE):
                new_file(Path(f"{path}{ending}"), "partition store")
            if os.path.lexists(key_path(path)):  # of a creation that was interrupted
                secret = read_key(key_path(path))
            else:
                secret = os.urandom(KEY_BYTES)
                publish(key_path(path), folder, lambda one: one.write_bytes(secret))
            publish(path, folder, lambda one: _fill(one, rule, secret))
        return cls(path)

    @classmethod
    def obtain(cls, path: str | Path, rule: PartitionRule, *, fresh: bool) -> "PartitionStore":
        """Open the store at a path, or create it if nothing was charged yet.

        Parameters
        ----------
        path : path
        rule : PartitionRule
            The rule that this run asks for.
        fresh : bool
            Whether no charge was ever made against the ledger. Only then a store is created,
            or one that was never sealed given another rule.

        Raises
        ------
        LedgerError
            If the store is missing though something was charged, or its rule is another.
        """
        path = Path(path)
        if not os.path.lexists(path):
            if not fresh:
                raise LedgerError(
                    f"{path}: expected the assignment of individuals to partitions that "
                    "earlier runs used, found nothing.",
                    "Put it back beside its ledger, with its key file: a new assignment "
                    "would put individuals in two partitions.",
                )
            with suppress(DataError):  # somebody was quicker, and what they made is opened
                return cls.create(path, rule)
        store = cls(path)
        if store.rule != rule and not (fresh and store._adopt(rule)):
            raise LedgerError(
                f"{path}: individuals were assigned by {_settings(store.rule)}, and this run "
                f"asks for {_settings(rule)}.",
                "With another split, or identified by other columns, an individual would be in "
                "two partitions. Use the settings and columns of the first run, or another "
                "ledger if these are other individuals.",
            )
        return store

    def assign(self, dataset: Dataset, *, fresh: bool, grow: bool = True) -> Assignment:
        """Partition of each row. Rows and slots are recorded on the way if nothing was charged.

        Parameters
        ----------
        dataset : Dataset
            With units, slots or row digests, as the rule says.
        fresh : bool
            Whether no charge was ever made against the ledger. Then rows and slots are
            recorded anew, in the place of an earlier recording that was never sealed.
        grow : bool
            Whether new units draw a partition, which :meth:`seal` records. If not they are in
            none: a measurement needs no new ones, and an id that is spelt otherwise than
            before looks like a new one.
        """
        ids, draws = self._identified(dataset)
        hashes = self._hashed(ids)
        # Distinct individuals in the order of their hashes, which says nothing of the rows'.
        keys, first, numbers = np.unique(hashes, return_index=True, return_inverse=True)
        asked = _Table(keys, self._drawn(draws[first]), np.bincount(numbers))
        by_units, drawn = self.rule.keyed_by == "unit", None
        with self._transaction(write=fresh and not by_units) as connection:
            rule, recording, sealed = connection.execute(
                "SELECT rule, recording, sealed FROM state"
            ).fetchone()
            if PartitionRule.from_dict(json.loads(rule)) != self.rule:
                raise LedgerError(
                    f"{self.path}: another run has changed the rule meanwhile. Start again."
                )
            table = _stored(connection)
            if fresh and not by_units and not sealed and not table.equals(asked):
                recording += 1
                connection.execute("DELETE FROM assignments")
                connection.execute("UPDATE state SET recording = ?", (recording,))
                _insert(connection, asked)
                table = asked
        is_known = np.isin(keys, table.keys)
        known, recorded, found = int(is_known.sum()), len(table.keys), len(keys)
        if by_units and grow:
            drawn = asked.take(~is_known)
            table = table.merged(drawn)
        parts = table.parts_of(keys)[numbers]
        if not by_units:
            parts[_ranks(numbers) >= table.rows_of(keys)[numbers]] = LEFT_OUT
        left_out = int(np.count_nonzero(parts < 0))
        if self.rule.keyed_by == "row":  # equal rows are as many individuals
            known, recorded, found = len(parts) - left_out, int(table.rows.sum()), len(parts)
        notice = AssignmentNotice(
            self.rule.keyed_by, known, found - known, recorded - known, left_out
        )
        is_news = left_out > 0 or (recorded > 0 and notice.new > 0)
        return Assignment(parts, left_out, recording, notice if is_news else None, drawn)

    def seal(self, assignment: Assignment) -> None:
        """Fix a recording for good: to be called before the first charge that rests on it.

        New units are recorded now. Whoever else has recorded one of them meanwhile has drawn
        the same partition for it, by the same rule.

        Raises
        ------
        LedgerError
            If another run has recorded other rows since the assignment was made.
        """
        with self._transaction(write=True) as connection:
            done = connection.execute(
                "UPDATE state SET sealed = 1 WHERE recording = ?", (assignment.recording,)
            )
            if done.rowcount != 1:
                raise LedgerError(
                    f"{self.path}: another run has recorded other rows meanwhile.",
                    "Nothing was charged. Start again.",
                )
            if assignment._drawn is not None:
                _insert(connection, assignment._drawn)

    def slot_counts(self) -> tuple[int, int, int]:
        """Slots that were recorded in train, calibration and test.

        Under replace-one the number of records is public, and every slot holds one. Of units
        and rows it is not, and is not told.
        """
        if self.rule.keyed_by != "slot":
            raise ValueError(
                f"Expected partitions of slots, whose number is public, got {self.rule!r}."
            )
        with self._transaction(write=False) as connection:
            counts = dict(
                connection.execute("SELECT part, count(*) FROM assignments GROUP BY part")
            )
        return counts.get(0, 0), counts.get(1, 0), counts.get(2, 0)

    @property
    def sealed(self) -> bool:
        """Whether a recording was fixed for good."""
        with self._transaction(write=False) as connection:
            return bool(connection.execute("SELECT sealed FROM state").fetchone()[0])

    def _adopt(self, rule: PartitionRule) -> bool:
        """Take another rule, unless a recording was sealed; say whether it was taken."""
        with self._transaction(write=True) as connection:
            done = connection.execute(
                "UPDATE state SET rule = ?, recording = recording + 1 WHERE sealed = 0",
                (_written(rule),),
            )
            if done.rowcount == 1:
                connection.execute("DELETE FROM assignments")
                self.rule = rule
        return bool(done.rowcount == 1)

    def _identified(self, dataset: Dataset) -> tuple[Iterable[bytes], Floats]:
        """What identifies the individual of each row, and its draw."""
        kind, key = self.rule.keyed_by, self.rule.split_key
        if (dataset.units is None) == (kind == "unit"):
            raise DataError(
                dataset.name,
                f"records with{'' if kind == 'unit' else 'out'} unit ids, as when their "
                "partitions were first assigned",
                "none" if kind == "unit" else "unit ids",
                "Use the schema of the first run, or another ledger for other individuals.",
            )
        if self.rule.relation == "replace-one" and dataset.may_drop:
            raise DataError(
                dataset.name,
                "a public number of rows for replace-one",
                "records of which loading may have dropped some",
                "Use add-remove, or a treatment of missing values that keeps every row.",
            )
        check_identity(dataset, self.rule.relation)
        if kind == "row":
            digests = identities(dataset)
            return each(digests), draws_by_digest(digests, key)
        ids = dataset.units if kind == "unit" else dataset.slots
        assert ids is not None
        return (text.encode() for text in ids.astype(TEXT).tolist()), draws_by_id(ids, key)

    def _drawn(self, draws: Floats) -> Ints:
        """Partition of each distinct individual, for its draw."""
        if self.rule.keyed_by == "slot":
            draws = exact_shares(draws)
        return parts_of(draws, self.rule.fractions)

    def _hashed(self, ids: Iterable[bytes]) -> Array:
        """Keyed hash of each individual."""
        started = hashlib.blake2b(
            f"{self.rule.keyed_by}:".encode(), key=self._secret, digest_size=16
        )
        hashes = bytearray()
        for content in ids:
            one = started.copy()
            one.update(content)
            hashes += one.digest()
        return np.frombuffer(bytes(hashes), _HASH)

    def _transaction(self, *, write: bool) -> AbstractContextManager[sqlite3.Connection]:
        """One state of the file."""
        return transaction(self.path, write=write)


def split_and_assign(
    dataset: Dataset, store: PartitionStore, *, fresh: bool, grow: bool = True
) -> tuple[Split, Assignment]:
    """Split records by the assignment that their ledger keeps.

    Parameters
    ----------
    dataset : Dataset
    store : PartitionStore
    fresh, grow
        As of :meth:`PartitionStore.assign`.

    Returns
    -------
    tuple of (Split, Assignment)
        The split is as of :func:`veracal.data.split` with a key. Declared sizes of partitions
        are shares of the whole's; under replace-one, where they are public, the real ones.
        ``left_out`` says, to the data holder only, how many rows are in no partition. The
        assignment is to be sealed before anything that rests on it is charged.
    """
    rule = store.rule
    marks = mark(rule.split_key)
    if any(one in dataset.split_keys for one in marks):
        raise DataError(
            dataset.name,
            "records that were not split by this key before",
            "a partition of them",
            "Split the whole data set.",
        )
    found = store.assign(dataset, fresh=fresh, grow=grow)
    marked = dataset._changed(split_keys=(*dataset.split_keys, *marks))
    split = cut(marked, found.parts, rule.fractions, rule.relation, secret=False)
    if rule.relation == "replace-one":
        sized: dict[str, Any] = {n: p._changed(size=len(p)) for n, p in split.parts.items()}
        split = replace(split, **sized)
    return split, found


@dataclass(frozen=True, eq=False)
class _Table:
    """Individuals by their keyed hash, in its order, with partition and number of rows."""

    keys: Array
    parts: Ints
    rows: Ints

    def take(self, index: Array) -> "_Table":
        return _Table(self.keys[index], self.parts[index], self.rows[index])

    def merged(self, other: "_Table") -> "_Table":
        keys = np.concatenate([self.keys, other.keys])
        parts = np.concatenate([self.parts, other.parts])
        rows = np.concatenate([self.rows, other.rows])
        return _Table(keys, parts, rows).take(np.argsort(keys))

    def equals(self, other: "_Table") -> bool:
        mine, theirs = (self.keys, self.parts, self.rows), (other.keys, other.parts, other.rows)
        return all(map(np.array_equal, mine, theirs))

    def parts_of(self, keys: Array) -> Ints:
        """Partition of each of some individuals, -1 for those that are not here."""
        return self._values(keys, self.parts, LEFT_OUT).astype(np.int8)

    def rows_of(self, keys: Array) -> Ints:
        """Recorded rows of each of some individuals."""
        return self._values(keys, self.rows, 0)

    def _values(self, keys: Array, values: Ints, absent: int) -> Ints:
        if not len(self.keys):
            return np.full(len(keys), absent)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, values[at], absent)


def _ranks(numbers: Ints) -> Ints:
    """How many earlier rows have the same number as each row."""
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    lengths = np.diff(starts, append=len(order))
    ranks = np.empty(len(numbers), np.int64)
    ranks[order] = np.arange(len(order)) - np.repeat(starts, lengths)
    return ranks


def _stored(connection: sqlite3.Connection) -> _Table:
    """Everything that is recorded."""
    found = connection.execute(
        "SELECT hash, part, rows FROM assignments ORDER BY hash"
    ).fetchall()
    keys, parts, rows = zip(*found, strict=True) if found else ((), (), ())
    return _Table(
        np.frombuffer(b"".join(keys), _HASH),
        np.array(parts, dtype=np.int8),
        np.array(rows, dtype=np.int64),
    )


def _insert(connection: sqlite3.Connection, table: _Table) -> None:
    """Record individuals, in the order of their hashes, unless they are recorded."""
    connection.executemany(
        "INSERT INTO assignments VALUES (?, ?, ?) ON CONFLICT (hash) DO NOTHING",
        zip(each(table.keys), table.parts.tolist(), table.rows.tolist(), strict=True),
    )


def _written(rule: PartitionRule) -> str:
    return json.dumps(rule.to_dict(), sort_keys=True)


def _identifying(schema: Schema, keyed_by: KeyedBy) -> tuple[str, ...]:
    """Columns of a schema that say who a record belongs to."""
    if keyed_by == "row":
        kept = schema.columns.items()
        return tuple(name for name, column in kept if not isinstance(column, Ignore))
    name = schema.unit if keyed_by == "unit" else schema.slot
    return () if name is None else (name,)  # a published table brings slots without a column


def _settings(rule: PartitionRule) -> str:
    """A rule in words, for errors."""
    shares = "/".join(f"{share:g}" for share in rule.fractions)
    told = ", ".join(rule.columns)
    columns = f" ({told[:200]}{'…' if len(told) > 200 else ''})" if told else ""
    return f"the split key {rule.split_key!r} with shares {shares} by {rule.keyed_by}{columns}"


def _key_check(secret: bytes) -> bytes:
    """What tells the right key from another, and nothing else."""
    return hashlib.blake2b(b"veracal partitions", key=secret, digest_size=16).digest()


def _fill(path: Path, rule: PartitionRule, secret: bytes) -> None:
    """Write the tables of a new store."""
    connection = connect(path)
    try:
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.executescript(_SCHEMA)
        connection.execute(
            "INSERT INTO state VALUES (1, ?, ?, 0, 0)", (_written(rule), _key_check(secret))
        )
    finally:
        connection.close()
