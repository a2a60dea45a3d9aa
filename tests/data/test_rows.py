"""A row's score depends on that row alone."""

import numpy as np
import pytest

from veracal.data.scoring import (
    all_positions_equivalent,
    equivalent_positions,
    score_at_positions,
    score_independently,
)

SYNTHETIC = np.random.default_rng(1).normal(size=(4, 3))


def cumulative(rows):
    return np.cumsum(rows, axis=1)


def by_company(rows):
    return rows + 1e-9 * rows.sum()


def by_sign_of_zero(rows):
    return np.where(np.arange(len(rows))[:, None] % 2, 0.0, -0.0) * np.ones_like(rows)


def nan_except_one_position(rows):
    return np.where(np.arange(len(rows))[:, None] == 2, np.nan, rows)


def round_last_position_up(rows):
    result = rows.copy()
    result[-1] = np.nextafter(result[-1], np.inf)
    return result


def last_three_added_backwards(rows):
    weights = np.random.default_rng(3).standard_normal((300, 4)).astype(np.float32)
    sums = np.stack([np.cumsum(rows * w, axis=1)[:, -1] for w in weights.T], axis=1)
    sums[-3:] = (rows[-3:, ::-1, None] * weights[::-1]).cumsum(axis=1)[:, -1]
    return sums


def second_by_the_third(rows):
    """Other rows change only the row at one position, and only in a block."""
    result = rows.copy()
    result[1] += 1e-9 * (rows[2] - rows[1])
    return result


# ---------------------------------------------------------------- places


@pytest.mark.parametrize("tried", [1, 2, 4])
@pytest.mark.parametrize(
    ("forward", "places"),
    [
        (cumulative, [0, 1, 2, 3]),
        (round_last_position_up, [0, 1, 2]),
        (nan_except_one_position, [0, 1, 3]),
        (by_sign_of_zero, [0, 2]),
        (by_company, [0]),
    ],
)
def test_rows_may_stand_where_they_have_the_bits_of_the_first_place(forward, places, tried):
    assert equivalent_positions(forward, SYNTHETIC, tried).tolist() == places


def test_more_tried_rows_notice_more():
    assert (
        len(equivalent_positions(second_by_the_third, SYNTHETIC)) == 4
    )  # row 0 is not at place 1
    assert equivalent_positions(second_by_the_third, SYNTHETIC, 2).tolist() == [0]


def test_another_order_of_additions_is_noticed(rng):
    synthetic = rng.standard_normal((64, 300)).astype(np.float32)
    assert equivalent_positions(last_three_added_backwards, synthetic, 4).tolist() == list(
        range(61)
    )


# ---------------------------------------------------------------- rows at them


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7])
def test_rows_are_scored_in_their_order_wherever_they_stand(n, rng):
    rows, places = rng.normal(size=(n, 3)), np.array([0, 2])
    parts = list(score_at_positions(cumulative, rows, places, np.empty((4, 3))))
    assert [len(part) for part in parts] == [2] * (n // 2) + [1] * (n % 2)
    np.testing.assert_array_equal(np.concatenate([np.empty((0, 3)), *parts]), cumulative(rows))


def test_with_one_place_a_block_holds_one_row_only(rng):
    rows = rng.normal(size=(5, 3))
    whole = np.concatenate(
        list(score_at_positions(by_company, rows, np.zeros(1, int), np.ones((4, 3))))
    )
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(whole[i], by_company(np.tile(row, (4, 1)))[0])


def test_scores_stay_although_the_block_is_used_again(rng):
    rows = rng.normal(size=(9, 3))
    parts = list(score_at_positions(lambda block: block, rows, np.arange(4), np.empty((4, 3))))
    np.testing.assert_array_equal(np.concatenate(parts), rows)


# ---------------------------------------------------------------- networks


@pytest.mark.parametrize("forward", [cumulative, by_company, nan_except_one_position])
@pytest.mark.parametrize("n", [1, 3, 4, 5, 11])
def test_scores_are_those_of_rows_alone(forward, n, rng):
    rows = rng.normal(size=(n, 3))

    alone = np.concatenate([forward(row[None]) for row in rows])

    np.testing.assert_array_equal(score_independently(forward, SYNTHETIC)(rows), alone)


def test_every_batch_has_the_one_shape_and_is_filled_up(rng):
    seen = []

    def forward(rows):
        seen.append(rows.copy())
        return rows

    score = score_independently(forward, SYNTHETIC)
    seen.clear()
    rows = rng.normal(size=(6, 3))
    score(rows)

    assert [batch.shape for batch in seen] == [(4, 3), (4, 3)]
    np.testing.assert_array_equal(seen[1], rows[[4, 5, 4, 4]])


def test_where_rows_mix_each_is_scored_alone(rng):
    shapes = []

    def forward(rows):
        shapes.append(rows.shape)
        return by_company(rows)

    score = score_independently(forward, SYNTHETIC)
    shapes.clear()
    score(rng.normal(size=(3, 3)))

    assert shapes == [(1, 3)] * 3


def sum_backwards_at_odd_positions(weights):
    def forward(rows):
        sums, backwards = (
            (some[:, :, None] * one).cumsum(axis=1, dtype=np.float32)[:, -1]
            for some, one in ((rows, weights), (rows[:, ::-1], weights[::-1]))
        )
        return np.where(np.arange(len(rows))[:, None] % 2, backwards, sums)

    return forward


@pytest.mark.parametrize("outputs", [1, 2])
def test_few_outputs_do_not_hide_another_order_of_additions(outputs):
    """One synthetic row may have the same bits at all positions by chance, many do not."""
    rng = np.random.default_rng(0)
    synthetic = rng.standard_normal((64, 10)).astype(np.float32)
    forwards = [
        sum_backwards_at_odd_positions(rng.standard_normal((10, outputs)).astype(np.float32))
        for _ in range(30)
    ]
    assert any(
        len(equivalent_positions(one, synthetic)) == 64 for one in forwards
    )  # by one row
    assert not any(all_positions_equivalent(one, synthetic) for one in forwards)


def test_a_single_odd_place_is_noticed(rng):
    synthetic = rng.normal(size=(64, 3))
    assert all_positions_equivalent(cumulative, synthetic)
    assert not all_positions_equivalent(round_last_position_up, synthetic)
    assert not all_positions_equivalent(second_by_the_third, synthetic)


def test_other_weights_are_tried_too(rng):
    synthetic, shapes = rng.normal(size=(8, 3)), []

    def hides(rows):
        shapes.append(len(rows))
        return np.zeros((len(rows), 2))

    score = score_independently(hides, synthetic, round_last_position_up)
    shapes.clear()
    score(rng.normal(size=(3, 3)))
    assert shapes == [1, 1, 1]


def test_blocks_lie_at_multiples_of_64_bytes():
    """Some libraries round by the address, which may follow from what else is in memory."""
    met = []

    def noted(rows):
        met.append(rows.ctypes.data % 64)
        return cumulative(rows)

    room = np.empty(4 * 3 + 1)[1:].reshape(4, 3)  # at 8 or 24 or … bytes behind a multiple
    places = equivalent_positions(noted, SYNTHETIC)
    list(score_at_positions(noted, np.ones((9, 3)), places, room))
    assert set(met) == {0}
