"""Reliability diagrams with matplotlib."""

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from veracal._checks import extra
from veracal.calibration import Interval, binary_curve, curve
from veracal.data import Scores
from veracal.report.results import Curve, drawable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer
    from matplotlib.figure import Figure


INTERNAL = "without noise: internal if the records are private"
_LABELS = {
    "top label": ("confidence", "accuracy"),
    "second class": ("probability of the second class", "frequency of the second class"),
}


class ReliabilityDisplay:
    """A reliability curve with its intervals, above the histogram of confidence.

    Create one with :meth:`from_scores`, :meth:`from_estimator` or :meth:`from_curve`, like
    scikit-learn's displays. Drawing needs matplotlib, from the ``report`` extra; it uses the
    active style and changes none.

    Parameters
    ----------
    curve : ReliabilityCurve or PrivateCurve
        The numbers to draw.
    name : str, optional
        For the legend.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Axes of the curve, once it is drawn.
    histogram_ax_ : matplotlib Axes or None
        Axes of the histogram.
    figure_ : matplotlib Figure
    errorbar_ : matplotlib ErrorbarContainer
        The curve and its intervals.

    Examples
    --------
    >>> from veracal.calibration import curve
    >>> scores = Scores.from_probabilities([[0.2, 0.8], [0.2, 0.8]], [1, 0])
    >>> ReliabilityDisplay(curve(scores, 5))
    ReliabilityDisplay(2 records, 5 bins)
    """

    ax_: "Axes"
    histogram_ax_: "Axes | None"
    figure_: "Figure"
    errorbar_: "ErrorbarContainer"

    def __init__(self, curve: Curve, *, name: str | None = None) -> None:
        self.curve = curve
        self.name = name

    def __repr__(self) -> str:
        drawn = drawable(self.curve)
        about = "about " if drawn.released else ""
        return f"ReliabilityDisplay({about}{drawn.n} records, {len(drawn.bins)} bins)"

    @classmethod
    def from_scores(
        cls,
        scores: Scores,
        *,
        bins: int = 15,
        second_class: bool = False,
        level: float = 0.95,
        interval: Interval = "wilson",
        name: str | None = None,
        ax: "Axes | None" = None,
    ) -> Self:
        """Draw the curve of labeled scores.

        Parameters
        ----------
        scores : Scores
        bins : int
        second_class : bool
            Whether to draw the probability of the second of two classes instead of the
            confidence in the predicted one.
        level : float
            Confidence level of each interval.
        interval : 'wilson' or 'clopper-pearson'
        name : str, optional
            By default the name of the scores.
        ax : matplotlib Axes, optional
            By default the axes of a new figure.
        """
        make = binary_curve if second_class else curve
        drawn_curve = make(scores, bins, level=level, interval=interval)
        return cls.from_curve(drawn_curve, name=scores.name if name is None else name, ax=ax)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        bins: int = 15,
        second_class: bool = False,
        level: float = 0.95,
        interval: Interval = "wilson",
        name: str | None = None,
        ax: "Axes | None" = None,
    ) -> Self:
        """Draw the curve of a fitted classifier on rows X with labels y.

        Probabilities are those of ``estimator.predict_proba``; the other parameters are those
        of :meth:`from_scores`.
        """
        if not (hasattr(estimator, "predict_proba") and hasattr(estimator, "classes_")):
            raise ValueError(
                "Expected a fitted classifier with predict_proba, got "
                f"{type(estimator).__name__}. Compute Scores and use from_scores."
            )
        scores = Scores.from_probabilities(
            estimator.predict_proba(X),
            y,
            classes=np.asarray(estimator.classes_).tolist(),
            name=type(estimator).__name__ if name is None else name,
        )
        return cls.from_scores(
            scores, bins=bins, second_class=second_class, level=level, interval=interval, ax=ax
        )

    @classmethod
    def from_curve(
        cls, curve: Curve, *, name: str | None = None, ax: "Axes | None" = None
    ) -> Self:
        """Draw a curve that was computed before, privately or not."""
        return cls(curve, name=name).plot(ax)

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        name: str | None = None,
        histogram: bool = True,
        note: str | None = None,
    ) -> Self:
        """Draw the curve.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            By default the axes of a new figure. A histogram takes their lower part.
        name : str, optional
            For the legend; by default the display's own.
        histogram : bool
            Whether to draw the number of records in each bin.
        note : str, optional
            A line below the diagram. By default it says that the numbers are internal, unless
            they were released with noise. For public records, pass ``note=""``.
        """
        if ax is None:
            _, ax = extra("matplotlib.pyplot", "report").subplots(
                figsize=(5.0, 5.5 if histogram else 4.5), layout="tight"
            )
        self.ax_, self.figure_, self.histogram_ax_ = ax, ax.figure, None  # type: ignore[assignment]
        drawn, name = drawable(self.curve), self.name if name is None else name
        across, up = _LABELS[drawn.of]
        nonempty = [each for each in drawn.bins if each.accuracy.value is not None]
        confidence = np.array([each.confidence for each in nonempty], dtype=np.float64)
        accuracy = np.array([each.accuracy.value for each in nonempty], dtype=np.float64)
        ends = [[each.accuracy.low, each.accuracy.high] for each in nonempty]
        low, high = np.array(ends, dtype=np.float64).reshape(-1, 2).T
        # The calibration error of a released curve is measured more precisely on its own.
        what = "accuracy, released with noise" if drawn.released else f"ECE {drawn.ece:.3f}"
        ax.plot([0, 1], [0, 1], linestyle=":", color="0.5", label="perfectly calibrated")
        self.errorbar_ = ax.errorbar(
            confidence,
            accuracy,
            # Rounding may put a share slightly outside its interval.
            yerr=np.maximum([accuracy - low, high - accuracy], 0),
            marker="o",
            markersize=4,
            elinewidth=1,
            capsize=2,
            label=f"{name}: {what}" if name else what,
        )
        ax.legend(loc="upper left")
        ax.set(ylabel=up, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        lowest = ax
        if histogram:
            locate = extra("mpl_toolkits.axes_grid1", "report").make_axes_locatable
            below: Axes = locate(ax).append_axes("bottom", size="22%", pad=0.12, sharex=ax)
            ax.tick_params(labelbottom=False)
            below.bar(
                [each.low for each in drawn.bins],
                [each.count.n for each in drawn.bins],
                width=[each.high - each.low for each in drawn.bins],
                align="edge",
                color=self.errorbar_.lines[0].get_color(),
                alpha=0.5,
            )
            below.set_ylabel("records")
            lowest = self.histogram_ax_ = below
        if note is None:
            note = "" if drawn.released else INTERNAL
        lowest.set_xlabel(f"{across}\n{note}" if note else across)
        return self
