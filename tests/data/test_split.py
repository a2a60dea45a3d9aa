"""Splits in which no record changes the partition of another."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from veracal._types import Array, Ints
from veracal.data import (
    Dataset,
    Group,
    Number,
    Schema,
    Target,
    limit_contributions,
    load,
    split,
)
from veracal.data.rows import TEXT
from veracal.data.splitting import draws_by_id
from veracal.errors import DataError

RECORDED = {  # by the first version with keys
    "floats": "dbd2b0b05f020dcd",
    "by columns": "dbd2b0b05f020dcd",
    "single": "6229adb8652deecd",
    "images": "09bbb6db84857e4d",
    "texts": "30950d89d4a2bf81",
    "numbers of units": "5b5dcd9b38f1e1ef",
    "names of units": "5507c4bd8e5b53d5",
    "slots": "39b619c8eb5388e7",
}


def dataset(
    n: int = 400, units: object = None, size: int | None = 1000, slots: object = None
) -> Dataset:
    """Rows that carry their own number."""
    return Dataset(
        np.arange(n, dtype=float)[:, None],
        np.arange(n) % 2,
        ("a", "b"),
        units=None if units is None else np.asarray(units),
        slots=None if slots is None else np.asarray(slots),
        size=size,
    )


def places(data: Dataset, **settings: object) -> dict[float, str]:
    """Partition of each row."""
    parts = split(data, **settings).parts  # type: ignore[arg-type]
    return {float(x): name for name, part in parts.items() for x in part.X[:, 0]}


def test_parts_are_disjoint_and_whole() -> None:
    data = dataset()
    parts = split(data).parts
    rows = np.concatenate([part.X[:, 0] for part in parts.values()])
    assert sorted(rows) == list(range(400))
    assert {name: part.size for name, part in parts.items()} == {
        "train": 800, "calibration": 100, "test": 100,
    }  # fmt: skip


def test_the_split_is_bernoulli() -> None:
    """Sizes of partitions vary like those of independent draws."""
    rng = np.random.default_rng(0)
    sizes = [len(split(dataset(200), (0.7, 0.2, 0.1), rng=rng).train) for _ in range(2000)]
    low, high = stats.chi2(1999).ppf([0.0005, 0.9995]) / 1999
    assert low < np.var(sizes, ddof=1) / (200 * 0.7 * 0.3) < high
    assert abs(np.mean(sizes) - 140) < 4 * np.sqrt(200 * 0.7 * 0.3 / 2000)
    fixed = [
        len(split(dataset(200), (0.7, 0.2, 0.1), relation="replace-one", fixed_size=True).train)
        for _ in range(5)
    ]
    assert fixed == [140] * 5  # the close wrong distribution: no variance at all


def test_a_share_of_zero_gives_no_part() -> None:
    parts = split(dataset(), (0.9, 0.0, 0.1))
    assert parts.calibration is None and set(parts.parts) == {"train", "test"}


@pytest.mark.parametrize("train", [0.1, 0.35, 0.7, 0.9, 1 - 1e-12])
def test_rounding_assigns_no_unit_to_an_empty_partition(train: float) -> None:
    class Last(np.random.Generator):
        def random(self, size: int) -> np.ndarray:  # type: ignore[override]
            return np.full(size, np.nextafter(1, 0))

    parts = split(dataset(), (train, 1 - train, 0.0), rng=Last(np.random.PCG64(0)))
    assert parts.calibration is not None and len(parts.calibration) == 400


def test_fresh_splits_differ() -> None:
    assert places(dataset()) != places(dataset())


@pytest.mark.parametrize("with_units", [False, True])
def test_a_key_repeats_and_another_key_does_not(with_units: bool) -> None:
    data = dataset(units=np.arange(400) // 2 if with_units else None)
    assert places(data, key="2026") == places(data, key="2026")
    assert places(data, key="2026") != places(data, key="2027")


@given(st.sets(st.integers(0, 399)), st.booleans(), st.randoms())
def test_removing_records_moves_no_other(
    gone: set[int], with_units: bool, random: object
) -> None:
    """Under a published key, what stays goes where it went before, in any order."""
    data = dataset(units=[f"p{i // 3}" for i in range(400)] if with_units else None)
    before = places(data, key="k")
    kept = np.array([i for i in range(400) if i not in gone], dtype=int)
    np.random.default_rng(len(gone)).shuffle(kept)
    after = places(data.take(kept), key="k")
    assert all(before[row] == part for row, part in after.items())


def test_replacing_a_row_keeps_its_part() -> None:
    """A replacement inherits the partition of its slot, in any order of rows."""
    data = dataset(slots=np.arange(400))
    before = places(data, key="k", relation="replace-one")
    X = np.array(data.X)
    X[40] = -1
    replaced = data._changed(X=X).take(np.random.default_rng(0).permutation(400))
    after = places(replaced, key="k", relation="replace-one")
    assert {x if x >= 0 else 40.0: part for x, part in after.items()} == before


def test_a_row_number_is_no_identity_under_replace_one() -> None:
    with pytest.raises(DataError, match=r"slot.*Declare a column as kind = 'slot'.*add-remove"):
        split(dataset(), key="k", relation="replace-one")
    assert split(dataset(), relation="replace-one").secret


def test_replace_one_wants_a_public_number_of_rows(tmp_path: Path) -> None:
    """A replacement that is dropped for a missing value would move all later records."""
    (tmp_path / "t.csv").write_text("x,y\n1,a\n2,b\n")
    dropping = Schema(
        {"x": Number(0, 9, missing="drop"), "y": Target(("a", "b"))}, missing=["?"]
    )
    with pytest.raises(ValueError, match="may have dropped rows"):
        split(load(tmp_path / "t.csv", schema=dropping), relation="replace-one")
    keeping = Schema({"x": Number(0, 9), "y": Target(("a", "b"))})
    split(load(tmp_path / "t.csv", schema=keeping), relation="replace-one")
    limited = limit_contributions(dataset(4, units=[0, 0, 1, 1]), max_contributions=1)
    with pytest.raises(ValueError, match="may have dropped rows"):
        split(limited, relation="replace-one")
    with pytest.raises(ValueError, match="no key .* with units"):
        split(dataset(4, units=[0, 0, 1, 1]), relation="replace-one", key="k")


def test_a_key_deals_the_same_rows_once() -> None:
    train = split(dataset(), key="k").train
    with pytest.raises(ValueError, match="not split these rows before"):
        split(train, key="k")
    assert len(split(train, key="another").parts) == 3


@pytest.mark.parametrize(
    "settings", [{}, {"key": "k"}, {"relation": "replace-one", "fixed_size": True}]
)
def test_units_stay_together(settings: dict[str, object]) -> None:
    units = np.random.default_rng(0).integers(50, size=400)
    where = places(dataset(units=units), **settings)
    for unit in range(50):
        assert len({where[float(i)] for i in np.flatnonzero(units == unit)}) <= 1


def test_exact_shares_only_for_replace_one() -> None:
    with pytest.raises(ValueError, match="replace-one"):
        split(dataset(), fixed_size=True)
    parts = split(dataset(), fixed_size=True, relation="replace-one")
    assert [len(part) for part in parts.parts.values()] == [320, 40, 40]


@pytest.mark.parametrize(
    "fractions", [(1.0,), (0.5, 0.5, 0.5), (-0.1, 0.6, 0.5), (0, 0.5, 0.5)]
)
def test_fractions_that_make_no_whole(fractions: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="fraction|between"):
        split(dataset(), fractions)  # type: ignore[arg-type]


def test_choices_that_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="either a key as text or an rng"):
        split(dataset(), key="k", rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="a key as text"):
        split(dataset(), key=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="relation"):
        split(dataset(), relation="bounded")  # type: ignore[arg-type]


def test_secrecy_is_remembered() -> None:
    assert split(dataset()).secret
    assert not split(dataset(), key="k").secret
    assert not split(dataset(), rng=np.random.default_rng(0)).secret


def test_keyed_draws_are_uniform_and_independent_of_other_records() -> None:
    ids = np.arange(20_000)
    draws = draws_by_id(ids, "key")
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    assert stats.kstest(draws**1.05, "uniform").pvalue < 1e-3
    assert (draws_by_id(ids[::-7], "key") == draws[::-7]).all()
    assert (draws_by_id(ids.astype(TEXT), "key") == draws).all()
    assert ((0 <= draws) & (draws < 1)).all()


def test_a_keyed_split_agrees_with_earlier_versions() -> None:
    """The key of an old ledger gives the same individuals in each partition."""
    rng = np.random.default_rng(0)
    X, y = rng.integers(-9, 9, (300, 4)) / 4, rng.integers(0, 12, 300)
    texts = np.array([[f"é{a}", str(b)] for a, b in X[:, :2]], dtype=TEXT)
    images = (4 * X + 50).astype(np.uint8).reshape(300, 2, 2)
    partitions = {
        "floats": split_digest(X, y),
        "by columns": split_digest(np.asfortranarray(X), y),
        "single": split_digest(X.astype(np.float32), y),
        "images": split_digest(images, y),
        "texts": split_digest(texts, y),
        "numbers of units": split_digest(X, y, units=np.arange(300) // 3 - 7),
        "names of units": split_digest(
            X, y, units=np.array([f"ü{i // 3}" for i in range(300)])
        ),
        "slots": split_digest(X, y, slots=np.arange(300), relation="replace-one"),
    }
    assert partitions["by columns"] == partitions["floats"]
    assert partitions == RECORDED
    assert split_digest(X, y, key="another") not in partitions.values()


def split_digest(
    X: Array, y: Ints, units: Array | None = None, slots: Array | None = None, **settings: Any
) -> str:
    """Digest of the partition of each row under a key."""
    groups = {"row": row_group(len(y))}
    rows = Dataset(X, y, tuple(range(12)), units=units, slots=slots, groups=groups)
    parts = split(rows, (0.5, 0.2, 0.3), **{"key": "veracal", **settings}).parts
    text = repr({name: part.groups["row"].codes.tolist() for name, part in parts.items()})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def row_group(n: int) -> Group:
    """A group for each row, which tells where it went."""
    return Group(np.arange(n), tuple(map(str, range(n))))


def test_a_coin_is_a_hash_of_the_record() -> None:
    """As written out slowly: BLAKE2b of a record, and of that under the key."""
    data = dataset(300)
    secret = hashlib.blake2b(b"k", person=b"veracal split").digest()
    train = []
    for row, label in zip(data.X[:], data.y, strict=True):
        record = hashlib.blake2b(row.tobytes() + b"\0%d" % label, digest_size=16).hexdigest()
        coin = hashlib.blake2b(record.encode(), key=secret, digest_size=8).digest()
        if (int.from_bytes(coin, "little") >> 11) / 2**53 < 0.8:
            train.append(float(row[0]))
    assert split(data, key="k").train.X[:, 0].tolist() == train


# Contributions ---------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 5))
def test_no_unit_contributes_more_than_allowed(
    units: list[int], max_contributions: int
) -> None:
    data = dataset(len(units), units=units)
    kept = limit_contributions(
        data, max_contributions=max_contributions, rng=np.random.default_rng(0)
    )
    assert kept.max_contributions == max_contributions and kept.units is not None
    for unit in set(units):
        assert (kept.units == unit).sum() == min(units.count(unit), max_contributions)
    assert (np.diff(kept.X[:, 0]) > 0).all()  # rows in their old order


def test_every_row_of_a_unit_has_the_same_chance() -> None:
    data, rng = dataset(8, units=[0] * 5 + [1] * 3), np.random.default_rng(0)
    counts = np.zeros(8)
    for _ in range(6000):
        kept = limit_contributions(data, max_contributions=2, rng=rng)
        counts[kept.X[:, 0].astype(int)] += 1
    assert stats.chisquare(counts[:5]).pvalue > 1e-3
    assert stats.chisquare(counts[5:]).pvalue > 1e-3
    assert (
        stats.chisquare(counts[:5] + np.array([150, -150, 0, 0, 0])).pvalue < 1e-3
    )  # the test has teeth


def test_choices_differ_from_call_to_call() -> None:
    data = dataset(100, units=[0] * 100)
    chosen = {tuple(limit_contributions(data, max_contributions=3).X[:, 0]) for _ in range(5)}
    assert len(chosen) > 1


def test_units_may_be_given_and_none_means_rows() -> None:
    assert len(limit_contributions(dataset(6), max_contributions=1)) == 6
    assert (
        len(limit_contributions(dataset(6), max_contributions=1, unit=[0, 0, 0, 1, 1, 1])) == 2
    )
    bounded = dataset(6, units=np.arange(6))._changed(max_contributions=1)
    assert (
        limit_contributions(bounded, max_contributions=None, unit=[0] * 6).max_contributions
        is None
    )
    unlimited = limit_contributions(dataset(6, units=[0] * 6), max_contributions=None)
    assert len(unlimited) == 6 and unlimited.max_contributions is None
    with pytest.raises(ValueError, match="max_contributions"):
        limit_contributions(dataset(6), max_contributions=0)


# What must not change unnoticed ----------------------------------------------------------


@pytest.mark.parametrize(
    "sample", [split, lambda data: limit_contributions(data, max_contributions=1)]
)
def test_draws_are_secret_by_default(
    sample: Callable[[Dataset], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[np.random.Generator] = []

    def remembered() -> np.random.Generator:
        drawn.append(np.random.default_rng(0))
        return drawn[-1]

    monkeypatch.setattr("veracal._random.secret_generator", remembered)
    sample(dataset(units=np.arange(400) // 2))
    assert len(drawn) == 1


KNOWN = [
    {"train": [1, 2, 3, 6, 7, 10], "calibration": [4, 5, 9, 11], "test": [0, 8]},
    {"train": [0, 1, 2, 3, 4, 5, 7, 8, 10, 11], "calibration": [9], "test": [6]},
    {"train": [0, 4, 5, 6, 8, 9, 10, 11], "calibration": [1, 3], "test": [2, 7]},
]


def test_published_keys_keep_their_meaning() -> None:
    """A published key gives the same partitions in any later version."""
    rows = split(dataset(12), key="2026").parts
    units = split(dataset(12, units=[f"p{i}" for i in range(12)]), key="2026").parts
    slots = dataset(12, slots=np.arange(12))
    places = split(slots, key="2026", relation="replace-one").parts
    assert [
        {name: part.X[:, 0].astype(int).tolist() for name, part in parts.items()}
        for parts in (rows, units, places)
    ] == KNOWN
