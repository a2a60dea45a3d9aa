"""Assign records to the partitions train, calibration and test, each unit by itself.

The assignment is a function of who a record belongs to, never of what was computed from the
record: its unit id, its slot id under replace-one, or else the digest of its content.
"""

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from veracal import _checks, _random
from veracal._types import Array, Floats, Ints
from veracal.data.dataset import Dataset
from veracal.data.row_digests import digests_of_records, each
from veracal.data.units import coins_of, keyed_coins, unit_numbers
from veracal.errors import DataError

Relation = Literal["add-remove", "replace-one"]
PARTS = ("train", "calibration", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """Disjoint parts of a data set, and how they were dealt.

    Attributes
    ----------
    train, calibration, test : Dataset or None
        None where the fraction is 0. Each part's declared size is its share of the whole's:
        the real size of a part is private under add/remove.
    fractions : tuple of three floats
    relation : 'add-remove' or 'replace-one'
        The neighboring relation under which the deal keeps parts apart.
    secret : bool
        Whether the coins came from entropy that nobody has seen. Then the parts' costs also
        average: delta(epsilon) is at most the weighted sum of the parts', not only their
        maximum. False with a key, and with a generator, whose seed somebody may know.
    left_out : int
        Rows that are in no partition, because the ledger's assignment does not know them.
        It is a figure about the records, for the data holder only: ``repr`` does not show
        it, and no release may.
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
        """The parts there are, by name."""
        found = {name: getattr(self, name) for name in PARTS}
        return {name: part for name, part in found.items() if part is not None}


def split(
    dataset: Dataset,
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
    *,
    relation: Relation = "add-remove",
    fixed_size: bool = False,
    key: str | None = None,
    rng: np.random.Generator | None = None,
) -> Split:
    r"""Deal records, whole units at a time, to train, calibration and test parts.

    Each unit draws one coin :math:`u \in [0, 1)` and goes to the part whose share of the
    interval holds it (Bernoulli assignment).

    Parameters
    ----------
    dataset : Dataset
    fractions : three floats that sum to 1
        Shares of train, calibration and test.
    relation : 'add-remove' or 'replace-one'
    fixed_size : bool
        Deal exact shares instead, which one added record would change for all others:
        only for replace-one, where the number of records is public.
    key : str, optional
        Makes the split repeatable, and may be published. The draw is then a keyed hash of
        the unit's id; without units, of the record's content (``row_digests``, or the bytes
        of X and y if the data set was made from arrays), never of features computed from
        it; under replace-one, of the slot id, without which a key is refused. Without unit
        ids a corrected record draws anew, so use a ledger's assignment
        (:mod:`veracal.ledger.partitions`) for records that change between runs. Rows that
        loading chose at random, where a unit had too many, are chosen anew at each loading.
    rng : Generator, optional
        Secret source of the coins; by default fresh entropy. Every call is then a split of
        its own, and an individual may be in the train partition of one and in the test
        partition of another: costs of runs on different splits add, and two processes that
        need the same parts use ``key``, or one of them splits and hands the parts on. A
        generator whose seed is published voids the guarantee, since inserting one row re-deals
        all later ones: use ``key`` for that.

    Returns
    -------
    Split

    Guarantees
    ----------
    Under the stated relation, neighboring data sets are dealt to parts of which exactly one
    differs, by one unit. Mechanisms run on different parts therefore cost together the
    largest of their costs, not the sum (parallel composition). This holds for one split, and
    with a key for every split of the same records with the same key and fractions, on any
    machine and in any order of rows. For replace-one the number of rows must be public, so
    data of which loading may have dropped some are refused; with units, only secret coins
    will do, since a newcomer's rows may stand anywhere.
    """
    check_fractions(fractions)
    _checks.one_of(("add-remove", "replace-one"), relation=relation)
    if fixed_size and relation != "replace-one":
        raise ValueError(
            "Expected relation='replace-one' with fixed_size=True, got 'add-remove': under "
            "add/remove the size is private and exact shares would move other records."
        )
    _check_choices(dataset, relation, key, rng)
    drawn = None if key is not None else _draw_mark(rng)
    place = _places(dataset, fractions, relation, fixed_size, key, rng)
    dealt = dataset._changed(dealt_by=(*dataset.dealt_by, *mark(key)))
    secret = key is None and rng is None
    return cut(dealt, place, fractions, relation, secret=secret, drawn=drawn)


def cut(
    dataset: Dataset,
    place: Ints,
    fractions: tuple[float, float, float],
    relation: Relation,
    *,
    secret: bool,
    drawn: str | None = None,
) -> Split:
    """Make the partitions that rows were assigned to; a negative number leaves a row out.

    ``drawn`` marks the random draws that assigned them, if it was not a key.
    """
    parts = [
        _part(_drawn(dataset, drawn, name), place == i, fraction)
        for i, (name, fraction) in enumerate(zip(PARTS, fractions, strict=True))
    ]
    if parts[0] is None:
        raise ValueError(f"Expected a train fraction > 0, got fractions={fractions!r}.")
    left_out = int(np.count_nonzero(place < 0))
    return Split(parts[0], parts[1], parts[2], fractions, relation, secret, left_out)


def check_fractions(fractions: tuple[float, float, float]) -> None:
    """Raise unless there are three shares that make a whole."""
    if len(fractions) != len(PARTS) or abs(sum(fractions) - 1) > 1e-9:
        raise ValueError(
            "Expected three fractions (train, calibration, test) that sum to 1, got "
            f"{fractions!r}."
        )
    _checks.fraction(**dict(zip(PARTS, fractions, strict=True)))


def _check_choices(
    dataset: Dataset, relation: Relation, key: str | None, rng: np.random.Generator | None
) -> None:
    """Raise for choices under which the guarantee would not hold."""
    if key is not None and (rng is not None or not isinstance(key, str)):
        raise ValueError(f"Expected either a key as text or an rng, got {key!r} and {rng!r}.")
    if relation == "replace-one" and dataset.may_drop:
        raise ValueError(
            "Expected data whose number of rows is public for relation='replace-one', got some "
            "of which loading may have dropped rows: use 'add-remove', or a treatment of "
            "missing values that keeps every row."
        )
    if relation == "replace-one" and key is not None and dataset.units is not None:
        raise ValueError(
            "Expected no key for relation='replace-one' with units, got one: leave it out, so "
            "that the coins are secret."
        )
    if key is not None:
        check_identity(dataset, relation)
    if any(mark in dataset.dealt_by for mark in mark(key)):
        raise ValueError(
            "Expected a key that has not dealt these rows before, got the same one again, "
            "which would send all of them to one part."
        )


def mark(key: str | None) -> tuple[str, ...]:
    """What remembers that a key was used, without giving it away."""
    if key is None:
        return ()
    return (hashlib.blake2b(key.encode(), person=b"veracal mark", digest_size=8).hexdigest(),)


def _draw_mark(rng: np.random.Generator | None) -> str:
    """A mark of the draws that are about to be made: another one for every secret generator.

    It says nothing about records. Generators of one seed, which make one split, have one mark.
    """
    if rng is None or _random.is_secret(rng):
        return secrets.token_hex(8)
    state = repr(rng.bit_generator.state)
    return hashlib.blake2b(state.encode(), person=b"veracal drawn", digest_size=8).hexdigest()


def _drawn(dataset: Dataset, mark: str | None, part: str) -> Dataset:
    """Rows of one part, which remember by which draws they were split."""
    if mark is None:
        return dataset
    return dataset._changed(drawn_by=(*dataset.drawn_by, f"{part}:{mark}"))


def _places(
    dataset: Dataset,
    fractions: tuple[float, float, float],
    relation: Relation,
    fixed_size: bool,
    key: str | None,
    rng: np.random.Generator | None,
) -> Ints:
    """Part that each row goes to."""
    numbers, n_units = unit_numbers(dataset.units, len(dataset))
    if key is not None:
        coins = _unit_values(_keyed(dataset, relation, key), numbers, n_units)
    else:
        coins = (_random.secret_generator() if rng is None else rng).random(n_units)
    if fixed_size:
        coins = exact_shares(coins)
    place = parts_of(coins, fractions)
    return place if dataset.units is None else place[numbers]


def parts_of(coins: Floats, fractions: tuple[float, float, float]) -> Ints:
    """Number of the partition whose share of [0, 1) holds each draw."""
    edges = np.cumsum(fractions)[:-1]
    edges[np.cumsum(fractions[:0:-1])[::-1] == 0] = 1  # or rounding leaves room for no part
    return np.searchsorted(edges, coins, side="right").astype(np.int8)


def exact_shares(coins: Floats) -> Floats:
    """Spread draws evenly over [0, 1), in their own order."""
    ranks = np.argsort(np.argsort(coins, kind="stable"), kind="stable")
    shares: Floats = (ranks + 0.5) / max(1, len(coins))
    return shares


def split_secret(key: str) -> bytes:
    """The key of the hash that a public split key stands for."""
    return hashlib.blake2b(key.encode(), person=b"veracal split").digest()


def draws_by_id(ids: Array, key: str) -> Floats:
    """Draw of each unit or slot id under a public split key."""
    return keyed_coins(ids, split_secret(key))


def draws_by_digest(digests: Array, key: str) -> Floats:
    """Draw of each row digest under a public split key."""
    return coins_of((digest.hex().encode() for digest in each(digests)), split_secret(key))


def identities(dataset: Dataset) -> Array:
    """Digest of each record: from its file, or from X and y if it was made from arrays.

    Raises
    ------
    DataError
        If X was computed from the records and their digests are not known.
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
    """Refuse a repeatable split of records that nothing identifies.

    Raises
    ------
    DataError
        Under replace-one without slot ids: a row number is no identity, since sorting a
        table gives its rows other numbers.
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
        identities(dataset)


def _unit_values(values: Floats, numbers: Ints, n_units: int) -> Floats:
    """One value for each unit, from rows that agree."""
    result = np.empty(n_units)
    result[numbers] = values
    return result


def _keyed(dataset: Dataset, relation: Relation, key: str) -> Floats:
    """A draw for each row that depends on its slot, its unit, or its record's content."""
    if relation == "replace-one":
        assert dataset.slots is not None
        return draws_by_id(dataset.slots, key)  # whoever takes a slot has its partition
    if dataset.units is not None:
        return draws_by_id(dataset.units, key)
    return draws_by_digest(identities(dataset), key)


def _part(dataset: Dataset, mask: Array, fraction: float) -> Dataset | None:
    """Rows of one part, with its nominal size."""
    if fraction == 0:
        return None
    size = None if dataset.size is None else max(1, round(dataset.size * fraction))
    return dataset.take(mask)._changed(size=size)
