"""Every split has the records it should have, and a declared size."""

import numpy as np

from tests.calibration.private_classifier.sample_classifiers import (
    DATA,
    FITS,
    PublicWeights,
    X,
    calibrated,
)
from veracal.calibration import PrivateBinning, PrivateTemperature
from veracal.calibration.private_classifier import Guard
from veracal.data import Dataset


def test_reuse_gives_all_records_to_training_map_and_guard(queried_scores) -> None:
    calibrated(guard=Guard()).fit_records(DATA)
    assert len(FITS[0].X) == 400 and FITS[0].size == 400
    assert [len(scores) for scores, _ in queried_scores] == [400, 400]


def test_split_deals_every_record_to_one_part(queried_scores) -> None:
    model = calibrated(
        PublicWeights(steep=1.0), recalibrate="split", holdout=0.4, guard=Guard()
    )
    model.fit_records(DATA)
    parts = [FITS[0].X[:, 0], *(scores.values[:, 1] for scores, _ in queried_scores)]
    assert sorted(np.concatenate(parts)) == sorted(X[:, 0])
    shares = np.array([len(part) / 400 for part in parts])
    assert np.abs(shares - (0.6, 0.2, 0.2)).max() < 0.15


def test_parts_have_nominal_sizes_whatever_their_number(queried_scores) -> None:
    declared = Dataset(X, DATA.y, DATA.classes, size=10_000)
    method = PrivateTemperature("descent", epsilon=1.0, delta=1e-6, steps=3)
    model = calibrated(recalibrate="split", method=method)
    result = model._plan_budget(declared.size)
    model.fit_records(declared)
    assert FITS[0].size == 9_000 and result.method.size == 1_000


def test_the_assignment_is_secret_and_ignores_row_numbers(queried_scores) -> None:
    held = np.zeros(400)
    method = PrivateBinning(epsilon=1.0, bins=1)  # the quickest
    for _ in range(30):
        queried_scores.clear()
        model = calibrated(
            PublicWeights(steep=1.0), method=method, recalibrate="split", holdout=0.5
        )
        model.fit_records(DATA)
        held += np.isin(X[:, 0], queried_scores[0][0].values[:, 1])
    # Thirty fair draws for each row: no row is always or never held out, and no sequence of rows.
    assert 2 < held.min() and held.max() < 28
    assert abs(held[:200].sum() - held[200:].sum()) < 6 * np.sqrt(400 * 30 / 4)


def test_replace_one_has_exact_public_parts(queried_scores) -> None:
    model = calibrated(
        PublicWeights(relation="replace-one"),
        relation="replace-one",
        recalibrate="split",
        holdout=0.25,
    )
    assert model.event().relation == "replace-one"
    fitted = model.fit_records(DATA)
    assert FITS[0].size == len(FITS[0].X) == 300
    assert len(queried_scores[0][0]) == 100 and fitted.private_


def test_no_records_at_all_are_no_error(queried_scores) -> None:
    for how in ("reuse", "split"):
        fitted = calibrated(recalibrate=how, guard=Guard()).fit_records(DATA.take(np.arange(0)))
        assert fitted.private_ and np.isfinite(fitted.predict_proba(X)).all()
