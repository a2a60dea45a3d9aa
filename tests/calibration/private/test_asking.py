"""Prices, shares and statements of several questions."""

import pytest

from tests.calibration.private.conftest import miscalibrated
from veracal.calibration.private.asking import Ask, composed, price, split, stated, unit_of
from veracal.calibration.queries import Gap
from veracal.privacy import Budget, Count, Pool, Public, Unit, micro_epsilon


def test_a_price_is_given_in_one_way():
    assert price(0.3, None) == 300_000
    assert price(None, 7) == 7
    for wrong in (
        (None, None),
        (0.1, 5),
        (0.0, None),
        (float("nan"), None),
        (None, 0),
        (1e-9, None),
    ):
        with pytest.raises(ValueError, match="Expected"):
            price(*wrong)


@pytest.mark.parametrize("total", [7, 1_000_000, 999_999, 123_457])
def test_shares_never_sum_to_more(total):
    for shares in ([1], [1, 1, 1], [15, 12, 24, 49], [1, 2, 2, 2, 2, 1, 2]):
        if total < sum(shares):
            continue
        parts = split(total, shares)
        assert total - len(shares) < sum(parts) <= total
        assert all(
            abs(p - total * s / sum(shares)) < 1 for p, s in zip(parts, shares, strict=True)
        )
    with pytest.raises(ValueError, match="Spend more"):
        split(3, [1, 1, 1, 1])


def test_an_ask_costs_what_it_says(holder, rng):
    source = holder(miscalibrated(50, 1.0, rng))
    for relation in ("add-remove", "replace-one"):
        for unit in (Unit(), Unit("patient", 3)):
            event = composed(
                [Ask(Gap(), 100).event(relation, unit), Ask(Count(), 7).event(relation, unit)]
            )
            assert micro_epsilon(event, unit) == 107
    Ask(Gap(), 100).of(source)
    assert source.ledger.spent().epsilon == 0.0001


def test_a_statement_is_about_everything_asked(holder, rng):
    unit = Unit("patient", 2)
    scores = miscalibrated(50, 1.0, rng)
    one = holder(scores, Budget(1.0, unit=unit, relation="replace-one"))
    asks = [Ask(Gap(), 200_000), Ask(Count(), 100_000)]
    made = stated([ask.of(one) for ask in asks], unit_of(one), covers="this")
    assert (made.epsilon, made.unit, made.at_most) == (
        pytest.approx(0.3, abs=1e-12),
        "patient",
        2,
    )
    assert made.relation == "replace-one"
    pool = Pool([holder(scores), holder(scores)])
    made = stated([ask.of(pool) for ask in asks], unit_of(pool), covers="this")
    assert made.epsilon == pytest.approx(0.3, abs=1e-12)  # of each source, not of both
    assert any("at two" in words for words in made.covers)
    assert stated([ask.of(Public(scores)) for ask in asks], Unit(), covers="this") is None
