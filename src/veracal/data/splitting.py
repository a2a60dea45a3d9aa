"""Records are dealt to parts by coins that know nothing of each other."""

import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from veracal import _checks, _random
from veracal._types import Array, Floats, Ints
from veracal.data.dataset import Dataset
from veracal.data.units import coins_of, keyed_coins, unit_numbers

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
    """

    train: Dataset
    calibration: Dataset | None
    test: Dataset | None
    fractions: tuple[float, float, float]
    relation: Relation
    secret: bool

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
        Makes the deal repeatable. The coin is then a keyed hash of the unit's id or, without
        units, of the record itself (for replace-one, of the row number), so the key may be
        published: no record moves another. Rows that loading chose at random, where a unit
        had too many, are chosen anew at each loading.
    rng : Generator, optional
        Secret source of the coins; by default fresh entropy, which makes another split every
        time: two processes that need the same parts use ``key``, or one of them splits and
        hands the parts on. A generator whose seed is published voids the guarantee, since
        inserting one row re-deals all later ones: use ``key`` for that.

    Returns
    -------
    Split

    Guarantees
    ----------
    Under the stated relation, neighboring data sets are dealt to parts of which exactly one
    differs, by one unit. Mechanisms run on different parts therefore cost together the
    largest of their costs, not the sum (parallel composition). For replace-one the number of
    rows must be public, so data of which loading may have dropped some are refused; with
    units, only secret coins will do, since a newcomer's rows may stand anywhere.
    """
    _check_fractions(fractions)
    _checks.one_of(("add-remove", "replace-one"), relation=relation)
    if fixed_size and relation != "replace-one":
        raise ValueError(
            "Expected relation='replace-one' with fixed_size=True, got 'add-remove': under "
            "add/remove the size is private and exact shares would move other records."
        )
    _check_choices(dataset, relation, key, rng)
    drawn = None if key is not None else _draw_mark(rng)
    place = _places(dataset, fractions, relation, fixed_size, key, rng)
    dealt = dataset._changed(dealt_by=(*dataset.dealt_by, *_mark(key)))
    parts = [
        _part(_drawn(dealt, drawn, name), place == i, fraction)
        for i, (name, fraction) in enumerate(zip(PARTS, fractions, strict=True))
    ]
    if parts[0] is None:
        raise ValueError(f"Expected a train fraction > 0, got fractions={fractions!r}.")
    return Split(parts[0], parts[1], parts[2], fractions, relation, key is None and rng is None)


def _check_fractions(fractions: tuple[float, float, float]) -> None:
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
    if any(mark in dataset.dealt_by for mark in _mark(key)):
        raise ValueError(
            "Expected a key that has not dealt these rows before, got the same one again, "
            "which would send all of them to one part."
        )


def _mark(key: str | None) -> tuple[str, ...]:
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
        secret = hashlib.blake2b(key.encode(), person=b"veracal split").digest()
        coins = _unit_values(_keyed(dataset, relation, secret), numbers, n_units)
    else:
        coins = (_random.secret_generator() if rng is None else rng).random(n_units)
    if fixed_size:
        coins = (np.argsort(np.argsort(coins, kind="stable"), kind="stable") + 0.5) / n_units
    edges = np.cumsum(fractions)[:-1]
    edges[np.cumsum(fractions[:0:-1])[::-1] == 0] = 1  # or rounding leaves room for no part
    place = np.searchsorted(edges, coins, side="right").astype(np.int8)
    return place if dataset.units is None else place[numbers]


def _unit_values(values: Floats, numbers: Ints, n_units: int) -> Floats:
    """One value for each unit, from rows that agree."""
    result = np.empty(n_units)
    result[numbers] = values
    return result


def _keyed(dataset: Dataset, relation: Relation, secret: bytes) -> Floats:
    """A coin for each row that hangs on its slot, its unit, or the record itself."""
    if relation == "replace-one":
        return keyed_coins(np.arange(len(dataset)), secret)  # who takes a place has its part
    if dataset.units is not None:
        return keyed_coins(dataset.units, secret)
    parts = [coins_of(_digests(part.X[:], part.y), secret) for part in dataset.batches()]
    return np.concatenate([np.empty(0), *parts])


def _digests(X: Array, y: Ints) -> Iterator[bytes]:
    """Hash of each record, as text."""
    blake2b, labels = hashlib.blake2b, y.tolist()
    tails = {label: f"\0{label}".encode() for label in set(labels)}
    for row, label in zip(_contents(X), labels, strict=True):
        yield blake2b(row + tails[label], digest_size=16).hexdigest().encode()


def _contents(X: Array) -> Iterator[bytes]:
    """The bytes of each row; an array per row would cost more than its hash."""
    if X.dtype.kind == "T":
        return ("\0".join(row).encode() for row in X.tolist())
    whole, width = X.tobytes(), X[:1].nbytes
    return (whole[i * width : (i + 1) * width] for i in range(len(X)))


def _part(dataset: Dataset, mask: Array, fraction: float) -> Dataset | None:
    """Rows of one part, with its nominal size."""
    if fraction == 0:
        return None
    size = None if dataset.size is None else max(1, round(dataset.size * fraction))
    return dataset.take(mask)._changed(size=size)
