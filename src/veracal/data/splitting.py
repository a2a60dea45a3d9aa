"""Assign records to the partitions train, calibration and test, one unit at a time.

The assignment is a function of the identity of a record, never of features computed from it: of
its unit id, of its slot id under replace-one, or else of the digest of its content.
"""

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from veracal import _checks, _random
from veracal._types import Array, Floats, Ints
from veracal.data.dataset import Dataset, unit_numbers
from veracal.data.row_digests import digests_of_records, iterate_digests
from veracal.data.rows import TEXT
from veracal.errors import DataError

Relation = Literal["add-remove", "replace-one"]
PARTITIONS = ("train", "calibration", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """Disjoint partitions of a data set, and how they were drawn.

    Attributes
    ----------
    train, calibration, test : Dataset or None
        None where the fraction is 0. The declared size of a partition is its share of the
        declared size of the whole: its real size is private under add-remove.
    relation : 'add-remove' or 'replace-one'
        The neighboring relation under which neighbors differ in one partition only.
    secret : bool
        Whether the draws came from secret entropy. Then the costs of the partitions also
        average: delta(epsilon) is at most their weighted sum, not only their maximum. False
        with a key, and with a generator, whose seed may be known.
    left_out : int
        Number of rows in no partition, because the ledger's assignment does not hold them.
        It is a figure about the records, for the data holder only: neither ``repr`` nor any
        release shows it.
    """

    train: Dataset
    calibration: Dataset | None
    test: Dataset | None
    fractions: tuple[float, float, float]
    relation: Relation
    secret: bool
    left_out: int = field(default=0, repr=False)

    @property
    def parts(self) -> dict[str, Dataset]:
        """Partitions with a positive share, by name."""
        partitions = {name: getattr(self, name) for name in PARTITIONS}
        return {name: part for name, part in partitions.items() if part is not None}


def split(
    dataset: Dataset,
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
    *,
    relation: Relation = "add-remove",
    fixed_size: bool = False,
    key: str | None = None,
    rng: np.random.Generator | None = None,
) -> Split:
    r"""Split records, whole units at a time, into train, calibration and test partitions.

    Each unit draws one number :math:`u \in [0, 1)` and goes to the partition whose share of
    the interval contains it (Bernoulli assignment).

    Parameters
    ----------
    fractions : three floats that sum to 1
        Shares of train, calibration and test.
    fixed_size : bool
        Assign exact shares instead. One added record would change the assignment of others,
        so this is only for replace-one, where the number of records is public.
    key : str, optional
        Makes the split repeatable, and may be published. The draw is then a keyed hash of
        the unit id; without units, of the record's content (``row_digests``, or the bytes
        of X and y if the data set was made from arrays), never of features computed from
        it; under replace-one, of the slot id, without which a key is rejected. Without unit
        ids a corrected record gets a new draw, so use a ledger's assignment
        (:mod:`veracal.ledger.partitions`) for records that change between runs. Rows that
        loading samples from a unit with too many are sampled again at each loading.
    rng : Generator, optional
        Secret source of the draws; by default fresh entropy. Every call is then a different
        split, and an individual may be in the train partition of one and in the test
        partition of another. Costs of runs on different splits add. Two processes that need
        the same partitions use ``key``, or one splits and passes the partitions on. A
        generator whose seed is published voids the guarantee, since inserting one row changes
        the draws of all later rows: use ``key`` instead.

    Guarantees
    ----------
    Under the stated relation, the partitions of neighboring data sets differ in exactly one
    partition, by one unit. Mechanisms run on different partitions therefore cost together
    the largest of their costs, not the sum (parallel composition). This holds for one split,
    and with a key for every split of the same records with the same key and fractions, on any
    machine and in any order of rows. For replace-one the number of rows must be public, so
    data sets whose loading may have dropped rows are rejected; with units, only secret draws
    are accepted, since the rows of a new unit may be anywhere in the table.
    """
    check_fractions(fractions)
    _checks.one_of(("add-remove", "replace-one"), relation=relation)
    if fixed_size and relation != "replace-one":
        raise ValueError(
            "Expected relation='replace-one' with fixed_size=True, got 'add-remove': under "
            "add/remove the size is private and exact shares would move other records."
        )
    _check_choices(dataset, relation, key, rng)
    numbers, n_units = unit_numbers(dataset.units, len(dataset))
    if key is None:
        draw_id = _draw_id(rng)
        draws: Floats = (_random.secret_generator() if rng is None else rng).random(n_units)
    else:
        draw_id, draws = None, np.empty(n_units)
        # Rows of a unit agree, and a replacement inherits the partition of its slot.
        ids = dataset.slots if relation == "replace-one" else dataset.units
        if ids is None:
            draws[numbers] = draws_by_digest(record_digests(dataset), key)
        else:
            draws[numbers] = draws_by_id(ids, key)
    if fixed_size:
        draws = even_draws(draws)
    assignment = assign_partitions(draws, fractions)[numbers]
    marked = dataset._changed(split_keys=(*dataset.split_keys, *key_fingerprints(key)))
    secret = key is None and rng is None
    return split_by_assignment(
        marked, assignment, fractions, relation, secret=secret, draw_id=draw_id
    )


def split_by_assignment(
    dataset: Dataset,
    assignment: Ints,
    fractions: tuple[float, float, float],
    relation: Relation,
    *,
    secret: bool,
    draw_id: str | None = None,
) -> Split:
    """Split rows by their assigned partition numbers; a negative number leaves a row out.

    ``draw_id`` identifies the random draws that assigned them, if it was not a key.
    """
    if not fractions[0]:
        raise ValueError(f"Expected a train fraction > 0, got fractions={fractions!r}.")
    parts: list[Dataset | None] = []
    for i, (name, fraction) in enumerate(zip(PARTITIONS, fractions, strict=True)):
        if fraction == 0:
            parts.append(None)
            continue
        size = None if dataset.size is None else max(1, round(dataset.size * fraction))
        marked = _with_draw_id(dataset, draw_id, name)
        parts.append(marked.take(assignment == i)._changed(size=size))
    train, calibration, test = parts
    assert train is not None
    left_out = int(np.count_nonzero(assignment < 0))
    return Split(train, calibration, test, fractions, relation, secret, left_out)


def check_fractions(fractions: tuple[float, float, float]) -> None:
    """Raise unless there are three fractions that sum to 1."""
    if len(fractions) != len(PARTITIONS) or abs(sum(fractions) - 1) > 1e-9:
        raise ValueError(
            "Expected three fractions (train, calibration, test) that sum to 1, got "
            f"{fractions!r}."
        )
    _checks.fraction(**dict(zip(PARTITIONS, fractions, strict=True)))


def _check_choices(
    dataset: Dataset, relation: Relation, key: str | None, rng: np.random.Generator | None
) -> None:
    """Raise for arguments under which the guarantee does not hold."""
    if key is not None and (rng is not None or not isinstance(key, str)):
        raise ValueError(f"Expected either a key as text or an rng, got {key!r} and {rng!r}.")
    if relation == "replace-one" and dataset.may_drop:
        raise ValueError(
            "Expected data whose number of rows is public for relation='replace-one', got data "
            "whose loading may have dropped rows: use 'add-remove', or a treatment of missing "
            "values that keeps every row."
        )
    if relation == "replace-one" and key is not None and dataset.units is not None:
        raise ValueError(
            "Expected no key for relation='replace-one' with units, got one: leave it out, so "
            "that the draws are secret."
        )
    if key is not None:
        check_identity(dataset, relation)
    if any(fingerprint in dataset.split_keys for fingerprint in key_fingerprints(key)):
        raise ValueError(
            "Expected a key that has not split these rows before, got the same one again, "
            "which would assign all of them to one partition."
        )


def key_fingerprints(key: str | None) -> tuple[str, ...]:
    """Fingerprint that records the use of a key without revealing it; empty without a key."""
    if key is None:
        return ()
    return (hashlib.blake2b(key.encode(), person=b"veracal mark", digest_size=8).hexdigest(),)


def _draw_id(rng: np.random.Generator | None) -> str:
    """Id of the draws of one split: random for a secret generator, else a hash of its state.

    It reveals nothing about records. Generators with equal seeds, which draw the same split,
    have the same id.
    """
    if rng is None or _random.is_secret(rng):
        return secrets.token_hex(8)
    state = repr(rng.bit_generator.state)
    return hashlib.blake2b(state.encode(), person=b"veracal drawn", digest_size=8).hexdigest()


def _with_draw_id(dataset: Dataset, draw_id: str | None, partition: str) -> Dataset:
    """Record by which draws the rows of one partition were split."""
    if draw_id is None:
        return dataset
    return dataset._changed(split_draws=(*dataset.split_draws, f"{partition}:{draw_id}"))


def assign_partitions(draws: Floats, fractions: tuple[float, float, float]) -> Ints:
    """Number of the partition whose share of [0, 1) contains each draw."""
    edges = np.cumsum(fractions)[:-1]
    edges[np.cumsum(fractions[:0:-1])[::-1] == 0] = 1  # or rounding opens an empty partition
    return np.searchsorted(edges, draws, side="right").astype(np.int8)


def even_draws(draws: Floats) -> Floats:
    """Spread draws evenly over [0, 1), keeping their order."""
    ranks = np.argsort(np.argsort(draws, kind="stable"), kind="stable")
    shares: Floats = (ranks + 0.5) / max(1, len(draws))
    return shares


def _keyed_draws(ids: Iterable[bytes], key: str) -> Floats:
    r"""Uniform numbers in [0, 1), each a function of an id and a public split key only.

    Draw i is the first 53 bits of :math:`\mathrm{BLAKE2b}_{h}(id_i)`, where h is a hash of the
    key. The same id and key give the same draw, regardless of other records and of their order.
    """
    hash_key = hashlib.blake2b(key.encode(), person=b"veracal split").digest()
    keyed = hashlib.blake2b(key=hash_key, digest_size=8)
    digests = bytearray()
    for content in ids:
        state = keyed.copy()  # the key is hashed only once
        state.update(content)
        digests += state.digest()
    bits = np.frombuffer(digests, dtype="<u8").astype(np.uint64) >> np.uint64(11)
    draws: Floats = bits.astype(np.float64) * 2.0**-53
    return draws


def draws_by_id(ids: Array, key: str) -> Floats:
    """Draw of each unit or slot id under a public split key."""
    texts = (text.encode() for text in ids.astype(TEXT).tolist())
    return _keyed_draws(texts, key)


def draws_by_digest(digests: Array, key: str) -> Floats:
    """Draw of each row digest under a public split key."""
    texts = (digest.hex().encode() for digest in iterate_digests(digests))
    return _keyed_draws(texts, key)


def record_digests(dataset: Dataset) -> Array:
    """Digest of each record: of its file, or of X and y if it was made from arrays.

    Features that were computed from the records are rejected instead.
    """
    if dataset.row_digests is not None:
        return dataset.row_digests
    if dataset.encoded:
        raise DataError(
            dataset.name,
            "an identity of each record: unit ids, or digests of the file's rows",
            "features that were computed from the records",
            "Load them with row_digests=True, or declare a column as kind = 'unit': features "
            "may differ in their last bits on another machine, and a record would change its "
            "partition.",
        )
    return digests_of_records(dataset.X, dataset.y)


def check_identity(dataset: Dataset, relation: Relation) -> None:
    """Reject a repeatable split of records without an identity.

    A row number is none, since sorting a table changes the numbers.
    """
    if relation == "replace-one":
        if dataset.slots is None:
            raise DataError(
                dataset.name,
                "slot ids, which a replacement inherits, for a repeatable split under "
                "replace-one",
                "none",
                "Declare a column as kind = 'slot', or use the relation add-remove.",
            )
    elif dataset.units is None and dataset.row_digests is None and dataset.encoded:
        record_digests(dataset)
