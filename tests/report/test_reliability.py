"""A reliability display draws the numbers of a curve, and leaves everything else alone."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from veracal.calibration import measure_private
from veracal.calibration.measurement import binary_curve, curve
from veracal.data import Scores
from veracal.errors import MissingExtraError
from veracal.queries import Public
from veracal.report import ReliabilityDisplay, drawable
from veracal.report.reliability import INTERNAL

matplotlib = pytest.importorskip("matplotlib", reason="the report extra is not installed")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def closed():
    """No figure outlives a test."""
    yield
    plt.close("all")


def example_scores(n=400, k=3, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * 3
    return logits, (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)


@pytest.fixture
def scores():
    return Scores.from_logits(*example_scores(), name="mine")


def plotted_points(display):
    """Where the points and the ends of their intervals were drawn."""
    line, _, (bars,) = display.errorbar_.lines
    ends = [segment[:, 1] for segment in bars.get_segments()]
    return np.asarray(line.get_xydata()), np.array(ends)


def test_the_diagram_draws_the_numbers_of_the_curve(scores):
    display = ReliabilityDisplay.from_scores(scores)
    held = [each for each in curve(scores).bins if each.n]
    assert 0 < len(held) < 15  # empty bins have no point
    points, ends = plotted_points(display)
    np.testing.assert_allclose(points, [[b.confidence, b.accuracy] for b in held])
    np.testing.assert_allclose(ends, [[b.accuracy_low, b.accuracy_high] for b in held])
    heights = [bar.get_height() for bar in display.histogram_ax_.patches]
    assert heights == [b.n for b in curve(scores).bins]
    (legend,) = [t.get_text() for t in display.ax_.get_legend().texts if "mine" in t.get_text()]
    assert legend == f"mine: ECE {curve(scores).ece:.3f}"


def test_figures_without_noise_are_marked_internal(scores):
    display = ReliabilityDisplay.from_scores(scores)
    assert display.histogram_ax_.get_xlabel() == f"confidence\n{INTERNAL}"
    assert display.plot(note="").histogram_ax_.get_xlabel() == "confidence"


def test_given_axes_are_used(scores):
    figure, axes = plt.subplots(1, 2)
    display = ReliabilityDisplay(curve(scores)).plot(axes[1], name="other", histogram=False)
    assert display.ax_ is axes[1] and display.figure_ is figure
    assert display.histogram_ax_ is None and len(plt.get_fignums()) == 1
    assert not axes[0].lines and "confidence" in axes[1].get_xlabel()
    assert "other" in axes[1].get_legend().texts[1].get_text()


def test_plot_returns_the_display_and_makes_a_figure(scores):
    display = ReliabilityDisplay(curve(scores))
    assert not hasattr(display, "ax_") and not plt.get_fignums()
    assert display.plot() is display and display.figure_.number in plt.get_fignums()


def test_drawing_changes_no_style(scores, tmp_path):
    before = dict(matplotlib.rcParams)
    with plt.style.context("dark_background"):
        display = ReliabilityDisplay.from_scores(scores)
        assert display.figure_.get_facecolor()[:3] == (0, 0, 0)  # the user's own
    ReliabilityDisplay.from_scores(scores).figure_.savefig(tmp_path / "curve.png")
    assert dict(matplotlib.rcParams) == before


def test_from_estimator_equals_from_scores():
    X, y = example_scores(300)
    names = np.array(["a", "b", "c"])[y]
    model = LogisticRegression().fit(X, names)
    display = ReliabilityDisplay.from_estimator(model, X, names, bins=8)
    scores = Scores.from_probabilities(model.predict_proba(X), y)
    assert display.curve == curve(scores, 8) and display.name == "LogisticRegression"


def test_an_estimator_without_probabilities_is_refused():
    X, y = example_scores(60)
    with pytest.raises(ValueError, match="with predict_proba, got LinearSVC"):
        ReliabilityDisplay.from_estimator(LinearSVC().fit(X, y), X, y)
    with pytest.raises(ValueError, match="fitted classifier"):
        ReliabilityDisplay.from_estimator(LogisticRegression(), X, y)


def test_the_second_class_may_be_drawn():
    logits, labels = example_scores(k=2)
    scores = Scores.from_logits(logits, labels)
    display = ReliabilityDisplay.from_scores(scores, second_class=True, interval="wilson")
    assert display.curve == binary_curve(scores) != curve(scores)
    assert display.ax_.get_ylabel() == "frequency of the second class"


def test_a_released_curve_is_drawn_and_not_called_internal(scores):
    noisy = measure_private(Public(scores), epsilon=1.0, figures=["curve"]).overall.curve
    display = ReliabilityDisplay.from_curve(noisy)
    assert display.histogram_ax_.get_xlabel() == "confidence"
    points, _ = plotted_points(display)
    exact = [b for b in curve(scores).bins if b.n]
    np.testing.assert_allclose(points, [[b.confidence, b.accuracy] for b in exact], atol=1e-4)
    assert drawable(noisy).released and "about" in repr(display)
    assert "released with noise" in display.ax_.get_legend().texts[1].get_text()


@pytest.mark.parametrize("n", [1, 2])
def test_very_few_records_can_be_drawn(n, tmp_path):
    scores = Scores.from_probabilities([[0.0, 1.0]] * n, [1] * n)
    ReliabilityDisplay.from_scores(scores).figure_.savefig(tmp_path / "curve.svg")


def test_without_matplotlib_the_extra_is_named(scores, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtraError, match=r"veracal\[report\]"):
        ReliabilityDisplay.from_scores(scores)


def test_matplotlib_is_imported_only_to_draw():
    code = "import sys, veracal.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
