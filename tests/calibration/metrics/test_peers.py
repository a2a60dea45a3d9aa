"""Figures of other libraries agree where definitions do; elsewhere they differ as stated."""

import warnings

import numpy as np
import pytest
import sklearn.metrics

from tests.calibration.metrics.sample_scores import scores
from veracal.calibration import metrics
from veracal.calibration.measurement import curve
from veracal.data import Scores

pytestmark = pytest.mark.full

CLOSE = {"abs": 1e-6}


@pytest.fixture(params=[2, 5])
def sample(request) -> Scores:
    return scores(2_000, request.param)


def test_scikit_learn(sample):
    y, p = sample.labels, sample.values
    assert metrics.nll(sample) == pytest.approx(sklearn.metrics.log_loss(y, p), **CLOSE)
    assert metrics.accuracy(sample) == sklearn.metrics.accuracy_score(y, sample.predictions)
    macro = sklearn.metrics.f1_score(y, sample.predictions, average="macro")
    assert metrics.f1(sample) == pytest.approx(macro, **CLOSE)
    if sample.n_classes == 2:
        area = sklearn.metrics.roc_auc_score(y, p[:, 1])
        square = 2 * sklearn.metrics.brier_score_loss(y, p[:, 1])
        one = sklearn.metrics.f1_score(y, sample.predictions)
        assert metrics.binary_f1(sample) == pytest.approx(one, **CLOSE)
    else:
        area = sklearn.metrics.roc_auc_score(y, p, multi_class="ovr")
        square = sklearn.metrics.brier_score_loss(y, p)
    assert metrics.auc(sample) == pytest.approx(area, **CLOSE)
    assert metrics.brier(sample) == pytest.approx(square, **CLOSE)


def test_netcal(sample):
    netcal = pytest.importorskip("netcal.metrics", reason="the peers extra is not installed")
    if sample.n_classes > 2:
        p, ours = sample.values, (metrics.ece(sample), metrics.mce(sample), metrics.ace(sample))
    else:  # netcal takes two classes for a binary problem
        p, ours = sample.values[:, 1], (metrics.binary_ece(sample), None, None)
    assert ours[0] == pytest.approx(netcal.ECE(15).measure(p, sample.labels), **CLOSE)
    if sample.n_classes > 2:
        assert ours[1] == pytest.approx(netcal.MCE(15).measure(p, sample.labels), **CLOSE)
        equal_mass = netcal.ECE(15, equal_intervals=False).measure(p, sample.labels)
        assert ours[2] == pytest.approx(equal_mass, **CLOSE)
        # Its ACE is the unweighted mean over nonempty bins of equal width.
        bins = [b for b in curve(sample).bins if b.n]
        plain = np.mean([abs(b.confidence - b.accuracy) for b in bins])
        assert netcal.ACE(15).measure(p, sample.labels) == pytest.approx(plain, **CLOSE)
        assert abs(plain - metrics.ace(sample)) > 1e-4


def test_torchmetrics(sample):
    torch = pytest.importorskip("torch", reason="the torch extra is not installed")
    peer = pytest.importorskip(
        "torchmetrics.functional.classification", reason="the peers extra is not installed"
    )
    p, y, k = torch.tensor(sample.values), torch.tensor(sample.labels), sample.n_classes
    for name, norm in (("ece", "l1"), ("mce", "max")):
        theirs = float(peer.multiclass_calibration_error(p, y, k, 15, norm=norm))
        assert getattr(metrics, name)(sample) == pytest.approx(theirs, **CLOSE)
    if k == 2:
        theirs = float(peer.binary_calibration_error(p[:, 1].contiguous(), y, 15))
        assert metrics.binary_ece(sample) == pytest.approx(theirs, **CLOSE)
    # A confidence of exactly 1 is in a separate bin there, and in the last one here.
    sure = Scores.from_probabilities([1.0, 0.97], [0, 1])
    p, y = torch.tensor(sure.values), torch.tensor(sure.labels)
    theirs = float(peer.multiclass_calibration_error(p, y, 2, 15))
    assert metrics.ece(sure) == pytest.approx(abs(1.97 - 1) / 2)
    assert theirs == pytest.approx((1 + 0.03) / 2)


def test_uncertainty_calibration(sample):
    peer = pytest.importorskip("calibration", reason="the peers extra is not installed")
    p, y = sample.values, sample.labels
    theirs = {
        "ece": peer.get_ece(p, y),
        "ace": peer.get_ece_em(p, y),
        "sce": peer.get_ece(p, y, mode="marginal"),
        "classwise_ace": peer.get_ece_em(p, y, mode="marginal"),
        "debiased_l2": peer.lower_bound_scaling_top_ce(p, y),
    }
    for name, value in theirs.items():
        assert getattr(metrics, name)(sample) == pytest.approx(value, **CLOSE), name


def test_relplot():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        relplot = pytest.importorskip("relplot", reason="the peers extra is not installed")
    result = scores(2_000, 2)
    p, y = result.values[:, 1], result.labels
    # It works on a coarser grid and stops the search for the bandwidth at 1/1024.
    assert metrics.binary_smooth_ece(result) == pytest.approx(relplot.smECE(p, y), abs=5e-4)
    for sigma in (0.03, 0.1):
        theirs = relplot.metrics.smECE_sigma(p, y, sigma)
        ours = metrics.binary_smooth_ece(result, bandwidth=sigma)
        assert ours == pytest.approx(theirs, abs=5e-4)
    binned = relplot.metrics.binnedECE(p, y, 15)
    assert metrics.binary_ece(result) == pytest.approx(binned, **CLOSE)


def test_a_confidence_on_an_edge_is_one_bin_higher_elsewhere():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        netcal = pytest.importorskip(
            "netcal.metrics", reason="the peers extra is not installed"
        )
        relplot = pytest.importorskip("relplot", reason="the peers extra is not installed")
    result = Scores.from_probabilities([0.75, 0.8], [1, 0])
    p, separate, together = result.values[:, 1], (0.25 + 0.8) / 2, abs(0.75 + 0.8 - 1) / 2
    assert metrics.binary_ece(result, 4) == pytest.approx(separate)
    assert netcal.ECE(4).measure(p, result.labels) == pytest.approx(together)
    assert netcal.ECE(4).measure(result.values, result.labels) == pytest.approx(together)
    assert relplot.metrics.binnedECE(p, result.labels, 4) == pytest.approx(together)
