"""A row's score is its own, whatever stands around it."""

import numpy as np
import pytest

from veracal.data.features.fixed_shape import each_by_itself, keeps_rows_apart

MADE_UP = np.random.default_rng(1).normal(size=(4, 3))


def honest(rows):
    return np.cumsum(rows, axis=1)


def by_company(rows):
    return rows + 1e-9 * rows.sum()


def by_sign_of_zero(rows):
    return np.where(np.arange(len(rows))[:, None] % 2, 0.0, -0.0) * np.ones_like(rows)


def by_place_or_nothing(rows):
    return np.where(np.arange(len(rows))[:, None] == 2, np.nan, rows)


@pytest.mark.parametrize("forward", [by_company, by_sign_of_zero, by_place_or_nothing])
def test_a_network_whose_rows_mix_is_found_out(forward):
    assert not keeps_rows_apart(forward, MADE_UP)


def test_one_last_bit_is_enough_to_be_found_out():
    def last_place_rounds_up(rows):
        result = rows.copy()
        result[-1] = np.nextafter(result[-1], np.inf)
        return result

    assert keeps_rows_apart(honest, MADE_UP)
    assert not keeps_rows_apart(last_place_rounds_up, MADE_UP)


@pytest.mark.parametrize("forward", [honest, by_company, by_place_or_nothing])
@pytest.mark.parametrize("n", [1, 3, 4, 5, 11])
def test_scores_are_those_of_rows_alone(forward, n, rng):
    rows = rng.normal(size=(n, 3))

    alone = np.concatenate([forward(row[None]) for row in rows])

    np.testing.assert_array_equal(each_by_itself(forward, MADE_UP)(rows), alone)


def test_every_batch_has_the_one_shape_and_public_filling(rng):
    seen = []

    def forward(rows):
        seen.append(rows.copy())
        return rows

    score = each_by_itself(forward, MADE_UP)
    seen.clear()
    score(rng.normal(size=(6, 3)))

    assert [batch.shape for batch in seen] == [(4, 3), (4, 3)]
    np.testing.assert_array_equal(seen[1][2:], MADE_UP[2:])


def test_where_rows_mix_each_is_scored_alone(rng):
    shapes = []

    def forward(rows):
        shapes.append(rows.shape)
        return by_company(rows)

    score = each_by_itself(forward, MADE_UP)
    shapes.clear()
    score(rng.normal(size=(3, 3)))

    assert shapes == [(1, 3)] * 3
